"""What an algorithm is: an advantage rule, a loss, and what it needs. `loss` takes settled configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from agent_lightning.learner.learner import LearnerConfig
    from agent_lightning.learner.losses import Tokens

    Loss = Callable[[Tokens, LearnerConfig], Tensor]  # one number a trained token

# Settings that some algorithms use and others do not, of learner and credit alike.
RATIO = frozenset({"clip_epsilon", "clip_epsilon_high", "importance_cap"})
TERMS = frozenset({"kl_coef", "kl_form", "kl_in", "entropy_coef"})
SCALE = frozenset({"loss_scale", "loss_tokens"})
CREDIT = frozenset({"credit_assignment", "credit_decay", "credit_floor", "credit_window", "reward_normalizer"})
POLICY = RATIO | TERMS | SCALE | CREDIT  # of everything that raises the chance of what was rewarded


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    name: str
    paper: str  # author, year, where, which equation
    advantage: str  # the rule of credit/ that makes advantages out of rewards
    loss: Loss
    settings: frozenset[str]  # those it uses, of those that not every algorithm does
    defaults: Mapping[str, Any] = field(default_factory=dict)  # for settings that are left open
    critic: bool = False  # samples carry what steps are paid; a value head finds the advantages
    pairs: bool = False  # the batch carries preferences; the learner finds how much each still has to teach
    reward_kl: bool = False  # the KL term may be taken off the reward, token by token
