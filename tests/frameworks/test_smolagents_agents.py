"""smolagents: a code agent with a managed tool-calling agent, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from framework_servers import Server, Tool
from rollouts import check_that_none_mixed, injected, one

pytest.importorskip("smolagents", reason="needs smolagents[openai]")

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent

from agent_lightning.client.agent import adapter_for
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.outbox import OUTBOX

ASK = 'Thought: ask.\n<code>\nprint(writer("x"))\n</code>'
ANSWER = 'Thought: done.\n<code>\nfinal_answer("done")\n</code>'


def team(provider: Server, **settings: Any) -> Any:
    model = OpenAIModel("gpt-x", api_base=f"{provider.url}/v1", api_key="sk-secret")
    quiet: Any = {"verbosity_level": 0}
    writer = ToolCallingAgent(tools=[], model=model, name="writer", description="Writes.", **quiet)
    return CodeAgent(tools=[], model=model, name="boss", managed_agents=[writer], **quiet, **settings)


def test_each_call_bears_the_name_of_the_agent_that_made_it(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    gateway.script = [ASK, Tool("final_answer", {"answer": "inner"}), ANSWER]
    with injected(agent, gateway) as handle:
        assert handle.components == {"boss", "writer"}
        assert agent.run("q") == "done"
    assert gateway.components == ["boss", "boss/writer", "boss"]
    assert gateway.keys == ["alr-live-1"] * 3
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == ["q"]


def test_only_the_component_of_interest_is_routed_also_when_streamed(gateway: Server, provider: Server) -> None:
    agent = team(provider, stream_outputs=True)
    provider.script = [ASK, ANSWER]
    gateway.script = [Tool("final_answer", {"answer": "inner"})]
    with injected(agent, gateway, component="writer"):
        steps = list(agent.run("q", stream=True))
    assert steps[-1].output == "done"
    assert gateway.components == ["boss/writer"]
    assert provider.keys == ["sk-secret"] * 2
    assert OUTBOX.flush(5.0)
    assert len(gateway.on("/end")) == 1


@pytest.mark.usefixtures("installed")
async def test_claimed_rollouts_do_not_mix_each_on_an_agent_of_its_own(
    gateway: Server, provider: Server, config: ClientConfig
) -> None:
    gateway.script = [Tool("final_answer", {"answer": "a"})] * 8
    model = OpenAIModel("gpt-x", api_base=f"{provider.url}/v1", api_key="sk-secret")
    agents = [ToolCallingAgent(tools=[], model=model, name="solo", verbosity_level=0) for _ in range(8)]
    assert adapter_for(agents[0]).keeps_state(agents[0]), "so that a worker runs one agent serially"
    runs = (asyncio.to_thread(asyncio.run, one(agent, number, config)) for number, agent in enumerate(agents))
    assert await asyncio.gather(*runs) == ["a"] * 8
    check_that_none_mixed(gateway)
    assert gateway.components == ["solo"] * 8


def test_detached_it_goes_where_it_went(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    with injected(agent, gateway):
        pass
    provider.script = [ANSWER]
    assert agent.run("q") == "done"
    assert gateway.calls == []
    assert not hasattr(type(agent).run, "__wrapped__")
