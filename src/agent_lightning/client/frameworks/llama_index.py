"""LlamaIndex: function, ReAct and code agents, and workflows of them. An agent is named while it takes a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import (
    Door,
    Entry,
    Framework,
    Part,
    as_text,
    asked_as,
    descends,
    own_name,
)

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

_AGENTS = {"function_agent": "FunctionAgent", "react_agent": "ReActAgent", "codeact_agent": "CodeActAgent"}


class LlamaIndex(Framework):
    name = "llama-index"
    module = "llama_index"
    doors = (
        Door(module="llama_index.core.agent.workflow.base_agent", owner="BaseWorkflowAgent", methods=("run",)),
        Door(module="llama_index.core.agent.workflow.multi_agent_workflow", owner="AgentWorkflow", methods=("run",)),
    )
    parts = tuple(
        Part(module=f"llama_index.core.agent.workflow.{module}", path=f"{owner}.take_step", name=own_name)
        for module, owner in _AGENTS.items()
    )

    def recognises(self, agent: Any) -> bool:
        return descends(agent, "llama_index", "BaseWorkflowAgent", "AgentWorkflow")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        """`run` hands out a handler at once; the rollout ends with what it waits for."""
        return (
            Entry(
                owner=type(agent),
                method="run",
                asked=asked_as("user_msg"),
                runs_on=lambda handler: getattr(handler, "_result_task", None),
            ),
        )

    def components(self, agent: Any) -> frozenset[str]:
        return frozenset(agent.agents) if self._is_team(agent) else frozenset({agent.name})

    def agent_name(self, agent: Any) -> str | None:
        return None if self._is_team(agent) else super().agent_name(agent)

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        return self._call(agent, task_input)

    async def _call(self, agent: Any, task_input: Any) -> Any:
        return str(await agent.run(user_msg=as_text(task_input)))

    def _is_team(self, agent: Any) -> bool:
        return descends(agent, "llama_index", "AgentWorkflow")


LLAMA_INDEX = LlamaIndex()
