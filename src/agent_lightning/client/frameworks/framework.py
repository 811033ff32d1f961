"""What this package needs to know of an agent framework: one contract, one file a framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agent_lightning.client.scope import Scope


class Framework(Protocol):
    """Knows one framework. Imports it only inside its functions, and only when the agent has already done so."""

    name: str
    module: str  # top-level module: while it is not loaded, nothing of the framework can be running

    def recognises(self, agent: Any) -> bool: ...

    def entries(self, agent: Any) -> Sequence[str]:
        """Names of the methods that begin a rollout."""
        ...

    def copiers(self, agent: Any) -> Sequence[str]:
        """Names of the methods that return a changed copy of the agent, which stays injected."""
        ...

    def components(self, agent: Any) -> frozenset[str]:
        """Names of the parts; empty when the agent exposes none."""
        ...

    def agent_name(self, agent: Any) -> str | None:
        """The name that its owner gave to the agent, None when there is none."""
        ...

    def is_async(self, agent: Any) -> bool:
        """Whether `call` returns an awaitable."""
        ...

    def keeps_state(self, agent: Any) -> bool:
        """Whether two rollouts at once could mix: such an agent needs a factory to run concurrently."""
        ...

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        """Run one rollout; the result, or an awaitable of it when `is_async`."""
        ...

    def fresh(self, agent: Any) -> Any:
        """The agent as a new rollout must find it."""
        ...

    def current_component(self) -> tuple[str, ...]:
        """Path of the part that runs in this context, outermost first."""
        ...

    def current_parent(self, trace_id: str) -> str | None:
        """16 hex digits that name the running sub-agent within the trace, None at the top."""
        ...
