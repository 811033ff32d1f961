"""A rollout: one execution of the agent on a task, in one or more attempts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from agent_lightning.records.task import Task

Mode = Literal["train", "val", "test", "live"]  # train samples, val and test are greedy, live: the client decides


class RolloutStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"  # an attempt ended and none will follow; `outcome` says how
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """How an attempt ended. Only `OK` rollouts carry a reward that was earned; failures are not zeros."""

    OK = "ok"
    AGENT_ERROR = "agent_error"
    TIMEOUT = "timeout"
    NO_REWARD = "no_reward"
    NO_CALL = "no_call"
    OVER_LONG_PROMPT = "over_long_prompt"
    INFRASTRUCTURE = "infrastructure"  # retried, never counts
    LOST_WORKER = "lost_worker"  # the lease expired; retried, never counts


RETRIED = frozenset({Outcome.INFRASTRUCTURE, Outcome.LOST_WORKER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    id: str  # chosen by whoever creates it, so that creating twice is harmless
    run_id: str
    task: Task
    mode: Mode
    group_id: str  # siblings share it; a rollout of its own has its own id here
    sibling: int = 0  # position within the group
    seed: int = 0  # run seed: first part of the sampling noise key
    step: int = 0  # trainer step that queued it
    priority: int = 0  # higher first
    status: RolloutStatus = RolloutStatus.QUEUED
    outcome: Outcome | None = None
    detail: str | None = None  # why it failed, in words
    attempts: int = 0  # attempts started so far
    max_attempts: int = 3
    deadline_seconds: float = 600.0  # wall time of one attempt
    result: Any = None  # JSON rendering of what the agent returned, for display
    created_at: float = 0.0  # Unix seconds
    finished_at: float | None = None
    frozen_at: float | None = None  # a trainer read it into a batch: later rewards are stored as stale
    cleared_at: float | None = None  # its text and tokens were deleted: `gc` and `forget` do


class AttemptStatus(StrEnum):
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a rollout: claimed under a lease, has a worker, ends exactly once."""

    id: str
    rollout_id: str
    number: int  # 1 for the first
    worker: str
    status: AttemptStatus
    lease_until: float  # Unix seconds; a heartbeat moves it
    started_at: float
    ended_at: float | None = None
    outcome: Outcome | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a worker gets: the right to run one attempt until its lease ends.

    `key` opens two doors: calls (until the attempt ends) and rewards (until the reward deadline).
    """

    rollout: Rollout
    attempt: Attempt
    key: str  # secret, given once; the store keeps its SHA-256
    lease_seconds: float
