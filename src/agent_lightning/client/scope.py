"""Which rollout this code runs for: one context variable, and one mutable record a rollout that child contexts share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from agent_lightning.client.component import EVERYTHING, Selector
from agent_lightning.client.config import ClientConfig

_TOLD = ("id", "input", "split")


class RolloutRecord:
    """What happened in one rollout so far. Shared by all threads and tasks of the rollout."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a generator that is collected may count in the midst of counting
        self.calls_seen = 0  # LLM calls that were intercepted, trained or not
        self.calls_sent = 0  # logical calls that went to the training server
        self.calls_passed = 0  # calls of other components, left to their provider
        self.retries = 0  # sends beyond the first, by us or by the SDK
        self.timeouts = 0  # calls that hit max_step_timeout
        self.failures = 0  # calls that the training server could not serve
        self.rewards_sent = 0  # rewards that the server acknowledged
        self.lost: dict[str, int] = {}  # by kind
        self.warnings: list[str] = []  # what makes this rollout suspect, each with its remedy
        self.last_call_id: str | None = None
        self._open_rewards: dict[str, dict[str, Any]] = {}

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + by)

    def lose(self, kind: str, by: int = 1) -> None:
        with self._lock:
            self.lost[kind] = self.lost.get(kind, 0) + by

    def warn(self, warning: str) -> None:
        with self._lock:
            self.warnings.append(warning)

    def begin_call(self, call_id: str) -> None:
        with self._lock:
            self.calls_seen += 1
            self.calls_sent += 1
            self.last_call_id = call_id

    def add_reward(self, reward: dict[str, Any]) -> None:
        with self._lock:
            self._open_rewards[reward["id"]] = reward

    def acknowledge(self, reward_ids: list[str]) -> None:
        with self._lock:
            for reward_id in reward_ids:
                if self._open_rewards.pop(reward_id, None) is not None:
                    self.rewards_sent += 1

    def open_rewards(self) -> list[dict[str, Any]]:
        """Rewards that the server has not acknowledged: send them with the end of the attempt. Twice is harmless."""
        with self._lock:
            return list(self._open_rewards.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The rollout that the running code belongs to."""

    rollout_id: str
    attempt_id: str
    key: str | None = field(repr=False)  # rollout key; None: nothing is routed or recorded
    mode: str  # train, val, test or live
    config: ClientConfig
    record: RolloutRecord = field(default_factory=RolloutRecord, repr=False)
    task: Mapping[str, Any] = field(default_factory=dict, repr=False)  # see task_for_agent
    deadline: float | None = None  # time.monotonic() at which the attempt is over
    selector: Selector | None = None  # None: whoever enters next decides; nobody: everything is trained
    component: tuple[str, ...] = ()  # names of the parts entered so far, outermost first
    said: tuple[str, ...] = ()  # what the frameworks said of the running part when the last of them was entered
    trace_id: str = field(default_factory=lambda: os.urandom(16).hex())
    span_id: str = field(default_factory=lambda: os.urandom(8).hex())
    started_ns: int = field(default_factory=time.time_ns)

    @property
    def routed(self) -> bool:
        return self.key is not None

    @property
    def choice(self) -> Selector:
        return EVERYTHING if self.selector is None else self.selector

    def seconds_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()

    def inside(self, *, selector: Selector | None, component: tuple[str, ...], said: tuple[str, ...]) -> Scope:
        """This scope as seen inside a part whose whole path is `component`."""
        if selector is self.selector and component == self.component and said == self.said:
            return self
        return replace(self, selector=selector, component=component, said=said)


def task_for_agent(task: Mapping[str, Any] | None) -> dict[str, Any]:
    """What an agent may know of its task: not `meta`, which holds what it is judged by."""
    return {name: task[name] for name in _TOLD if name in task} if task else {}


class _Outside:
    """Set where code must not be taken for part of a rollout."""


_OUTSIDE = _Outside()
_CURRENT: ContextVar[Scope | _Outside | None] = ContextVar("agent_lightning_scope", default=None)
_active: dict[str, Scope] = {}
_active_lock = threading.Lock()
_process_scope: Callable[[], Scope] | None = None


def current() -> Scope | None:
    """The scope of this context; in a thread without one, the only claimed rollout of the process, if it is alone."""
    scope = _CURRENT.get()
    if scope is None:
        return _lonely() if _active else None
    return scope if isinstance(scope, Scope) else None


def calling() -> Scope | None:
    """The scope of an LLM call made here; outside of every rollout that of the whole process, if it has one."""
    scope = current()
    if scope is None and _process_scope is not None and _CURRENT.get() is None:
        return _process_scope()
    return scope


def belong_to_process(begin: Callable[[], Scope] | None) -> None:
    """From now on a call outside of every rollout belongs to the one that `begin` gives."""
    global _process_scope
    _process_scope = begin


def in_context() -> Scope | None:
    """The scope of this context, without the fallback."""
    scope = _CURRENT.get()
    return scope if isinstance(scope, Scope) else None


@contextmanager
def enter(scope: Scope) -> Iterator[RolloutRecord]:
    """Run the body for `scope`. Nests."""
    token = _CURRENT.set(scope)
    try:
        yield scope.record
    finally:
        # A coroutine may be closed from another context, in which the variable was never set.
        with suppress(ValueError):
            _CURRENT.reset(token)


@contextmanager
def outside() -> Iterator[None]:
    """Run the body for no rollout at all: reward functions and judges, whose calls must reach their own provider."""
    token = _CURRENT.set(_OUTSIDE)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def active(scope: Scope) -> Iterator[RolloutRecord]:
    """Enter a claimed rollout and let threads that know no scope fall back to it while it is the only one."""
    with _active_lock:
        _active[scope.attempt_id] = scope
    try:
        with enter(scope) as record:
            yield record
    finally:
        with _active_lock:
            _active.pop(scope.attempt_id, None)


def _lonely() -> Scope | None:
    # A queue worker that was started before the rollout. The main thread is never one: a judge may run there.
    if threading.current_thread() is threading.main_thread():
        return None
    with _active_lock:
        return next(iter(_active.values())) if len(_active) == 1 else None


def _forget_after_fork() -> None:
    global _active_lock
    _active_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
