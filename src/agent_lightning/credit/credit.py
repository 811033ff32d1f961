"""LightningRL's high level: rewards of rollouts -> credit of steps -> token advantages. Pure.

Members of a group are rollouts of one task. A_i comes from the group (groups.py), a strategy gives step weights s_k
(weights.py), and the token advantage in step k is A_i x m_k, where m has token mean 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent_lightning.credit import figures, weights
from agent_lightning.credit.groups import group_advantages, is_flat
from agent_lightning.errors import SettingError
from agent_lightning.records import Outcome, Trajectory

Assignment = Literal["linear_decay", "exponential_decay", "uniform", "final_only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig:
    credit_assignment: str = "linear_decay"
    credit_decay: float = 0.3  # d
    credit_floor: float = 0.1  # f
    credit_window: int | None = None  # N; None: 5 where the strategy has one
    reward_normalizer: float = 0.8  # factor on every advantage
    divide_by_std: bool = True
    failure_reward: float | None = None  # of an agent that failed after a trained call; None drops it
    reward_range: tuple[float, float] | None = None  # declared, for credit.assignment_variance
    success_reward: float = 1.0  # a rollout with at least this reward is a success

    def __post_init__(self) -> None:
        known = ("linear_decay", "exponential_decay", "uniform", "final_only")
        if self.credit_assignment not in known:
            raise SettingError(f"credit_assignment is {self.credit_assignment!r}: wanted one of {', '.join(known)}")
        for name, value, low, high in (
            ("credit_decay", self.credit_decay, 0.0, 1.0),
            ("credit_floor", self.credit_floor, 0.0, 1.0),
            ("reward_normalizer", self.reward_normalizer, 1e-6, 1e6),
            ("credit_window", 5 if self.credit_window is None else self.credit_window, 1, 1_000_000),
            ("success_reward", self.success_reward, -1e12, 1e12),
        ):
            if not low <= value <= high:
                raise SettingError(f"{name} is {value}: wanted {low} to {high}")
        if self.failure_reward is not None and not math.isfinite(self.failure_reward):
            raise SettingError(f"failure_reward is {self.failure_reward}: a finite number or none is wanted")
        if self.reward_range is not None:
            low, high = self.reward_range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise SettingError(f"reward_range is [{low}, {high}]: two finite numbers, the lower first, are wanted")
        if self.credit_window is not None and self.credit_assignment != "linear_decay":
            raise SettingError(
                f"credit_window is {self.credit_window}, but credit_assignment {self.credit_assignment!r} has no "
                "window: leave it out, or choose 'linear_decay'"
            )

    def strategy(self) -> weights.StepWeights:
        match self.credit_assignment:
            case "uniform":
                return weights.uniform()
            case "final_only":
                return weights.final_only()
            case "exponential_decay":
                return weights.exponential_decay(self.credit_decay)
        window = 5 if self.credit_window is None else self.credit_window
        return weights.linear_decay(self.credit_decay, self.credit_floor, window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """One trajectory with what each of its steps deserves; the tuples have one entry a step."""

    trajectory: Trajectory
    reward: float | None  # R, or the failure reward
    baseline: float | None  # the group's mean
    advantage: float | None  # A_i
    step_weights: tuple[float, ...]  # s_k
    multipliers: tuple[float, ...]  # m_k
    credits: tuple[float, ...]  # c_k = R s_k / sum(s)
    advantages: tuple[float, ...]  # A_i x m_k: every trained token of the step gets it
    dropped: str | None = None  # reason code when it gives no sample


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditReport:
    credited: tuple[Credited, ...]
    rewarded: int  # R of the batch: rollouts with a known reward
    figures: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason -> rollouts


def assign(groups: Mapping[str, Sequence[Trajectory]], config: CreditConfig) -> CreditReport:
    """Who deserves what. `groups` maps a group id to the trajectories of its siblings."""
    strategy = config.strategy()
    credited: list[Credited] = []
    flat = 0
    for members in groups.values():
        rewards = [_reward(member, config) for member in members]
        flat += is_flat(rewards)
        known = [reward for reward in rewards if reward is not None]
        baseline = sum(known) / len(known) if known else None
        advantages = group_advantages(rewards, normalizer=config.reward_normalizer, divide_by_std=config.divide_by_std)
        credited += [
            _spread(member, reward, baseline, advantage, strategy)
            for member, reward, advantage in zip(members, rewards, advantages, strict=True)
        ]
    return CreditReport(
        credited=tuple(credited),
        rewarded=sum(item.reward is not None for item in credited),
        figures=_figures(credited, config, flat / len(groups) if groups else 0.0),
        dropped=Counter(item.dropped for item in credited if item.dropped),
    )


def _reward(trajectory: Trajectory, config: CreditConfig) -> float | None:
    """R of a rollout that counts. Failures are not zeros."""
    outcome = trajectory.rollout.outcome
    if outcome is Outcome.OK:
        return trajectory.reward
    if outcome is Outcome.AGENT_ERROR and trajectory.steps:
        return config.failure_reward
    return None


def _spread(
    trajectory: Trajectory,
    reward: float | None,
    baseline: float | None,
    advantage: float | None,
    strategy: weights.StepWeights,
) -> Credited:
    steps = trajectory.steps
    step_weights = strategy(weights.steps_before_last([step.index for step in steps]))
    ms = weights.multipliers(step_weights, [step.trained_tokens for step in steps]) if steps else []
    total = sum(step_weights)
    return Credited(
        trajectory=trajectory,
        reward=reward,
        baseline=baseline,
        advantage=advantage,
        step_weights=tuple(step_weights),
        multipliers=tuple(ms),
        credits=tuple((reward or 0.0) * s / total if total else 0.0 for s in step_weights),
        advantages=tuple((advantage or 0.0) * m for m in ms),
        dropped=_drop_reason(trajectory, reward),
    )


def _drop_reason(trajectory: Trajectory, reward: float | None) -> str | None:
    """Why a rollout gives no sample; decided after the group's statistics."""
    outcome = trajectory.rollout.outcome
    if reward is None:
        return str(outcome) if outcome not in (None, Outcome.OK) else str(Outcome.NO_REWARD)
    return None if trajectory.steps else str(Outcome.NO_CALL)


def _figures(credited: Sequence[Credited], config: CreditConfig, flat: float) -> dict[str, float]:
    rewards = [item.reward for item in credited if item.reward is not None]
    limits = figures.reward_range(rewards, config.reward_range)
    spread_by_task: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for item in credited:
        if item.reward is not None:
            spread_by_task.setdefault(item.trajectory.rollout.group_id, []).append((item.reward, item.multipliers))
    scored = [item for item in credited if item.advantage is not None and item.trajectory.steps]
    lengths = [float(sum(step.trained_tokens for step in item.trajectory.steps)) for item in scored]
    related = figures.correlation([item.advantage or 0.0 for item in scored], lengths)
    usable = sum(item.dropped is None for item in credited)
    found = {
        "group.flat": flat,
        "credit.assignment_variance": figures.assignment_variance(spread_by_task, limits),
        "trajectory.collection_rate": usable / len(credited) if credited else 0.0,
    }
    if rewards:
        mean = sum(rewards) / len(rewards)
        found["reward.mean"] = mean
        found["reward.std"] = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
        found["reward.success"] = sum(reward >= config.success_reward for reward in rewards) / len(rewards)
    if related is not None:
        found["reward.length_correlation"] = related
    return found
