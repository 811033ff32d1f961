"""Advantage rules: what the reward of each sibling is worth, given the others'. An algorithm names one of them. Pure.

A rule gives one number a sibling, None where the reward is unknown; the credit strategy then spreads it over the
rollout's steps, unless the rule says that it takes whole rollouts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_lightning.credit.groups import group_advantages

if TYPE_CHECKING:
    from agent_lightning.credit.credit import CreditConfig

Rewards = Sequence[float | None]  # of the siblings of one group; None is unknown
Worth = list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`worth` gives each sibling's number. `goes_to` is what the learner makes of a step's share of it."""

    worth: Callable[[Rewards, CreditConfig], Worth]
    goes_to: str = "advantages"  # "rewards": what steps are paid, the critic finds the advantages; "pairs": preferences
    compares: bool = True  # with siblings: a flat group is worth nothing
    spreads: bool = True  # over steps by the credit strategy
    leaves_out: str | None = None  # why a sibling that is worth 0 gives no sample; None: it gives one all the same


def of_group(rewards_G: Rewards, config: CreditConfig) -> Worth:
    """(R_i - mean) / std, or without the division (GRPO, arXiv:2402.03300; Dr. GRPO, arXiv:2503.20783)."""
    return group_advantages(rewards_G, normalizer=config.reward_normalizer, divide_by_std=config.divide_by_std)


def from_mean(rewards_G: Rewards, config: CreditConfig) -> Worth:
    """R_i - mean (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, section 3.2)."""
    return group_advantages(rewards_G, normalizer=config.reward_normalizer, divide_by_std=False)


def leave_one_out(rewards_G: Rewards, config: CreditConfig) -> Worth:
    """R_i minus the mean of the other siblings (RLOO, Ahmadian et al. 2024, arXiv:2402.14740, equation 6).

    It is n / (n - 1) times the difference from the mean of all n.
    """
    count = sum(reward is not None for reward in rewards_G)
    scale = config.reward_normalizer * count / max(1, count - 1)
    return group_advantages(rewards_G, normalizer=scale, divide_by_std=False)


def as_it_is(rewards_G: Rewards, config: CreditConfig) -> Worth:
    """R_i; baselines come later, from the whole batch or from a critic."""
    return [None if reward is None else config.reward_normalizer * reward for reward in rewards_G]


def best(rewards_G: Rewards, config: CreditConfig) -> Worth:
    """1 for the `sft_best` siblings with the highest rewards and those that equal them, 0 for the others.

    The lowest reward of a group is imitated only where it is a success (RAFT, Dong et al. 2023, arXiv:2304.06767).
    """
    known = sorted((reward for reward in rewards_G if reward is not None), reverse=True)
    if not known:
        return list(rewards_G)
    bar, low = known[: config.sft_best][-1], known[-1]

    def imitated(reward: float) -> bool:
        return reward >= bar and (reward > low or reward >= config.success_reward)

    return [None if reward is None else float(imitated(reward)) for reward in rewards_G]


def in_no_pair_yet(rewards_G: Rewards, config: CreditConfig) -> Worth:
    """Preferences are found by pairs.py, among rollouts with a known reward."""
    return [None if reward is None else 0.0 for reward in rewards_G]


RULES: dict[str, Rule] = {
    "group": Rule(worth=of_group),
    "group_mean": Rule(worth=from_mean),
    "leave_one_out": Rule(worth=leave_one_out),
    "reward": Rule(worth=as_it_is, compares=False),
    "step_rewards": Rule(worth=as_it_is, compares=False, goes_to="rewards"),
    "best": Rule(worth=best, spreads=False, leaves_out="it is not among the best of its siblings"),
    "pairs": Rule(
        worth=in_no_pair_yet,
        goes_to="pairs",
        spreads=False,
        leaves_out="no sibling's reward differs from its own by more than pair_margin",
    ),
}
