"""OpenAI Agents SDK: handoffs, agents as tools, sync, async and streamed, over responses and chat."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from framework_servers import Server, Tool
from rollouts import check_that_none_mixed, eight, injected

pytest.importorskip("agents", reason="needs openai-agents")

import openai
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool

from agent_lightning.client.agent import adapter_for
from agent_lightning.client.config import ClientConfig
from agent_lightning.errors import SettingError


def team(provider: Server, model_class: Any = OpenAIResponsesModel) -> Any:
    model = model_class("gpt-x", openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="sk-secret"))

    @function_tool
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"looked up {word}"

    writer = Agent(name="writer", model=model, instructions="Write.", tools=[look_up])
    return Agent(name="triage", model=model, instructions="Route.", handoffs=[writer])


@pytest.mark.parametrize("model_class", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
def test_each_call_bears_the_name_of_the_agent_that_made_it(
    gateway: Server, provider: Server, model_class: Any
) -> None:
    agent = team(provider, model_class)
    gateway.script = [Tool("transfer_to_writer", {}), Tool("look_up", {"word": "a"}), "done"]
    with injected(agent, gateway) as handle:
        assert handle.components == {"triage", "writer"}
        assert Runner.run_sync(agent, "q").final_output == "done"
    assert gateway.components == ["triage", "triage/writer", "triage/writer"]
    assert gateway.keys == ["alr-live-1"] * 3
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == ["q"]


async def test_only_the_component_of_interest_is_routed_also_when_streamed(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    provider.script = [Tool("transfer_to_writer", {})]
    with injected(agent, gateway, component="writer"):
        result = Runner.run_streamed(agent, input="q")
        events = [event async for event in result.stream_events()]
    assert events
    assert str(result.final_output).startswith("gateway: ")
    assert gateway.components == ["triage/writer"]
    assert [call.key for call in provider.calls] == ["sk-secret"]
    assert not [name for name in provider.calls[0].headers if name.startswith("x-lightning")]
    from agent_lightning.client.outbox import OUTBOX

    assert OUTBOX.flush(5.0)
    assert [end["outcome"] for end in gateway.on("/end")] == ["ok"], "the rollout ends with the stream"


async def test_an_agent_used_as_a_tool_is_named_inside_the_one_that_used_it(gateway: Server, provider: Server) -> None:
    inner = team(provider).handoffs[0]
    outer = inner.clone(name="boss", tools=[inner.as_tool("ask_writer", "Ask the writer.")])
    gateway.script = [Tool("ask_writer", {"input": "x"}), "inner answer", "outer answer"]
    with injected(outer, gateway):
        assert (await Runner.run(outer, "q")).final_output == "outer answer"
    assert gateway.components == ["boss", "boss/writer", "boss"]
    assert gateway.keys == ["alr-live-1"] * 3, "one rollout"


@pytest.mark.usefixtures("installed")
async def test_eight_rollouts_at_once_do_not_mix(gateway: Server, provider: Server, config: ClientConfig) -> None:
    agent = team(provider)
    assert await eight(agent, config) == [f"gateway: question {n}" for n in range(8)]
    check_that_none_mixed(gateway)
    assert gateway.components == ["triage"] * 8


def test_detached_it_goes_where_it_went_and_a_clone_is_injected_too(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    with injected(agent, gateway):
        clone = agent.clone(name="twin")
        assert Runner.run_sync(clone, "q").final_output == "gateway: q"
    assert asyncio.run(Runner.run(agent, "q")).final_output == "provider: q"
    assert not hasattr(type(agent).clone, "__wrapped__")
    with pytest.raises(SettingError, match="its parts are: triage, writer"):
        injected(agent, gateway, component="sql_*")
    assert not adapter_for(agent).keeps_state(agent)
