"""Preference pairs: siblings of one task whose rewards differ, as wholes or in steps that began alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from agent_lightning.records import Pair, Trajectory

if TYPE_CHECKING:
    from agent_lightning.credit.credit import CreditConfig

Judged = tuple[Trajectory, float]  # a sibling with at least one step, and its reward


def pairs_of(members: Sequence[Judged], config: CreditConfig) -> list[Pair]:
    """Every two siblings whose rewards differ by more than `pair_margin`, widest first, at most `pairs_per_group`.

    With pair_level "step", pairs are single steps whose prompts are the same ids: answers to one question. A call is
    in at most one pair with another one. Ties in width are broken by the order of the siblings.
    """
    found: list[tuple[float, list[Pair]]] = []
    for (better, high), (worse, low) in product(members, members):
        if high - low > config.pair_margin:
            found.append((high - low, _between(better, worse, config)))
    found.sort(key=lambda item: -item[0])  # stable
    flat = [pair for _, pairs in found for pair in pairs]
    return flat[: config.pairs_per_group]


def _between(better: Trajectory, worse: Trajectory, config: CreditConfig) -> list[Pair]:
    if config.pair_level == "trajectory":
        return [Pair(chosen=better.rollout.id, rejected=worse.rollout.id)]
    return [
        Pair(
            chosen=better.rollout.id,
            rejected=worse.rollout.id,
            chosen_call=good.call_id,
            rejected_call=bad.call_id,
        )
        for good, bad in product(better.steps, worse.steps)
        if good.state == bad.state and good.action != bad.action
    ]
