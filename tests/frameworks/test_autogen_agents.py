"""AutoGen agentchat: one agent and a team, run and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from framework_servers import Server, Tool
from rollouts import check_that_none_mixed, eight, injected

pytest.importorskip("autogen_agentchat", reason="needs autogen-agentchat")
pytest.importorskip("autogen_ext", reason="needs autogen-ext[openai]")

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

from agent_lightning.client.agent import adapter_for
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.outbox import OUTBOX

INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


def member(provider: Server, name: str, **settings: Any) -> Any:
    client = OpenAIChatCompletionClient(
        model="gpt-x", base_url=f"{provider.url}/v1", api_key="sk-secret", model_info=INFO
    )
    return AssistantAgent(name, client, **settings)


def team(provider: Server) -> Any:
    members = [member(provider, "planner"), member(provider, "writer", model_client_stream=True)]
    return RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(3))


async def test_each_call_bears_the_name_of_the_member_that_made_it(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    gateway.script = ["planned", "written"]
    with injected(agent, gateway) as handle:
        assert handle.components == {"planner", "writer"}
        result = await agent.run(task="q")
    assert [message.content for message in result.messages] == ["q", "planned", "written"]
    assert gateway.components == ["planner", "writer"]
    assert gateway.keys == ["alr-live-1"] * 2
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == ["q"]


async def test_only_the_component_of_interest_is_routed_also_when_streamed(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    with injected(agent, gateway, component="writer"):
        messages = [message async for message in agent.run_stream(task="q")]
    assert messages[-1].messages[-1].content.startswith("gateway: ")
    assert gateway.components == ["writer"]
    assert provider.keys == ["sk-secret"]
    assert OUTBOX.flush(5.0)
    assert len(gateway.on("/end")) == 1


async def test_a_single_agent_uses_its_tools_in_one_rollout(gateway: Server, provider: Server) -> None:
    async def look_up(word: str) -> str:
        """Look a word up."""
        return f"looked up {word}"

    agent = member(provider, "solo", tools=[look_up], reflect_on_tool_use=True)
    gateway.script = [Tool("look_up", {"word": "a"}), "done"]
    with injected(agent, gateway):
        assert (await agent.run(task="q")).messages[-1].content == "done"
    assert gateway.components == ["solo", "solo"]
    assert len(gateway.on("/live")) == 1


@pytest.mark.usefixtures("installed")
async def test_eight_rollouts_at_once_do_not_mix_on_fresh_copies(
    gateway: Server, provider: Server, config: ClientConfig
) -> None:
    agent = member(provider, "solo")
    assert adapter_for(agent).keeps_state(agent)
    assert await eight(agent, config) == [f"gateway: question {n}" for n in range(8)]
    check_that_none_mixed(gateway)
    assert gateway.components == ["solo"] * 8


async def test_detached_it_goes_where_it_went(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    with injected(agent, gateway):
        pass
    result = await agent.run(task="q")
    assert result.messages[-1].content.startswith("provider: ")
    assert gateway.calls == []
