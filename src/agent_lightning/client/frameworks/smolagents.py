"""smolagents: an agent is named while it runs; managed agents run inside the one that called them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import (
    Door,
    Entry,
    Framework,
    Part,
    as_text,
    descends,
    own_entries,
    own_name,
)

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope


class Smolagents(Framework):
    name = "smolagents"
    module = "smolagents"
    doors = (Door(module="smolagents.agents", owner="MultiStepAgent", methods=("run",)),)
    parts = (Part(module="smolagents.agents", path="MultiStepAgent.run", name=own_name),)

    def recognises(self, agent: Any) -> bool:
        return descends(agent, "smolagents", "MultiStepAgent")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        return own_entries(agent, ("run",), "task")

    def components(self, agent: Any) -> frozenset[str]:
        return frozenset(_names(agent))

    def is_async(self, agent: Any) -> bool:
        return False

    def keeps_state(self, agent: Any) -> bool:
        return True  # its memory and its Python executor; a new run begins with an empty memory

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        return agent.run(as_text(task_input))


def _names(agent: Any) -> Iterator[str]:
    if isinstance(agent.name, str) and agent.name:
        yield agent.name
    for managed in agent.managed_agents.values():
        yield from _names(managed)


SMOLAGENTS = Smolagents()
