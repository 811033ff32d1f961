"""From finished rollouts to a batch: read, build, credit, sample. The trainer's middle, without the loop around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_lightning import trajectory
from agent_lightning.credit import CreditConfig, Credited, CreditReport, assign
from agent_lightning.records import Batch, Call, Reward, Rollout, Sample, Trajectory
from agent_lightning.store.store import Store
from agent_lightning.trainer.config import TrainConfig


async def read(store: Store, rollouts: Sequence[Rollout], config: TrainConfig) -> list[Trajectory]:
    """What the policy lived through in each of these rollouts, in their order."""
    ids = [rollout.id for rollout in rollouts]
    return built(rollouts, await store.calls_of(ids), await store.rewards_of(ids), config)


def built(
    rollouts: Sequence[Rollout],
    calls: Mapping[str, Sequence[Call]],
    rewards: Mapping[str, Sequence[Reward]],
    config: TrainConfig,
) -> list[Trajectory]:
    """The same from calls and rewards by rollout id."""
    return [
        trajectory.build(
            rollout,
            calls.get(rollout.id, ()),
            rewards.get(rollout.id, ()),
            policy=config.replica.policy,
            weights=config.loop.reward_weights,
            wanted=config.loop.component,
            max_length=config.loop.max_trajectory_length,
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
    report: CreditReport,
    *,
    policy: str,
    max_tokens: int | None,
    algorithm: str = "",
    figures: Mapping[str, float] | None = None,
) -> Batch:
    """The samples of everything that was credited and neither dropped nor left out; R counts every rewarded rollout."""
    samples = [
        sample
        for item in report.credited
        if item.dropped is None and item.left_out is None
        for sample in samples_of(item, max_tokens=max_tokens)
    ]
    return Batch(
        policy=policy,
        samples=tuple(samples),
        rollouts=report.rewarded,
        figures={**report.figures, **(figures or {})},
        algorithm=algorithm,
        pairs=report.pairs,
    )


def samples_of(item: Credited, *, max_tokens: int | None) -> list[Sample]:
    advantages = item.advantages or (0.0,) * len(item.trajectory.steps)
    return trajectory.samples(item.trajectory, advantages, rewards=item.rewards, max_tokens=max_tokens)
