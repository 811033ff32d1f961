"""Plain Python: a function, or an object that is called or has run, invoke and the like; whatever SDK it uses inside."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import Entry, Framework
from agent_lightning.errors import AgentError

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

# In the order in which `call` prefers them.
ENTRIES = ("run", "invoke", "__call__", "arun", "ainvoke", "run_sync", "kickoff", "stream", "astream")
_CALLED = ("run", "invoke", "__call__", "run_sync", "kickoff", "arun", "ainvoke")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_COPIERS = ("with_config", "model_copy", "copy")


class Plain(Framework):
    name = "plain"
    module = "builtins"

    def recognises(self, agent: Any) -> bool:
        return callable(agent) or bool(self.entries(agent))

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        return tuple(Entry(owner=type(agent), method=name) for name in ENTRIES if _has(agent, name))

    def copiers(self, agent: Any) -> tuple[str, ...]:
        return tuple(name for name in _COPIERS if _has(agent, name))

    def is_async(self, agent: Any) -> bool:
        return inspect.iscoroutinefunction(self._entry(agent))

    def keeps_state(self, agent: Any) -> bool:
        return not isinstance(agent, _FUNCTIONS)

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        return self._entry(agent)(task_input)

    def _entry(self, agent: Any) -> Any:
        if isinstance(agent, (*_FUNCTIONS, types.MethodType)):
            return agent
        for name in _CALLED:
            if _has(agent, name):
                return getattr(agent, name)
        raise AgentError(
            f"{type(agent).__name__!r} cannot be run: a function, a compiled graph, or an object with one of "
            f"{', '.join(_CALLED)} is wanted"
        )


def _has(agent: Any, name: str) -> bool:
    return any(callable(vars(base).get(name)) for base in type(agent).__mro__)  # getattr would ask the metaclass too


PLAIN = Plain()
