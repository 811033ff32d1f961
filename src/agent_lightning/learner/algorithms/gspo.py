"""GSPO: the ratio, its clipping and its correction are those of a whole answer, not of a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_lightning.learner.algorithms.algorithm import POLICY, Algorithm
from agent_lightning.learner.losses import clipped_surrogate, importance_weight, regularised, step_mean

if TYPE_CHECKING:
    from torch import Tensor

    from agent_lightning.learner.learner import LearnerConfig
    from agent_lightning.learner.losses import Tokens


def loss(tokens: Tokens, config: LearnerConfig) -> Tensor:
    """-w min(s A, clip(s, 1 - low, 1 + high) A), s the geometric mean of pi / pi_old over the tokens of the step.

    Zheng et al. 2025, arXiv:2507.18071, equations 5 and 7; the truncated importance weight is averaged alike.
    """
    assert config.clip_epsilon is not None and config.clip_epsilon_high is not None
    logp_E, old_E = step_mean(tokens.logp_E, tokens.step_E), step_mean(tokens.old_E, tokens.step_E)
    surrogate_E = clipped_surrogate(logp_E, old_E, tokens.advantage_E, config.clip_epsilon, config.clip_epsilon_high)
    weight_E = importance_weight(old_E, step_mean(tokens.sampler_E, tokens.step_E), config.importance_cap)
    return regularised(weight_E * surrogate_E, tokens, config)


ALGORITHM = Algorithm(
    name="gspo",
    paper="Zheng et al. 2025, arXiv:2507.18071, equations 5 and 7",
    advantage="group",
    loss=loss,
    settings=POLICY | {"divide_by_std"},
    defaults={"clip_epsilon": 3e-4, "clip_epsilon_high": 4e-4},
)
