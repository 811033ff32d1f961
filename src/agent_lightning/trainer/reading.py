"""From finished rollouts to a batch: read, build, credit, sample. The trainer's middle, without the loop around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_lightning import trajectory
from agent_lightning.credit import CreditConfig, CreditReport, assign
from agent_lightning.records import Batch, Rollout, Trajectory
from agent_lightning.store.store import Store


async def read(
    store: Store,
    rollouts: Sequence[Rollout],
    *,
    policy: str,
    weights: Mapping[str, float],
    wanted: Sequence[str],
    max_length: int | None,
) -> list[Trajectory]:
    """What the policy lived through in each of these rollouts, in their order."""
    ids = [rollout.id for rollout in rollouts]
    calls, rewards = await store.calls_of(ids), await store.rewards_of(ids)
    return [
        trajectory.build(
            rollout,
            calls.get(rollout.id, []),
            rewards.get(rollout.id, []),
            policy=policy,
            weights=weights,
            wanted=wanted,
            max_length=max_length,
        )
        for rollout in rollouts
    ]


def by_group(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for item in trajectories:
        groups.setdefault(item.rollout.group_id, []).append(item)
    return groups


def credit(trajectories: Sequence[Trajectory], config: CreditConfig) -> CreditReport:
    return assign(by_group(trajectories), config)


def batch(
    report: CreditReport, *, policy: str, max_tokens: int | None, figures: Mapping[str, float] | None = None
) -> Batch:
    """The samples of everything that was credited and not dropped; R counts every rewarded rollout."""
    samples = [
        sample
        for item in report.credited
        if item.dropped is None
        for sample in trajectory.samples(item.trajectory, item.advantages, max_tokens=max_tokens)
    ]
    return Batch(
        policy=policy,
        samples=tuple(samples),
        rollouts=report.rewarded,
        figures={**report.figures, **(figures or {})},
    )
