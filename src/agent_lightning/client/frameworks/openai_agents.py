"""OpenAI Agents SDK: agents are data, the runner runs them. The running agent is named where a model is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import (
    Args,
    Door,
    Entry,
    Framework,
    Kwargs,
    Part,
    as_text,
    asked_as,
    descends,
)

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

_LOOP = "agents.run_internal.run_loop"


def _asking(position: int) -> Any:
    def name(instance: Any, args: Args, kwargs: Kwargs) -> str | None:
        bindings = args[position] if len(args) > position else kwargs.get("bindings")
        found = getattr(getattr(bindings, "public_agent", None), "name", None)
        return found if isinstance(found, str) else None

    return name


def _started(instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return args[0] if args else kwargs.get("starting_agent")


class OpenAIAgents(Framework):
    name = "openai-agents"
    module = "agents"
    doors = (
        Door(module="agents.run", owner="AgentRunner", methods=("run", "run_sync", "run_streamed"), agent=_started),
    )
    parts = (
        Part(module=_LOOP, path="get_new_response", name=_asking(0)),
        Part(module=_LOOP, path="run_single_turn_streamed", name=_asking(1)),
    )

    def recognises(self, agent: Any) -> bool:
        return descends(agent, "agents", "AgentBase") and hasattr(agent, "handoffs")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        owner = sys.modules["agents.run"].AgentRunner
        asked = asked_as("input", 1)
        return (
            Entry(owner=owner, method="run", agent=_started, asked=asked),
            Entry(owner=owner, method="run_sync", agent=_started, asked=asked),
            Entry(
                owner=owner,
                method="run_streamed",
                agent=_started,
                asked=asked,
                runs_on=lambda result: getattr(result, "run_loop_task", None),
            ),
        )

    def copiers(self, agent: Any) -> tuple[str, ...]:
        return ("clone",)

    def components(self, agent: Any) -> frozenset[str]:
        return frozenset(_names(agent, set()))

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        return self._call(agent, task_input)

    async def _call(self, agent: Any, task_input: Any) -> Any:
        asked = task_input if isinstance(task_input, list) else as_text(task_input)
        return (await sys.modules["agents"].Runner.run(agent, asked)).final_output


def _names(agent: Any, seen: set[int]) -> Iterator[str]:
    """Of the agent and of those that it may hand over to, as agents or as Handoff objects."""
    if id(agent) in seen:
        return
    seen.add(id(agent))
    yield agent.name
    for other in agent.handoffs:
        if hasattr(other, "handoffs"):
            yield from _names(other, seen)
        else:
            yield other.agent_name


OPENAI_AGENTS = OpenAIAgents()
