"""DAPO: GRPO whose clipping leaves more room upwards and whose mean is over all tokens of the batch."""

from __future__ import annotations

from agent_lightning.learner.algorithms.algorithm import POLICY, Algorithm
from agent_lightning.learner.losses import clipped_policy_loss

ALGORITHM = Algorithm(
    name="dapo",
    paper="Yu et al. 2025, arXiv:2503.14476, equations 8 and 13",
    advantage="group",
    loss=clipped_policy_loss,
    settings=POLICY | {"divide_by_std"},
    defaults={"clip_epsilon": 0.2, "clip_epsilon_high": 0.28, "loss_scale": "token"},
)
