"""Trajectories and calls made by hand, for tests of pure code."""

from __future__ import annotations

from typing import Any

from agent_lightning.records import (
    Call,
    CallStatus,
    Outcome,
    Rollout,
    RolloutStatus,
    Task,
    Trajectory,
    Transition,
    nats,
    token_ids,
)


def rollout(name: str, *, group: str = "g", outcome: Outcome = Outcome.OK, **given: Any) -> Rollout:
    return Rollout(
        id=name,
        run_id="run",
        task=Task(id=group, input="?"),
        mode="train",
        group_id=group,
        status=RolloutStatus.FINISHED,
        outcome=outcome,
        **given,
    )


def lived(
    name: str, reward: float | None, lengths: list[int], *, group: str = "g", outcome: Outcome = Outcome.OK
) -> Trajectory:
    """A trajectory whose steps sampled so many tokens each, one chain."""
    steps: list[Transition] = []
    state = token_ids([1, 2])
    for place, length in enumerate(lengths):
        action = token_ids(range(10, 10 + length))
        steps.append(
            Transition(
                call_id=f"{name}-{place}",
                component="solver",
                order=place,
                index=place,
                parent_call_id=f"{name}-{place - 1}" if place else None,
                state=state,
                action=action,
                logprobs=nats([-1.0] * length),
                reward=0.0,
                next_state=None,
                version_from=0,
                version_to=0,
                temperature=1.0,
            )
        )
        state = state + action + token_ids([3])
    return Trajectory(
        rollout=rollout(name, group=group, outcome=outcome),
        policy="default",
        reward=reward,
        parts=(),
        steps=tuple(steps),
    )


def call(
    name: str, *, order: int, parent: Call | None = None, suffix: list[int], sampled: list[int], **given: Any
) -> Call:
    """A completed call; its prompt extends its parent's tokens."""
    offset = 0 if parent is None else parent.prompt_offset + len(parent.suffix_ids) + len(parent.sampled_ids)
    fields: dict[str, Any] = {
        "id": name,
        "attempt_id": "attempt",
        "rollout_id": "rollout",
        "policy": "default",
        "component": "solver",
        "dialect": "chat",
        "order": order,
        "index": order,
        "parent_call_id": parent.id if parent else None,
        "prompt_offset": offset,
        "suffix_ids": token_ids(suffix),
        "sampled_ids": token_ids(sampled),
        "logprobs": nats([-0.5] * len(sampled)),
        "version_from": 1,
        "version_to": 1,
        "status": CallStatus.COMPLETED,
        "finish_reason": "stop",
        "request": {},
        "response": {},
        "request_hash": "",
        "requested_sampling": {},
        "used_sampling": {"temperature": 1.0},
    }
    return Call(**{**fields, **given})
