"""A task: one input that the agent is asked to solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "val", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    id: str  # unique within a run
    input: Any  # JSON value, handed to the agent as it is
    split: Split = "train"
    meta: Mapping[str, Any] = field(default_factory=dict)  # JSON; for the reward function and reports, never the agent
