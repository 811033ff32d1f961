"""Dr. GRPO: GRPO without its two biases: no division by the deviation, and one constant instead of the length."""

from __future__ import annotations

from agent_lightning.learner.algorithms.algorithm import POLICY, Algorithm
from agent_lightning.learner.losses import clipped_policy_loss

ALGORITHM = Algorithm(
    name="drgrpo",
    paper="Liu et al. 2025, arXiv:2503.20783, section 3.2",
    advantage="group_mean",
    loss=clipped_policy_loss,
    settings=POLICY,
    defaults={"loss_scale": "constant"},
)
