"""Bodies of the API, as pydantic models: what is wanted is said by the field that is wrong."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from agent_lightning.records import Claim, Reward
from agent_lightning.server.values import only_json, shown_json
from agent_lightning.store.store import Access


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("printable characters are wanted: no line ends, no control characters")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Text = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
Json = Annotated[Any, AfterValidator(only_json)]  # refused when it is not quite JSON
Shown = Annotated[Any, AfterValidator(shown_json)]  # an agent's own value: made to fit rather than refused


class _Body(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class ClaimBody(_Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"worker": "host/4711/0", "wait_seconds": 20}]})

    worker: Name
    run_id: Name | None = None
    wait_seconds: float = Field(default=0.0, ge=0.0, le=60.0)


class LiveBody(_Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"rollout_id": "live-1", "worker": "host:4711", "input": "hello"}]}
    )

    rollout_id: Name
    worker: Name
    input: Shown = None


class RewardBody(_Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "rew-1", "name": "correct", "value": 1.0}]})

    id: Name = Field(default_factory=lambda: uuid.uuid4().hex)
    name: Name = "reward"
    value: float
    target: Literal["rollout", "step", "component"] = "rollout"
    target_id: Text = ""
    source: Text = "agent"
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


class RewardsBody(_Body):
    rewards: list[RewardBody] = Field(max_length=1000)


class EndBody(_Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"outcome": "ok", "result": "42", "rewards": [{"id": "rew-1", "value": 1.0}]}]}
    )

    outcome: Literal["ok", "agent_error", "timeout", "no_reward", "no_call", "over_long_prompt", "infrastructure"]
    detail: Annotated[str | None, Field(max_length=100_000), BeforeValidator(shown_json)] = None
    result: Shown = None
    rewards: list[RewardBody] = Field(default_factory=list, max_length=1000)


class TaskBody(_Body):
    id: Name | None = None
    input: Json
    meta: Annotated[dict[str, Any], AfterValidator(only_json)] = Field(default_factory=dict)


class QueueBody(_Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"run_id": "run-1", "tasks": [{"id": "sum", "input": "1 + 1"}]}]}
    )

    run_id: Name
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
