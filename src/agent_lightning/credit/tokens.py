"""Advantages of single tokens, from numbers that only the learner has: values, divergences. Pure numpy, float64.

N tokens stand one episode after the other, each in the order in which it was written; `last_N` marks the ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Marks = NDArray[np.bool_]

EPSILON = 1e-8  # beside the variance of what is whitened


def gae(rewards_N: Doubles, values_N: Doubles, last_N: Marks, *, gamma: float, decay: float) -> Doubles:
    """A_t = d_t + gamma decay A_(t+1) with d_t = r_t + gamma V_(t+1) - V_t; behind the end of an episode both are 0.

    Generalized advantage estimation, Schulman et al. 2016, arXiv:1506.02438, equations 11 and 16.
    """
    advantages_N = np.zeros(len(rewards_N))
    ahead, following = 0.0, 0.0
    for t in range(len(rewards_N) - 1, -1, -1):
        if last_N[t]:
            ahead, following = 0.0, 0.0
        ahead = float(rewards_N[t]) + gamma * following - float(values_N[t]) + gamma * decay * ahead
        following = float(values_N[t])
        advantages_N[t] = ahead
    return advantages_N


def to_go(amounts_N: Doubles, last_N: Marks) -> Doubles:
    """The sum of the amounts from each token to the end of its episode."""
    return gae(amounts_N, np.zeros(len(amounts_N)), last_N, gamma=1.0, decay=1.0)


def whitened(values_N: Doubles, mean: float, variance: float) -> Doubles:
    """Mean 0 and variance 1 over the batch (REINFORCE++, Hu 2025, arXiv:2501.03262, equation 6)."""
    return (values_N - mean) / np.sqrt(variance + EPSILON)
