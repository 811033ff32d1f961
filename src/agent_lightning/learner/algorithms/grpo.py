"""GRPO: rollouts are compared with their siblings; the ratio is clipped."""

from __future__ import annotations

from agent_lightning.learner.algorithms.algorithm import POLICY, Algorithm
from agent_lightning.learner.losses import clipped_policy_loss

ALGORITHM = Algorithm(
    name="grpo",
    paper="Shao et al. 2024, arXiv:2402.03300, equations 3 and 4",
    advantage="group",
    loss=clipped_policy_loss,
    settings=POLICY | {"divide_by_std"},
)
