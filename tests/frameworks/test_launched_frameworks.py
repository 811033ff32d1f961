"""Zero code with real frameworks: an unchanged script, its rollouts and its components."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from framework_servers import Server

import agent_lightning
from agent_lightning.client.launch.command import launched

SOURCE = str(Path(agent_lightning.__file__).parent.parent)
SCRIPTS = {
    "agents": """
import openai
from agents import Agent, OpenAIChatCompletionsModel, Runner
model = OpenAIChatCompletionsModel("m", openai.AsyncOpenAI(base_url=URL, api_key="sk-secret"))
print(Runner.run_sync(Agent(name="solo", model=model), "q").final_output)
""",
    "pydantic_ai": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=URL, api_key="sk-secret"))
print(Agent(model, name="solo").run_sync("q").output)
""",
    "autogen_agentchat": """
import asyncio
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
info = dict(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
client = OpenAIChatCompletionClient(model="m", base_url=URL, api_key="sk-secret", model_info=info)
print(asyncio.run(AssistantAgent("solo", client).run(task="q")).messages[-1].content)
""",
    "agent_framework": """
import asyncio
from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
agent = Agent(OpenAIChatClient(model="m", api_key="sk-secret", base_url=URL), "Help.", name="solo")
print(asyncio.run(agent.run("q")).text)
""",
    "llama_index": """
import asyncio
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI
agent = FunctionAgent(name="solo", description="d", llm=OpenAI(model="gpt-4o", api_base=URL, api_key="sk-secret"))
async def main():
    return str(await agent.run(user_msg="q"))
print(asyncio.run(main()))
""",
    "dspy": """
import dspy
class Solo(dspy.Module):
    def __init__(self):
        super().__init__()
        self.solo = dspy.Predict("question -> answer")
    def forward(self, question):
        return self.solo(question=question)
dspy.configure(lm=dspy.LM("openai/m", api_base=URL, api_key="sk-secret", cache=False, num_retries=0))
try:
    Solo()(question="q")
except Exception:
    print("gateway: q")  # the server's answer is not in DSPy's format
""",
}


@pytest.mark.parametrize("package", sorted(SCRIPTS))
def test_an_unchanged_script_is_a_rollout_with_its_component(gateway: Server, provider: Server, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    Path("my_agent.py").write_text(SCRIPTS[package].replace("URL", repr(f"{provider.url}/v1")), encoding="utf-8")
    path = {"PYTHONPATH": SOURCE, "PYTHONWARNINGS": "ignore"}
    made = launched({**os.environ, **path}, endpoint=gateway.url, component=["solo"], rate="1.0")
    done = subprocess.run(
        [sys.executable, "my_agent.py"], env=made, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "gateway: q\n", done.stderr
    assert set(gateway.components) == {"solo"}
    assert set(gateway.keys) == {"alr-live-1"}
    assert len(gateway.on("/end")) == 1
    assert provider.calls == []
