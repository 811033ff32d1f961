"""Pydantic AI: agents say by a context variable of their own which one runs; no patch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import Door, Entry, Framework, as_text, descends, own_entries

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

_ENTRIES = ("run", "run_sync", "run_stream", "run_stream_sync", "run_stream_events", "iter")


class PydanticAI(Framework):
    name = "pydantic-ai"
    module = "pydantic_ai"
    doors = (
        Door(module="pydantic_ai.agent.abstract", owner="AbstractAgent", methods=_ENTRIES[:-1]),
        Door(module="pydantic_ai.agent", owner="Agent", methods=_ENTRIES[-1:]),
    )

    def recognises(self, agent: Any) -> bool:
        return descends(agent, "pydantic_ai", "AbstractAgent")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        return own_entries(agent, _ENTRIES, "user_prompt", hands_out_more=True)

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        return self._call(agent, task_input)

    async def _call(self, agent: Any, task_input: Any) -> Any:
        return (await agent.run(as_text(task_input))).output

    def current_component(self) -> tuple[str, ...]:
        running = sys.modules.get("pydantic_ai._run_context")
        context = None if running is None else running.get_current_run_context()
        name = getattr(getattr(context, "agent", None), "name", None)
        return (name,) if isinstance(name, str) and name else ()


PYDANTIC_AI = PydanticAI()
