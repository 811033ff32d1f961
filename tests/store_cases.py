"""Records and a clock for the store's tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from agent_lightning.records import Call, CallStatus, Claim, Reward, Rollout, Task, nats, token_ids


@dataclass
class StillClock:
    """Time stands until a test moves it."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def make_rollout(rollout_id: str = "r1", **given: Any) -> Rollout:
    fields: dict[str, Any] = {
        "id": rollout_id,
        "run_id": "run",
        "task": Task(id=f"task-{rollout_id}", input={"q": "17 * 23"}, meta={"answer": 391}),
        "mode": "train",
        "group_id": rollout_id,
    }
    return Rollout(**{**fields, **given})


def make_call(claim: Claim, call_id: str = "c1", **given: Any) -> Call:
    fields: dict[str, Any] = {
        "id": call_id,
        "attempt_id": claim.attempt.id,
        "rollout_id": claim.rollout.id,
        "policy": "policy",
        "component": "agent/solver",
        "dialect": "chat",
        "order": 99,
        "index": 99,
        "parent_call_id": None,
        "prompt_offset": 0,
        "suffix_ids": token_ids(),
        "sampled_ids": token_ids(),
        "logprobs": nats(),
        "version_from": 0,
        "version_to": 0,
        "status": CallStatus.RUNNING,
        "finish_reason": None,
        "request": {"messages": [{"role": "user", "content": f"ask {call_id}"}]},
        "response": None,
        "request_hash": f"hash-{call_id}",
        "requested_sampling": {"temperature": 0.0},
        "used_sampling": {"temperature": 1.0},
    }
    return Call(**{**fields, **given})


def answered(call: Call, **given: Any) -> Call:
    fields: dict[str, Any] = {
        "suffix_ids": token_ids([1, 2, 3]),
        "sampled_ids": token_ids([4, 5]),
        "logprobs": nats([-0.25, -1.5]),
        "version_from": 3,
        "version_to": 4,
        "response": {"choices": [{"message": {"content": "391"}}]},
        "finish_reason": "stop",
    }
    return replace(call, **{**fields, **given})


def make_reward(claim: Claim, reward_id: str = "w1", value: float = 1.0, **given: Any) -> Reward:
    fields: dict[str, Any] = {"name": "reward", "value": value}
    fields |= {"rollout_id": claim.rollout.id, "attempt_id": claim.attempt.id}
    return Reward(id=reward_id, **{**fields, **given})
