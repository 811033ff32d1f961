"""DPO: of two siblings the better one is to become likelier against the reference than the worse one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agent_lightning.learner.algorithms.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor

    from agent_lightning.learner.learner import LearnerConfig
    from agent_lightning.learner.losses import Tokens

Doubles = NDArray[np.float64]


def pair_loss(margin_K: Doubles) -> Doubles:
    """-log sigmoid(margin), margin = beta ((log pi - log pi_ref)(chosen) - (log pi - log pi_ref)(rejected)).

    Rafailov et al. 2023, arXiv:2305.18290, equation 7.
    """
    return np.logaddexp(0.0, -margin_K)


def pair_slope(margin_K: Doubles) -> Doubles:
    """sigmoid(-margin) = -d loss / d margin: how much a pair still has to teach (the same paper, section 4)."""
    return np.exp(-np.logaddexp(0.0, margin_K))


def loss(tokens: Tokens, config: LearnerConfig) -> Tensor:
    """-a log pi, a = beta sigmoid(-margin), negative for the rejected: its gradient is that of `pair_loss`.

    A pair's tokens may be computed in several passes; a is found before, from all of them.
    """
    return -tokens.advantage_E * tokens.logp_E


ALGORITHM = Algorithm(
    name="dpo",
    paper="Rafailov et al. 2023, arXiv:2305.18290, equation 7",
    advantage="pairs",
    loss=loss,
    settings=frozenset({"dpo_beta", "pair_margin", "pair_level", "pairs_per_group"}),
    pairs=True,
)
