"""What credit assignment reports: variance of credit over steps, reward statistics, histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

CREDIT_SCALE = 0.8  # of credit.assignment_variance


def reward_range(rewards: Sequence[float], declared: tuple[float, float] | None = None) -> tuple[float, float]:
    """The declared range, else the 1st to the 99th percentile of what was seen."""
    if declared is not None:
        return declared
    low, high = np.percentile(np.asarray(rewards, dtype=np.float64), [1, 99]) if len(rewards) else (0.0, 1.0)
    return float(low), float(high)


def to_unit(reward: float, limits: tuple[float, float]) -> float:
    """Map to [0, 1] by the range; a range without width maps to 0.5."""
    low, high = limits
    return 0.5 if high <= low else min(1.0, max(0.0, (reward - low) / (high - low)))


def assignment_variance(
    groups: Mapping[str, Sequence[tuple[float, Sequence[float]]]], limits: tuple[float, float]
) -> float:
    """Mean over task groups of the population variance over steps of m_k x 0.8 x R'.

    A group is a list of (reward, multipliers of the rollout's steps). Groups without a step are left out.
    """
    variances = []
    for members in groups.values():
        credits = [m * CREDIT_SCALE * to_unit(reward, limits) for reward, ms in members for m in ms]
        if credits:
            variances.append(float(np.var(credits)))
    return float(np.mean(variances)) if variances else 0.0


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r; None with fewer than three points or when one side does not vary."""
    if len(xs) < 3:
        return None
    x, y = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
    if x.std() < 1e-12 or y.std() < 1e-12:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def histogram(rewards: Sequence[float], bins: int = 20) -> dict[str, list[float]]:
    """Counts and edges over the observed range; empty without rewards."""
    if not rewards:
        return {"counts": [], "edges": []}
    counts, edges = np.histogram(np.asarray(rewards, dtype=np.float64), bins=bins)
    return {"counts": [int(count) for count in counts], "edges": [float(edge) for edge in edges]}
