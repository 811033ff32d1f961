"""Microsoft Agent Framework: an agent and a workflow of two, whole and streamed, over responses and chat."""

from __future__ import annotations

from typing import Any

import pytest
from framework_servers import Server, Tool
from rollouts import check_that_none_mixed, eight, injected

pytest.importorskip("agent_framework", reason="needs agent-framework-core and agent-framework-openai")
pytest.importorskip("agent_framework_openai", reason="needs agent-framework-openai")

from agent_framework import Agent, WorkflowBuilder
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient

from agent_lightning.client.config import ClientConfig
from agent_lightning.client.outbox import OUTBOX


def member(provider: Server, name: str, client_class: Any = OpenAIChatClient, **settings: Any) -> Any:
    client = client_class(model="gpt-x", api_key="sk-secret", base_url=f"{provider.url}/v1")
    return Agent(client, "Help.", name=name, **settings)


def workflow(provider: Server) -> Any:
    planner, writer = member(provider, "planner"), member(provider, "writer")
    return WorkflowBuilder(start_executor=planner).add_edge(planner, writer).build()


@pytest.mark.parametrize("client_class", [OpenAIChatClient, OpenAIChatCompletionClient])
async def test_each_call_bears_the_name_of_the_agent_that_made_it(
    gateway: Server, provider: Server, client_class: Any
) -> None:
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"looked up {word}"

    agent = member(provider, "solo", client_class, tools=[look_up], default_options={"store": False})
    gateway.script = [Tool("look_up", {"word": "a"}), "done"]
    with injected(agent, gateway):
        assert (await agent.run("q")).text == "done"
    assert gateway.components == ["solo", "solo"]
    assert gateway.keys == ["alr-live-1"] * 2
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == ["q"]


async def test_a_streamed_run_is_one_rollout_to_its_end(gateway: Server, provider: Server) -> None:
    agent = member(provider, "solo")
    with injected(agent, gateway):
        stream = agent.run("q", stream=True)
        assert "gateway: q" in [update.text async for update in stream]
        assert (await stream.get_final_response()).text == "gateway: q"
    assert gateway.components == ["solo"]
    assert OUTBOX.flush(5.0)
    assert [end["outcome"] for end in gateway.on("/end")] == ["ok"]


async def test_a_workflow_is_one_rollout_and_its_agents_are_components(gateway: Server, provider: Server) -> None:
    agent = workflow(provider)
    with injected(agent, gateway) as handle:
        assert handle.components == {"planner", "writer"}
        await agent.run("q")
    assert gateway.components == ["planner", "writer"]
    assert gateway.keys == ["alr-live-1"] * 2


async def test_only_the_component_of_interest_is_routed(gateway: Server, provider: Server) -> None:
    agent = workflow(provider)
    with injected(agent, gateway, component="writer"):
        await agent.run("q")
    assert gateway.components == ["writer"]
    assert provider.keys == ["sk-secret"]


@pytest.mark.usefixtures("installed")
async def test_eight_rollouts_at_once_do_not_mix(gateway: Server, provider: Server, config: ClientConfig) -> None:
    assert await eight(member(provider, "solo"), config) == [f"gateway: question {n}" for n in range(8)]
    check_that_none_mixed(gateway)


async def test_detached_it_goes_where_it_went(gateway: Server, provider: Server) -> None:
    agent = member(provider, "solo")
    with injected(agent, gateway):
        pass
    assert (await agent.run("q")).text == "provider: q"
