"""SFT: the best siblings are imitated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_lightning.learner.algorithms.algorithm import SCALE, Algorithm

if TYPE_CHECKING:
    from torch import Tensor

    from agent_lightning.learner.learner import LearnerConfig
    from agent_lightning.learner.losses import Tokens


def loss(tokens: Tokens, config: LearnerConfig) -> Tensor:
    """-A log pi with A = 1 for what is imitated: the cross entropy.

    On the best of several samples: RAFT, Dong et al. 2023, arXiv:2304.06767, equation 2.
    """
    return -tokens.advantage_E * tokens.logp_E


ALGORITHM = Algorithm(
    name="sft",
    paper="Dong et al. 2023, arXiv:2304.06767, equation 2",
    advantage="best",
    loss=loss,
    settings=SCALE | {"sft_best"},
    defaults={"loss_scale": "token"},
)
