"""Losses against numbers worked by hand and against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from agent_lightning.errors import SettingError
from agent_lightning.learner.algorithms import algorithm_of
from agent_lightning.learner.learner import LearnerConfig, settled
from agent_lightning.learner.losses import Tokens, clipped_policy_loss, clipped_surrogate, divergence, importance_weight


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_surrogate_clips_only_where_clipping_makes_it_worse():
    """r = 1.5, 0.5 with eps 0.2: a good token gains at most 1.2 A, a bad one that became rarer at most -0.8 |A|."""
    old_E = tensor(-1.0, -1.0, -1.0, -1.0)
    logp_E = old_E + torch.log(tensor(1.5, 0.5, 1.5, 0.5))
    loss_E = clipped_surrogate(logp_E, old_E, tensor(1.0, 1.0, -1.0, -1.0), 0.2, 0.2)
    assert torch.allclose(loss_E, tensor(-1.2, -0.5, 1.5, 0.8))


def test_a_clipped_token_has_no_gradient():
    old_E = tensor(-1.0, -1.0)
    logp_E = (old_E + torch.log(tensor(1.5, 1.1))).requires_grad_()
    clipped_surrogate(logp_E, old_E, tensor(1.0, 1.0), 0.2, 0.2).sum().backward()
    assert torch.allclose(logp_E.grad, tensor(0.0, -1.1))


def test_at_the_start_of_a_batch_the_gradient_is_the_policy_gradient():
    logp_E = tensor(-0.3, -2.0).requires_grad_()
    clipped_surrogate(logp_E, logp_E.detach(), tensor(0.7, -1.3), 0.2, 0.2).sum().backward()
    assert torch.allclose(logp_E.grad, tensor(-0.7, 1.3))


def test_the_importance_weight_is_truncated_above_and_carries_no_gradient():
    old_E = tensor(-1.0, -1.0, -1.0).requires_grad_()
    weight_E = importance_weight(old_E, tensor(-1.0, -3.0, 0.0), 2.0)
    assert torch.allclose(weight_E, tensor(1.0, 2.0, math.exp(-1)))
    assert not weight_E.requires_grad


@pytest.mark.parametrize(("form", "wanted"), [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 1 + 0.5)])
def test_each_kl_form_by_hand(form, wanted):
    assert divergence(tensor(-1.0), tensor(-1.5), form).item() == pytest.approx(wanted)


def test_k1_and_k3_average_to_the_true_divergence():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    true = float((p * np.log(p / q)).sum())
    for form in ("k1", "k3"):
        each = divergence(torch.from_numpy(np.log(p)), torch.from_numpy(np.log(q)), form).numpy()
        assert float((p * each).sum()) == pytest.approx(true)


def test_grpo_is_the_formula_written_in_numpy():
    rng = np.random.default_rng(1)
    logp, old, sampler, reference, advantage = rng.normal(-2.0, 0.5, (5, 40))
    entropy = rng.uniform(0, 2, 40)
    config = LearnerConfig(kl_coef=0.3, entropy_coef=0.1, clip_epsilon=0.2, importance_cap=2.0)
    tokens = Tokens(
        logp_E=torch.from_numpy(logp),
        old_E=torch.from_numpy(old),
        sampler_E=torch.from_numpy(sampler),
        reference_E=torch.from_numpy(reference),
        advantage_E=torch.from_numpy(advantage),
        entropy_E=torch.from_numpy(entropy),
        step_E=torch.zeros(40, dtype=torch.int64),
    )
    ratio = np.exp(logp - old)
    surrogate = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    kl = np.exp(reference - logp) - (reference - logp) - 1
    wanted = np.minimum(np.exp(old - sampler), 2.0) * surrogate + 0.3 * kl - 0.1 * entropy
    np.testing.assert_allclose(clipped_policy_loss(tokens, settled(config, algorithm_of("grpo"))).numpy(), wanted)


def test_an_unknown_algorithm_is_refused_with_the_ones_that_are_known():
    with pytest.raises(SettingError, match="grpo"):
        algorithm_of("a3c")
