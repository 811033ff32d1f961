"""Held-out measurement: greedy rollouts of a split, success and mean reward, kinds of tasks reported apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from agent_lightning.records import RETRIED, Mode, Outcome, Rollout, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    success: float  # share of tasks whose reward reached success_reward
    reward: float  # mean; a failed or unrewarded rollout counts as the lowest reward that was seen, at most 0
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    split: str
    step: int
    version: int
    seen: Score  # tasks of kinds that training knows
    unseen: Score | None = None  # tasks marked "unseen_kind" in their meta
    kinds: Mapping[str, Score] = field(default_factory=dict)  # by "kind" in their meta
    failed: Mapping[str, int] = field(default_factory=dict)  # outcome -> rollouts that gave no reward
    rewards: Mapping[str, float] = field(default_factory=dict)  # by task id, for paired comparisons

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def rollouts_of(
    tasks: Sequence[Task], *, run_id: str, step: int, mode: Mode, label: str, seed: int, **limits: Any
) -> list[Rollout]:
    """One rollout a task. Ids say what they measure, so that a resumed run finds those that were finished."""
    made = []
    for task in tasks:
        rollout_id = f"{run_id}.{label}.{task.id}"
        made.append(
            Rollout(
                id=rollout_id,
                run_id=run_id,
                task=task,
                mode=mode,
                group_id=rollout_id,
                seed=seed,
                step=step,
                priority=1,
                **limits,
            )
        )
    return made


def evaluation(
    trajectories: Sequence[Trajectory], *, split: str, step: int, version: int, success_reward: float
) -> Evaluation:
    """Score finished rollouts. The agent's failures count against the policy: its user would see them. What the
    infrastructure lost says nothing of the policy and is left out."""
    lost = [item for item in trajectories if item.rollout.outcome is None or item.rollout.outcome in RETRIED]
    trajectories = [item for item in trajectories if item not in lost]
    known = {item.rollout.task.id: item.reward for item in trajectories if _counts(item) and item.reward is not None}
    lowest = min([0.0, *known.values()])
    rewards = {item.rollout.task.id: known.get(item.rollout.task.id, lowest) for item in trajectories}
    tasks = [item.rollout.task for item in trajectories]

    def score(chosen: Sequence[Task]) -> Score:
        values = [rewards[task.id] for task in chosen]
        success = float(np.mean([value >= success_reward for value in values])) if values else 0.0
        return Score(success=success, reward=float(np.mean(values)) if values else 0.0, n=len(values))

    seen = [task for task in tasks if not task.meta.get("unseen_kind")]
    unseen = [task for task in tasks if task.meta.get("unseen_kind")]
    kinds = sorted({str(task.meta["kind"]) for task in tasks if "kind" in task.meta})
    failed: dict[str, int] = {}
    for item in [*trajectories, *lost]:
        if item.rollout.task.id not in known:
            reason = str(item.rollout.outcome or item.rollout.status)
            failed[reason] = failed.get(reason, 0) + 1
    return Evaluation(
        split=split,
        step=step,
        version=version,
        seen=score(seen),
        unseen=score(unseen) if unseen else None,
        kinds={kind: score([task for task in tasks if task.meta.get("kind") == kind]) for kind in kinds},
        failed=failed,
        rewards=rewards,
    )


def _counts(item: Trajectory) -> bool:
    return item.rollout.outcome is Outcome.OK
