"""CISPO: the importance ratio is clipped and stops there; every token keeps its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_lightning.learner.algorithms.algorithm import POLICY, Algorithm
from agent_lightning.learner.losses import importance_weight, regularised

if TYPE_CHECKING:
    from torch import Tensor

    from agent_lightning.learner.learner import LearnerConfig
    from agent_lightning.learner.losses import Tokens


def loss(tokens: Tokens, config: LearnerConfig) -> Tensor:
    """-w sg(clip(r, 1 - low, 1 + high)) A log pi; r = pi / pi_old.

    MiniMax 2025, arXiv:2506.13585, equations 4 and 5.
    """
    assert config.clip_epsilon is not None and config.clip_epsilon_high is not None
    ratio_E = (tokens.logp_E - tokens.old_E).exp().detach()
    clipped_E = ratio_E.clamp(1.0 - config.clip_epsilon, 1.0 + config.clip_epsilon_high)
    weight_E = importance_weight(tokens.old_E, tokens.sampler_E, config.importance_cap)
    return regularised(-weight_E * clipped_E * tokens.advantage_E * tokens.logp_E, tokens, config)


ALGORITHM = Algorithm(
    name="cispo",
    paper="MiniMax 2025, arXiv:2506.13585, equations 4 and 5",
    advantage="group",
    loss=loss,
    settings=POLICY | {"divide_by_std"},
    defaults={"clip_epsilon": 1.0, "clip_epsilon_high": 4.0, "loss_scale": "token"},  # no bound below, 5 above
)
