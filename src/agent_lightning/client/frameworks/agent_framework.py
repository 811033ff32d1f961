"""Microsoft Agent Framework: agents and workflows. An agent is named while it runs, also as a step of a workflow."""

from __future__ import annotations

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


class AgentFramework(Framework):
    name = "agent-framework"
    module = "agent_framework"
    doors = (
        Door(module="agent_framework._agents", owner="Agent", methods=("run",)),
        Door(module="agent_framework._workflows._workflow", owner="Workflow", methods=("run",)),
    )
    parts = (Part(module="agent_framework._agents", path="Agent.run", name=own_name, hands_out_more=True),)

    def recognises(self, agent: Any) -> bool:
        return descends(agent, "agent_framework", "BaseAgent", "Workflow")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        keyword = "message" if self._is_workflow(agent) else "messages"
        return own_entries(agent, ("run",), keyword, hands_out_more=True)

    def components(self, agent: Any) -> frozenset[str]:
        if not self._is_workflow(agent):
            name = self.agent_name(agent)
            return frozenset() if name is None else frozenset({name})
        agents = (getattr(step, "agent", None) for step in agent.executors.values())
        names = (getattr(step, "name", None) for step in agents)
        return frozenset(name for name in names if name)

    def agent_name(self, agent: Any) -> str | None:
        return None if self._is_workflow(agent) else super().agent_name(agent)

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        return self._call(agent, task_input)

    async def _call(self, agent: Any, task_input: Any) -> Any:
        result = await agent.run(as_text(task_input))
        return result.get_outputs() if self._is_workflow(agent) else result.text

    def _is_workflow(self, agent: Any) -> bool:
        return descends(agent, "agent_framework", "Workflow")


AGENT_FRAMEWORK = AgentFramework()
