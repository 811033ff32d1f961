"""REINFORCE++: the batch is the baseline, the KL term is part of the reward, the ratio is clipped."""

from __future__ import annotations

from agent_lightning.learner.algorithms.algorithm import POLICY, Algorithm
from agent_lightning.learner.losses import clipped_policy_loss

ALGORITHM = Algorithm(
    name="reinforce++",
    paper="Hu 2025, arXiv:2501.03262, equations 4 to 6",
    advantage="reward",
    loss=clipped_policy_loss,
    settings=POLICY | {"whiten_advantages"},
    defaults={"kl_in": "reward", "whiten_advantages": True},
    reward_kl=True,
)
