"""`python -m agent_lightning.cli` is `agent-lightning`."""

from agent_lightning.cli import main

main()
