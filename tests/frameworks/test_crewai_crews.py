"""CrewAI: a crew of two, sync and async, and a single agent."""

from __future__ import annotations

from typing import Any

import pytest
from framework_servers import Server
from rollouts import injected, one

pytest.importorskip("crewai", reason="needs crewai (openai 2: an environment of its own)")

from crewai import LLM, Agent, Crew, Task

from agent_lightning.client.config import ClientConfig


def member(provider: Server, role: str) -> Any:
    llm = LLM(model="openai/gpt-4o", base_url=f"{provider.url}/v1", api_key="sk-secret")
    return Agent(role=role, goal="help", backstory="none", llm=llm)


def crew(provider: Server) -> Any:
    members = [member(provider, "planner"), member(provider, "writer")]
    tasks = [Task(description=f"{agent.role} {{input}}", expected_output="text", agent=agent) for agent in members]
    return Crew(agents=members, tasks=tasks)


def test_each_call_bears_the_role_of_the_agent_that_made_it(gateway: Server, provider: Server) -> None:
    agent = crew(provider)
    gateway.script = ["Thought: done\nFinal Answer: planned", "Thought: done\nFinal Answer: written"]
    with injected(agent, gateway) as handle:
        assert handle.components == {"planner", "writer"}
        assert agent.kickoff(inputs={"input": "q"}).raw == "written"
    assert gateway.components == ["planner", "writer"]
    assert gateway.keys == ["alr-live-1"] * 2
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == [{"input": "q"}]


async def test_only_the_component_of_interest_is_routed_also_async(gateway: Server, provider: Server) -> None:
    agent = crew(provider)
    gateway.script = ["Thought: done\nFinal Answer: written"]
    with injected(agent, gateway, component="writer"):
        assert (await agent.akickoff(inputs={"input": "q"})).raw == "written"
    assert gateway.components == ["writer"]
    assert provider.keys == ["sk-secret"]


def test_each_item_of_kickoff_for_each_is_a_rollout(gateway: Server, provider: Server) -> None:
    agent = crew(provider)
    with injected(agent, gateway):
        agent.kickoff_for_each(inputs=[{"input": "a"}, {"input": "b"}])
    assert sorted(set(gateway.keys)) == ["alr-live-1", "alr-live-2"]


@pytest.mark.usefixtures("installed")
async def test_a_single_agent_runs_a_claimed_rollout(gateway: Server, provider: Server, config: ClientConfig) -> None:
    gateway.script = ["Thought: done\nFinal Answer: yes"]
    assert await one(member(provider, "solo"), 3, config) == "yes"
    assert (gateway.components, gateway.keys) == (["solo"], ["alr-3"])
