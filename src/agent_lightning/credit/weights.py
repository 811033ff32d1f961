"""Step weights: how a rollout's reward is spread over its steps.

k counts steps before the last one: 0 is the last. Steps that ran in parallel share a k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

StepWeights = Callable[[Sequence[int]], list[float]]  # ks of a trajectory's steps -> s, one each, none negative


def uniform() -> StepWeights:
    """s = 1: plain GRPO."""
    return lambda ks: [1.0] * len(ks)


def final_only() -> StepWeights:
    """s = 1 at the last step, 0 elsewhere."""
    return lambda ks: [1.0 if k == 0 else 0.0 for k in ks]


def exponential_decay(decay: float) -> StepWeights:
    """s = (1 - d)^k."""
    return lambda ks: [(1.0 - decay) ** k for k in ks]


def linear_decay(decay: float, floor: float, window: int) -> StepWeights:
    """s = max(f, 1 - d k) for k < N, f (1 - d)^(k - N + 1) beyond."""

    def weights(ks: Sequence[int]) -> list[float]:
        return [max(floor, 1.0 - decay * k) if k < window else floor * (1.0 - decay) ** (k - window + 1) for k in ks]

    return weights


def steps_before_last(indexes: Sequence[int]) -> list[int]:
    """k of each step from the steps' indexes: parallel steps (equal index) share it, gaps do not count."""
    rank = {index: place for place, index in enumerate(sorted(set(indexes), reverse=True))}
    return [rank[index] for index in indexes]


def multipliers(weights: Sequence[float], lengths: Sequence[int]) -> list[float]:
    """m_k = s_k x (sum of n_j) / (sum of n_j s_j): their token mean is 1, whatever the number of steps.

    `lengths` are trained tokens a step. Equal weights give exactly 1.0. All-zero weights give zeros.
    """
    if len(set(weights)) == 1 and weights[0] > 0:
        return [1.0] * len(weights)
    mass = sum(n * s for n, s in zip(lengths, weights, strict=True))
    if mass == 0:
        return [0.0] * len(weights)
    return [s * sum(lengths) / mass for s in weights]
