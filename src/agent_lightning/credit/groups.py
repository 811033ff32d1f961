"""Group statistics: the advantage of a rollout is its reward against its siblings'."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EPSILON = 1e-4  # beside the standard deviation
FLAT = 1e-8  # a smaller standard deviation is rounding noise: the group is flat


def group_advantages(
    rewards_G: Sequence[float | None], *, normalizer: float, divide_by_std: bool = True
) -> list[float | None]:
    """A_i = normalizer x (R_i - mean) / (std + 1e-4), std with ddof 1 (GRPO, arXiv:2402.03300, eq. 4.1.2).

    None in (unknown reward) is None out and stays out of the statistics. Fewer than two known rewards give 0.0:
    there is nobody to be compared with. `divide_by_std=False` is Dr. GRPO (arXiv:2503.20783).
    """
    known = np.array([reward for reward in rewards_G if reward is not None], dtype=np.float64)
    if len(known) < 2:
        return [None if reward is None else 0.0 for reward in rewards_G]
    mean, std = float(known.mean()), float(known.std(ddof=1))
    if std < FLAT:
        return [None if reward is None else 0.0 for reward in rewards_G]
    scale = normalizer / (std + EPSILON) if divide_by_std else normalizer
    return [None if reward is None else scale * (reward - mean) for reward in rewards_G]


def is_flat(rewards_G: Sequence[float | None]) -> bool:
    """Whether the known rewards give no signal: fewer than two, or all alike."""
    known = [reward for reward in rewards_G if reward is not None]
    return len(known) < 2 or float(np.std(known, ddof=1)) < FLAT
