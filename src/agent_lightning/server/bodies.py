"""Bodies of the API, as pydantic models: what is wanted is said by the field that is wrong."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent_lightning.records import Claim, Reward
from agent_lightning.store.store import Access


class ClaimBody(BaseModel):
    worker: str = Field(min_length=1, max_length=200)
    run_id: str | None = None
    wait_seconds: float = Field(default=0.0, ge=0.0, le=60.0)


class LiveBody(BaseModel):
    rollout_id: str = Field(min_length=1, max_length=200)
    worker: str = Field(min_length=1, max_length=200)
    input: Any = None


class RewardBody(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)

    id: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1, max_length=200)
    name: str = Field(default="reward", min_length=1, max_length=200)
    value: float
    target: Literal["rollout", "step", "component"] = "rollout"
    target_id: str = ""
    source: str = "agent"
    created_at: float | None = None

    def reward(self, access: Access) -> Reward:
        return Reward(
            id=self.id,
            rollout_id=access.rollout.id,
            attempt_id=access.attempt_id,
            name=self.name,
            value=self.value,
            target=self.target,
            target_id=self.target_id,
            source=self.source,
            created_at=time.time() if self.created_at is None else self.created_at,
        )


class RewardsBody(BaseModel):
    rewards: list[RewardBody] = Field(max_length=1000)


class EndBody(BaseModel):
    outcome: Literal["ok", "agent_error", "timeout", "no_reward", "no_call", "over_long_prompt", "infrastructure"]
    detail: str | None = Field(default=None, max_length=100_000)
    result: Any = None
    rewards: list[RewardBody] = Field(default_factory=list, max_length=1000)


class TaskBody(BaseModel):
    id: str | None = None
    input: Any
    meta: dict[str, Any] = Field(default_factory=dict)


class QueueBody(BaseModel):
    run_id: str
    tasks: list[TaskBody] = Field(min_length=1, max_length=10_000)
    mode: Literal["train", "val", "test"] = "train"


def claim_json(claim: Claim, client: Mapping[str, Any]) -> dict[str, Any]:
    """`client`: the server's settings for agents, which hold where a worker has none of its own."""
    rollout, task = claim.rollout, claim.rollout.task
    return {
        "rollout_id": rollout.id,
        "attempt_id": claim.attempt.id,
        "run_id": rollout.run_id,
        "number": claim.attempt.number,
        "mode": rollout.mode,
        "key": claim.key,
        "lease_seconds": claim.lease_seconds,
        "deadline_seconds": rollout.deadline_seconds,
        "task": {"id": task.id, "input": task.input, "split": task.split, "meta": dict(task.meta)},
        "sibling": rollout.sibling,
        "group_id": rollout.group_id,
        **client,
    }
