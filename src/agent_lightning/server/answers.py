"""What the API answers, for OpenAPI and for whoever reads it. Fields that are not declared here may come as well."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class ErrorDetail(_Answer):
    message: str  # what came, what was wanted, what to do
    type: str
    param: str | None = None  # the field that is wrong
    code: str | None = None


class ErrorAnswer(_Answer):
    error: ErrorDetail


class TaskSent(_Answer):
    id: str
    input: Any
    split: str
    meta: dict[str, Any]


class ClaimAnswer(_Answer):
    rollout_id: str
    attempt_id: str
    run_id: str
    number: int  # of the attempt, 1 for the first
    mode: str
    key: str  # opens the calls, rewards and spans of this attempt alone; given once
    lease_seconds: float
    deadline_seconds: float
    task: TaskSent
    sibling: int
    group_id: str


class LeaseAnswer(_Answer):
    lease_until: float  # Unix seconds


class EndAnswer(_Answer):
    status: str  # of the rollout
    outcome: str | None


class RewardsAnswer(_Answer):
    stored: int
    stale: int  # of these, came too late to count


class QueueAnswer(_Answer):
    queued: int  # those that are new
    ids: list[str]


class RewardAnswer(_Answer):
    id: str
    name: str
    value: float
    target: str
    target_id: str
    source: str
    created_at: float
    stale: bool


class RewardListAnswer(_Answer):
    rewards: list[RewardAnswer]


class RolloutAnswer(_Answer):
    id: str
    run_id: str
    mode: str
    status: str
    outcome: str | None
    rewards: list[RewardAnswer]


class RunAnswer(_Answer):
    id: str
    settings: dict[str, Any]
    created_at: float
    ended_at: float | None


class RunsAnswer(_Answer):
    runs: list[RunAnswer]


class EventAnswer(_Answer):
    kind: str
    step: int
    body: dict[str, Any]
    created_at: float


class EventsAnswer(_Answer):
    events: list[EventAnswer]


class TaskAnswer(_Answer):
    id: str
    mode: str
    input: Any
    meta: dict[str, Any]
    rollouts: int
    finished: int


class TasksAnswer(_Answer):
    tasks: list[TaskAnswer]
    next: str | None  # `after` of the next page; None: this was the last


class PolicyAnswer(_Answer):
    run_id: str
    policy: str
    version: int
    parent: int | None
    checkpoint: str | None
    metrics: dict[str, float | None]
    created_at: float


class PoliciesAnswer(_Answer):
    policies: list[PolicyAnswer]


class MetricAnswer(_Answer):
    step: int
    created_at: float
    values: dict[str, float | None]


class MetricsAnswer(_Answer):
    metrics: list[MetricAnswer]


class HealthAnswer(_Answer):
    status: str
    version: str
    run: str


class ReadyAnswer(_Answer):
    status: str  # "ready", or "not ready"
    reasons: list[str]  # why it is not
    in_flight: int
    load: float
