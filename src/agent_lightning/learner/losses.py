"""Losses: pure functions of aligned tensors, one entry a trained token (E of them). Each gives one number a token.

The caller multiplies by the token's weight and sums; nothing here divides, so a loss does not depend on how a batch
is cut. What is not trained never becomes an entry, so no mask is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_lightning.errors import SettingError
from agent_lightning.learner.learner import LearnerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What is known of each trained token."""

    logp_E: Tensor  # nats under the present weights; carries the gradient
    old_E: Tensor  # nats under the weights at the start of this batch, no gradient
    sampler_E: Tensor  # nats as the sampler reported them
    reference_E: Tensor | None  # nats under the reference policy, None when it is not needed
    advantage_E: Tensor
    entropy_E: Tensor  # nats of the whole distribution at that position


def importance_weight(old_E: Tensor, sampler_E: Tensor, cap: float) -> Tensor:
    """min(pi_old / pi_sampler, cap), no gradient: corrects the gap between the engine's numbers and the learner's.

    Truncated importance sampling, Ionides 2008, equation 2; for sampler and learner that differ, Yao et al. 2025.
    """
    return torch.exp(old_E - sampler_E).clamp(max=cap).detach()


def clipped_surrogate(logp_E: Tensor, old_E: Tensor, advantage_E: Tensor, epsilon: float) -> Tensor:
    """-min(r A, clip(r, 1 - eps, 1 + eps) A) with r = pi / pi_old.

    PPO, Schulman et al. 2017, arXiv:1707.06347, equation 7; with group-relative advantages it is GRPO's first term,
    Shao et al. 2024, arXiv:2402.03300, equation 3.
    """
    ratio_E = torch.exp(logp_E - old_E)
    clipped_E = ratio_E.clamp(1.0 - epsilon, 1.0 + epsilon)
    return -torch.minimum(ratio_E * advantage_E, clipped_E * advantage_E)


def divergence(logp_E: Tensor, reference_E: Tensor, form: str) -> Tensor:
    """Estimates of KL(policy || reference) from the policy's own tokens, r = pi_ref / pi (Schulman 2020, "kl-approx").

    k1 = -log r; k2 = (log r)^2 / 2; k3 = r - 1 - log r, the form of GRPO, arXiv:2402.03300, equation 4.
    As a loss, k2 has the gradient of the true divergence in expectation, k1 one whose expectation is zero.
    """
    log_ratio_E = reference_E - logp_E
    if form == "k1":
        return -log_ratio_E
    if form == "k2":
        return log_ratio_E.square() / 2
    return torch.expm1(log_ratio_E) - log_ratio_E


def grpo(tokens: Tokens, config: LearnerConfig) -> Tensor:
    """w L_clip + kl_coef KL - entropy_coef H, one number a token; w is the truncated importance weight.

    Shao et al. 2024, arXiv:2402.03300, equations 3 and 4, with an entropy bonus (Williams and Peng 1991).
    """
    weight_E = importance_weight(tokens.old_E, tokens.sampler_E, config.importance_cap)
    loss_E = weight_E * clipped_surrogate(tokens.logp_E, tokens.old_E, tokens.advantage_E, config.clip_epsilon)
    if config.kl_coef:
        assert tokens.reference_E is not None, "a KL term needs the reference's log-probabilities"
        loss_E = loss_E + config.kl_coef * divergence(tokens.logp_E, tokens.reference_E, config.kl_form)
    if config.entropy_coef:
        loss_E = loss_E - config.entropy_coef * tokens.entropy_E
    return loss_E


Loss = Callable[[Tokens, LearnerConfig], Tensor]
LOSSES: dict[str, Loss] = {"grpo": grpo}


def loss_of(algorithm: str) -> Loss:
    """The loss of an algorithm. Raises SettingError for one that this learner does not know."""
    if algorithm not in LOSSES:
        raise SettingError(f"algorithm is {algorithm!r}: this learner knows {', '.join(sorted(LOSSES))}")
    return LOSSES[algorithm]
