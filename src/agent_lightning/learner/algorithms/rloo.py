"""RLOO: REINFORCE whose baseline is the mean of the other siblings. A whole answer is one action.

The paper has one step a batch, where the ratio is 1 and clipping does nothing; with more it is clipped as in PPO.
"""

from __future__ import annotations

from agent_lightning.learner.algorithms.algorithm import POLICY, Algorithm
from agent_lightning.learner.losses import clipped_policy_loss

ALGORITHM = Algorithm(
    name="rloo",
    paper="Ahmadian et al. 2024, arXiv:2402.14740, equation 6",
    advantage="leave_one_out",
    loss=clipped_policy_loss,
    settings=POLICY,
    defaults={"loss_scale": "constant"},  # an answer's log-probability is the sum over its tokens
    reward_kl=True,
)
