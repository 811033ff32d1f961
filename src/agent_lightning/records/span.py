"""An OpenTelemetry span as we keep it. Spans are for display and reward binding; trajectories come from calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    trace_id: str  # 32 hex digits
    span_id: str  # 16 hex digits
    parent_span_id: str | None
    rollout_id: str | None
    attempt_id: str | None
    name: str
    kind: str  # agent, tool, node, call
    start_ns: int  # Unix nanoseconds
    end_ns: int
    call_id: str | None = None
    component: str = ""
    status: str = "unset"  # unset, ok, error
    attributes: Mapping[str, Any] = field(default_factory=dict)
