"""LlamaIndex: a function agent and a workflow of two that hand over; streamed by default."""

from __future__ import annotations

from typing import Any

import pytest
from framework_servers import Server, Tool
from rollouts import check_that_none_mixed, eight, injected

pytest.importorskip("llama_index.core", reason="needs llama-index-core (openai 2: an environment of its own)")
pytest.importorskip("llama_index.llms.openai", reason="needs llama-index-llms-openai")

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.llms.openai import OpenAI

from agent_lightning.client.config import ClientConfig
from agent_lightning.client.outbox import OUTBOX


def member(provider: Server, name: str, **settings: Any) -> Any:
    llm = OpenAI(model="gpt-4o", api_base=f"{provider.url}/v1", api_key="sk-secret")
    return FunctionAgent(name=name, description=f"The {name}.", system_prompt="Help.", llm=llm, **settings)


def team(provider: Server) -> Any:
    members = [member(provider, "planner", can_handoff_to=["writer"]), member(provider, "writer")]
    return AgentWorkflow(agents=members, root_agent="planner")


async def test_each_call_bears_the_name_of_the_agent_that_made_it(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    gateway.script = [Tool("handoff", {"to_agent": "writer", "reason": "r"}), "done"]
    with injected(agent, gateway) as handle:
        assert handle.components == {"planner", "writer"}
        assert str(await agent.run(user_msg="q")) == "done"
    assert gateway.components == ["planner", "writer"]
    assert gateway.keys == ["alr-live-1"] * 2
    assert all(call.body["stream"] for call in gateway.calls)
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == ["q"]
    assert OUTBOX.flush(5.0)
    assert [end["outcome"] for end in gateway.on("/end")] == ["ok"], "it ends with the handler, not with run"


async def test_only_the_component_of_interest_is_routed(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    provider.script = [Tool("handoff", {"to_agent": "writer", "reason": "r"})]
    with injected(agent, gateway, component="writer"):
        handler = agent.run(user_msg="q")
        events = [event async for event in handler.stream_events()]
        await handler
    assert events
    assert gateway.components == ["writer"]
    assert provider.keys == ["sk-secret"]


@pytest.mark.usefixtures("installed")
async def test_eight_rollouts_at_once_do_not_mix(gateway: Server, provider: Server, config: ClientConfig) -> None:
    assert await eight(member(provider, "solo"), config) == [f"gateway: question {n}" for n in range(8)]
    check_that_none_mixed(gateway)
    assert gateway.components == ["solo"] * 8
