"""PPO: a value head on the last hidden state finds the advantages; policy and values are clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_lightning.learner.algorithms.algorithm import POLICY, Algorithm
from agent_lightning.learner.losses import clipped_policy_loss, value_loss

if TYPE_CHECKING:
    from torch import Tensor

    from agent_lightning.learner.learner import LearnerConfig
    from agent_lightning.learner.losses import Tokens


def loss(tokens: Tokens, config: LearnerConfig) -> Tensor:
    """L_clip + value_coef L_value, with the KL and entropy terms.

    Schulman et al. 2017, arXiv:1707.06347, equation 9; advantages by GAE, arXiv:1506.02438, equation 16.
    """
    assert tokens.value_E is not None and tokens.old_value_E is not None and tokens.return_E is not None
    critic_E = value_loss(tokens.value_E, tokens.old_value_E, tokens.return_E, config.value_clip)
    return clipped_policy_loss(tokens, config) + config.value_coef * critic_E


ALGORITHM = Algorithm(
    name="ppo",
    paper="Schulman et al. 2017, arXiv:1707.06347, equations 7 and 9; GAE: arXiv:1506.02438, equation 16",
    advantage="step_rewards",
    loss=loss,
    settings=POLICY
    | {"gae_lambda", "gae_gamma", "gae_over", "whiten_advantages"}
    | {"value_coef", "value_clip", "value_learning_rate", "critic_warmup"},
    defaults={"kl_in": "reward", "whiten_advantages": True},
    critic=True,
    reward_kl=True,
)
