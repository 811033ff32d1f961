"""LightningRL's high level: rewards of rollouts -> credit of steps -> token advantages. Pure.

Members of a group are rollouts of one task. The algorithm's rule (rules.py) makes A_i of the rewards of the group, a
strategy gives step weights s_k (weights.py), and the token advantage in step k is A_i x m_k, where m has token mean 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agent_lightning.credit import figures, weights
from agent_lightning.credit.groups import is_flat
from agent_lightning.credit.pairs import pairs_of
from agent_lightning.credit.rules import RULES, Rule
from agent_lightning.errors import SettingError
from agent_lightning.records import Outcome, Pair, Trajectory

Assignment = Literal["linear_decay", "exponential_decay", "uniform", "final_only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig:
    advantage: str = "group"  # the algorithm's rule, a name in RULES
    credit_assignment: str = "linear_decay"
    credit_decay: float = 0.3  # d
    credit_floor: float = 0.1  # f
    credit_window: int | None = None  # N; None: 5 where the strategy has one
    reward_normalizer: float = 0.8  # factor on every advantage
    divide_by_std: bool = True
    failure_reward: float | None = None  # of an agent that failed after a trained call; None drops it
    reward_range: tuple[float, float] | None = None  # declared, for credit.assignment_variance
    success_reward: float = 1.0  # a rollout with at least this reward is a success
    gae_over: Literal["call", "trajectory"] = "call"  # what a critic takes for one episode
    overlong_tokens: int | None = None  # an answer this long is fully punished; None: none is
    overlong_buffer: int = 128  # tokens before it over which the punishment grows
    overlong_penalty: float = 1.0  # taken off the reward
    pair_margin: float = 0.0  # least difference of rewards in a preference pair
    pair_level: Literal["trajectory", "step"] = "trajectory"
    pairs_per_group: int = 4  # those with the widest margins
    sft_best: int = 1  # siblings of a group that are imitated

    def __post_init__(self) -> None:
        known = ("linear_decay", "exponential_decay", "uniform", "final_only")
        if self.credit_assignment not in known:
            raise SettingError(f"credit_assignment is {self.credit_assignment!r}: wanted one of {', '.join(known)}")
        assert self.advantage in RULES, f"no rule is called {self.advantage!r}"
        for name, value, low, high in (
            ("credit_decay", self.credit_decay, 0.0, 1.0),
            ("credit_floor", self.credit_floor, 0.0, 1.0),
            ("reward_normalizer", self.reward_normalizer, 1e-6, 1e6),
            ("credit_window", 5 if self.credit_window is None else self.credit_window, 1, 1_000_000),
            ("success_reward", self.success_reward, -1e12, 1e12),
            ("overlong_tokens", self.overlong_tokens or 1, 1, 1 << 30),
            ("overlong_buffer", self.overlong_buffer, 1, self.overlong_tokens or 1 << 30),
            ("overlong_penalty", self.overlong_penalty, 0.0, 1e6),
            ("pair_margin", self.pair_margin, 0.0, 1e12),
            ("pairs_per_group", self.pairs_per_group, 1, 1_000_000),
            ("sft_best", self.sft_best, 1, 1_000_000),
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

    @property
    def rule(self) -> Rule:
        return RULES[self.advantage]

    def strategy(self) -> weights.StepWeights:
        if not self.rule.spreads or (self.rule.goes_to == "rewards" and self.gae_over == "trajectory"):
            return weights.uniform()
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
    advantage: float | None  # A_i; None where siblings are not compared
    step_weights: tuple[float, ...]  # s_k
    multipliers: tuple[float, ...]  # m_k
    credits: tuple[float, ...]  # c_k = R s_k / sum(s)
    advantages: tuple[float, ...]  # A_i x m_k: every trained token of the step gets it; empty where rewards are given
    rewards: tuple[float, ...] = ()  # what a critic is told that each step is paid
    dropped: str | None = None  # reason code when it gives no sample
    left_out: str | None = None  # why the algorithm takes nothing from a rollout that counts, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditReport:
    credited: tuple[Credited, ...]
    rewarded: int  # R of the batch: rollouts with a known reward
    pairs: tuple[Pair, ...] = ()  # for algorithms that learn from preferences
    figures: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason -> rollouts


def assign(groups: Mapping[str, Sequence[Trajectory]], config: CreditConfig) -> CreditReport:
    """Who deserves what. `groups` maps a group id to the trajectories of its siblings."""
    credited: list[Credited] = []
    pairs: list[Pair] = []
    flat = 0
    for members in groups.values():
        rewards = [_reward(member, config) for member in members]
        flat += is_flat(rewards)
        shaped = [_shaped(*item, config) for item in zip(members, rewards, strict=True)]
        known = [reward for reward in shaped if reward is not None]
        baseline = sum(known) / len(known) if known else None
        worth = config.rule.worth(shaped, config)
        found = [_spread(*item, baseline, config) for item in zip(members, rewards, worth, strict=True)]
        if config.rule.goes_to == "pairs":
            usable = zip(members, shaped, found, strict=True)
            own = pairs_of([(m, r) for m, r, item in usable if r is not None and item.dropped is None], config)
            pairs += own
            found = _paired(found, own)
        credited += found
    return CreditReport(
        credited=tuple(credited),
        rewarded=sum(item.reward is not None for item in credited),
        pairs=tuple(pairs),
        figures=_figures(credited, config, flat / len(groups) if groups else 0.0),
        dropped=Counter(item.dropped for item in credited if item.dropped),
    )


def _shaped(trajectory: Trajectory, reward: float | None, config: CreditConfig) -> float | None:
    """R less the punishment for the longest answer of the rollout.

    Soft overlong punishment (DAPO, Yu et al. 2025, arXiv:2503.14476, equation 13), on each call's answer.
    """
    if reward is None or config.overlong_tokens is None or not trajectory.steps:
        return reward
    over = max(len(step.action) for step in trajectory.steps) - (config.overlong_tokens - config.overlong_buffer)
    return reward - config.overlong_penalty * min(1.0, max(0.0, over / config.overlong_buffer))


def _paired(credited: Sequence[Credited], pairs: Sequence[Pair]) -> list[Credited]:
    """Rollouts that are in a pair are no longer left out."""
    inside = {rollout for pair in pairs for rollout in (pair.chosen, pair.rejected)}
    return [replace(item, left_out=None) if item.trajectory.rollout.id in inside else item for item in credited]


def _reward(trajectory: Trajectory, config: CreditConfig) -> float | None:
    """R of a rollout that counts. Failures are not zeros."""
    outcome = trajectory.rollout.outcome
    if outcome is Outcome.OK:
        return trajectory.reward
    if outcome is Outcome.AGENT_ERROR and trajectory.steps:
        return config.failure_reward
    return None


def _spread(
    trajectory: Trajectory, reward: float | None, worth: float | None, baseline: float | None, config: CreditConfig
) -> Credited:
    steps, rule = trajectory.steps, config.rule
    step_weights = config.strategy()(weights.steps_before_last([step.index for step in steps]))
    ms = weights.multipliers(step_weights, [step.trained_tokens for step in steps]) if steps else []
    total = sum(step_weights)
    paid = _paid(trajectory, worth or 0.0, ms, config) if rule.goes_to == "rewards" else ()
    dropped = _drop_reason(trajectory, reward)
    return Credited(
        trajectory=trajectory,
        reward=reward,
        baseline=baseline,
        advantage=worth if rule.compares and rule.leaves_out is None else None,
        step_weights=tuple(step_weights),
        multipliers=tuple(ms),
        credits=tuple((reward or 0.0) * s / total if total else 0.0 for s in step_weights),
        advantages=() if rule.goes_to == "rewards" else tuple((worth or 0.0) * m for m in ms),
        rewards=paid,
        dropped=dropped,
        left_out=rule.leaves_out if dropped is None and not worth else None,
    )


def _paid(trajectory: Trajectory, worth: float, ms: Sequence[float], config: CreditConfig) -> tuple[float, ...]:
    """What each step is paid, for a critic: its share m_k R, or in one episode its own reward and R at the end."""
    if config.gae_over == "call":
        return tuple(worth * m for m in ms)
    own = [config.reward_normalizer * step.reward for step in trajectory.steps]
    return tuple(reward + (worth if place == len(own) - 1 else 0.0) for place, reward in enumerate(own))


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
