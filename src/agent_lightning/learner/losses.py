"""What losses are made of: pure functions of aligned tensors, one entry a trained token (E of them).

The caller multiplies each token's loss by the token's weight and sums; nothing here divides by a count, so a loss does
not depend on how a batch is cut. What is not trained never becomes an entry, so no mask is needed. The functions are
written with the tensors' own methods: naming an algorithm, as the main process does, loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from agent_lightning.learner.learner import LearnerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What is known of each trained token of a pass. A step's tokens are all in one pass."""

    logp_E: Tensor  # nats under the present weights; carries the gradient
    old_E: Tensor  # nats under the weights at the start of this batch, no gradient
    sampler_E: Tensor  # nats as the sampler reported them
    reference_E: Tensor | None  # nats under the reference policy, None when it is not needed
    advantage_E: Tensor
    entropy_E: Tensor  # nats of the whole distribution at that position
    step_E: Tensor  # number of the step among those of the pass, from 0, int64
    value_E: Tensor | None = None  # the critic's, present weights; carries the gradient; None without a critic
    old_value_E: Tensor | None = None  # the same at the start of this batch
    return_E: Tensor | None = None  # what the value is to predict


def importance_weight(old_E: Tensor, sampler_E: Tensor, cap: float) -> Tensor:
    """min(pi_old / pi_sampler, cap), no gradient: corrects the gap between the engine's numbers and the learner's.

    Truncated importance sampling, Ionides 2008, equation 2; for sampler and learner that differ, Yao et al. 2025.
    """
    return (old_E - sampler_E).exp().clamp(max=cap).detach()


def clipped_surrogate(logp_E: Tensor, old_E: Tensor, advantage_E: Tensor, low: float, high: float) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = pi / pi_old.

    PPO, Schulman et al. 2017, arXiv:1707.06347, equation 7; with group-relative advantages it is GRPO's first term,
    Shao et al. 2024, arXiv:2402.03300, equation 3; with high > low DAPO's, Yu et al. 2025, arXiv:2503.14476, equation 8.
    """
    ratio_E = (logp_E - old_E).exp()
    clipped_E = ratio_E.clamp(1.0 - low, 1.0 + high)
    return -(ratio_E * advantage_E).minimum(clipped_E * advantage_E)


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
    return log_ratio_E.expm1() - log_ratio_E


def step_mean(values_E: Tensor, step_E: Tensor) -> Tensor:
    """Each token gets the mean over the tokens of its step."""
    steps = int(step_E.max()) + 1 if len(step_E) else 0
    sums_S = values_E.new_zeros(steps).index_add(0, step_E, values_E)
    counts_S = values_E.new_zeros(steps).index_add(0, step_E, values_E.new_ones(len(step_E)))
    return (sums_S / counts_S)[step_E]


def regularised(policy_E: Tensor, tokens: Tokens, config: LearnerConfig) -> Tensor:
    """L + kl_coef KL - entropy_coef H; the KL term stands here unless it is part of the reward.

    The entropy bonus is that of Williams and Peng 1991.
    """
    loss_E = policy_E
    if config.kl_coef and config.kl_in == "loss":
        assert tokens.reference_E is not None and config.kl_form, "a KL term needs the reference's log-probabilities"
        loss_E = loss_E + config.kl_coef * divergence(tokens.logp_E, tokens.reference_E, config.kl_form)
    if config.entropy_coef:
        loss_E = loss_E - config.entropy_coef * tokens.entropy_E
    return loss_E


def clipped_policy_loss(tokens: Tokens, config: LearnerConfig) -> Tensor:
    """w L_clip + kl_coef KL - entropy_coef H, one number a token; w is the truncated importance weight."""
    assert config.clip_epsilon is not None and config.clip_epsilon_high is not None
    surrogate_E = clipped_surrogate(
        tokens.logp_E, tokens.old_E, tokens.advantage_E, config.clip_epsilon, config.clip_epsilon_high
    )
    weight_E = importance_weight(tokens.old_E, tokens.sampler_E, config.importance_cap)
    return regularised(weight_E * surrogate_E, tokens, config)


def value_loss(value_E: Tensor, old_E: Tensor, return_E: Tensor, clip: float) -> Tensor:
    """max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2, or with c = 0 the first alone.

    Schulman et al. 2017, arXiv:1707.06347, equation 9, clipped as in the authors' code (Engstrom et al. 2020,
    arXiv:2005.12729, section 3).
    """
    plain_E = (value_E - return_E).square()
    if not clip:
        return plain_E / 2
    near_E = old_E + (value_E - old_E).clamp(-clip, clip)
    return plain_E.maximum((near_E - return_E).square()) / 2
