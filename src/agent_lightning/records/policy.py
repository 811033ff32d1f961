"""A policy: the model being trained, and the numbered states of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    run_id: str
    policy: str
    version: int  # 0 is the base model; version v + 1 is the outcome of update v
    parent: int | None
    checkpoint: str | None  # folder, relative to the run's; None when it was never saved
    metrics: Mapping[str, float] = field(default_factory=dict)
    created_at: float = 0.0  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one optimizer step did. `figures` holds metrics by their declared names."""

    version: int  # the version that the step made; unchanged when it was skipped
    applied: bool
    reason: str | None = None  # why it was skipped: "nan", "no samples", ...
    figures: Mapping[str, float] = field(default_factory=dict)
