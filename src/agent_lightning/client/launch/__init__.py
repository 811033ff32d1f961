"""Zero code: `agent-lightning run -- python my_agent.py`. The agent's interpreter finds us by `sitecustomize`."""
