"""What this package needs to know of an agent framework: one contract, one file a framework."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import Future

    from agent_lightning.client.scope import Scope

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


def _itself(instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return instance


def _first(args: Args, kwargs: Kwargs) -> Any:
    return args[0] if args else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A method through which a rollout begins."""

    owner: type
    method: str
    agent: Callable[[Any, Args, Kwargs], Any] = _itself  # of (instance, args, kwargs): which agent is run
    asked: Callable[[Args, Kwargs], Any] = _first  # what it is asked
    hands_out_more: bool = False  # it may return an async context manager, or what is awaited or iterated later
    runs_on: Callable[[Any], Future[Any] | None] | None = None  # of the result: what ends later, None: nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A function of the framework's that runs one named part of an agent."""

    module: str  # that defines it
    path: str  # of the function in the module: "Class.method" or "function"
    name: Callable[[Any, Args, Kwargs], str | None]  # of (instance, args, kwargs)
    hands_out_more: bool = False  # as of an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Methods of a framework's class through which any agent of it is run; where nobody names an agent to inject."""

    module: str
    owner: str
    methods: tuple[str, ...]
    agent: Callable[[Any, Args, Kwargs], Any] = _itself


class Framework:
    """Knows one framework. Imports it only inside its methods, and only when the agent has already done so."""

    name: str
    module: str  # top-level module: while it is not loaded, nothing of the framework can be running
    parts: Sequence[Part] = ()  # where a named part begins, for frameworks that do not say which one runs

    doors: Sequence[Door] = ()

    def recognises(self, agent: Any) -> bool:
        raise TypeError(f"{type(self).__name__} must say which agents it knows")

    def entries(self, agent: Any) -> Sequence[Entry]:
        return ()

    def copiers(self, agent: Any) -> Sequence[str]:
        """Names of the methods that return a changed copy of the agent, which stays injected."""
        return ()

    def components(self, agent: Any) -> frozenset[str]:
        """Names of the parts; empty when the agent exposes none."""
        return frozenset()

    def agent_name(self, agent: Any) -> str | None:
        """The name that its owner gave to the agent, None when there is none."""
        name = getattr(agent, "name", None)
        return name if isinstance(name, str) and name else None

    def is_async(self, agent: Any) -> bool:
        """Whether `call` returns an awaitable."""
        return True

    def keeps_state(self, agent: Any) -> bool:
        """Whether two rollouts at once could mix: such an agent needs a factory to run concurrently."""
        return False

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        """Run one rollout; what the agent answers, or an awaitable of it when `is_async`."""
        raise TypeError(f"{type(self).__name__} must say how its agents are run")

    def fresh(self, agent: Any) -> Any:
        """The agent as a new rollout must find it."""
        return agent

    def current_component(self) -> tuple[str, ...]:
        """Path of the part that runs in this context, outermost first."""
        return ()

    def current_parent(self, trace_id: str) -> str | None:
        """16 hex digits that name the running sub-agent within the trace, None at the top."""
        return None


def own_entries(agent: Any, names: Sequence[str], keyword: str, *, hands_out_more: bool = False) -> tuple[Entry, ...]:
    """Entries that are methods of the agent's own class; `keyword` is the name of the argument that asks."""
    owner, asked = type(agent), asked_as(keyword)
    return tuple(
        Entry(owner=owner, method=name, asked=asked, hands_out_more=hands_out_more)
        for name in names
        if hasattr(owner, name)
    )


def asked_as(keyword: str, position: int = 0) -> Callable[[Args, Kwargs], Any]:
    """What the agent is asked, given by position or by name."""

    def asked(args: Args, kwargs: Kwargs) -> Any:
        return args[position] if len(args) > position else kwargs.get(keyword)

    return asked


def own_name(instance: Any, args: Args, kwargs: Kwargs) -> str | None:
    name = getattr(instance, "name", None)
    return name if isinstance(name, str) and name else None


def descends(agent: Any, package: str, *names: str) -> bool:
    """Whether one of these classes of a package is among the agent's; asks no module that is not loaded."""
    return any(
        base.__name__ in names and f"{base.__module__}.".startswith(f"{package}.") for base in type(agent).__mro__
    )


def as_text(task_input: Any) -> str:
    """A question for a framework that takes text only."""
    return task_input if isinstance(task_input, str) else json.dumps(task_input, default=str)
