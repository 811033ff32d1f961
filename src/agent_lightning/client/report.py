"""What this process tells about its rollouts: spans, and what was lost. Never raises, never waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from agent_lightning.client import outbox, profiling, semconv
from agent_lightning.client.calls import SeenCall
from agent_lightning.client.scope import Scope
from agent_lightning.client.semconv import Status


def lost(kind: str, by: int = 1) -> None:
    outbox.OUTBOX.lose(kind, by)


def call_span(call: SeenCall, *, started_ns: int, status: Status) -> None:
    times_ns = (started_ns, time.time_ns())

    def make() -> dict[str, Any]:
        body = call.body()
        return semconv.span(
            call.scope,
            name=f"chat {body.get('model', '')}",
            kind="call",
            span_id=os.urandom(8).hex(),
            parent_span_id=call.scope.span_id,
            times_ns=times_ns,
            status=status,
            attributes=semconv.call_attributes(call, body, getattr(call, "call_id", None)),
        )

    _queue(call.scope, make)


def rollout_span(scope: Scope, *, name: str, status: Status) -> None:
    """The span of one attempt; every call of it is a child."""
    times_ns = (scope.started_ns, time.time_ns())

    def make() -> dict[str, Any]:
        return semconv.span(
            scope,
            name=f"invoke_agent {name}",
            kind="agent",
            span_id=scope.span_id,
            parent_span_id=None,
            times_ns=times_ns,
            status=status,
            attributes=semconv.rollout_attributes(scope, name),
        )

    _queue(scope, make)


def _queue(scope: Scope, make: Callable[[], dict[str, Any]]) -> None:
    began = time.perf_counter()
    outbox.OUTBOX.put_span(scope, make)
    profiling.spent("queueing", time.perf_counter() - began)
