"""Each algorithm's loss against numbers worked by hand, and against its paper's formula written in numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from agent_lightning.learner.algorithms import algorithm_of, algorithms
from agent_lightning.learner.algorithms.dpo import pair_loss, pair_slope
from agent_lightning.learner.learner import LearnerConfig, settled
from agent_lightning.learner.losses import Tokens, step_mean, value_loss

STEPS = np.array([0, 1, 0, 1, 1, 2, 2, 0])  # of eight tokens, mixed as in a tree


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def config_of(name: str, **given: Any) -> LearnerConfig:
    return settled(LearnerConfig(algorithm=name, **given), algorithm_of(name))


def drawn(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    names = ("logp_E", "old_E", "sampler_E", "reference_E", "value_E", "old_value_E", "return_E")
    found = {name: rng.normal(-2.0, 0.4, len(STEPS)) for name in names}
    advantage_S = rng.normal(size=3)
    return {**found, "advantage_E": advantage_S[STEPS], "entropy_E": rng.uniform(0, 2, len(STEPS))}


def tokens_of(numbers: dict[str, np.ndarray]) -> Tokens:
    return Tokens(**{name: torch.from_numpy(v) for name, v in numbers.items()}, step_E=torch.from_numpy(STEPS))


def clipped(ratio: np.ndarray, advantage: np.ndarray, low: float, high: float) -> np.ndarray:
    return -np.minimum(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)


def k3(d: dict[str, np.ndarray]) -> np.ndarray:
    return np.exp(d["reference_E"] - d["logp_E"]) - (d["reference_E"] - d["logp_E"]) - 1


def mean_of_steps(values: np.ndarray) -> np.ndarray:
    return np.array([values[step == STEPS].mean() for step in STEPS])


def by_ratio(low: float, high: float) -> Any:
    def wanted(d: dict[str, np.ndarray]) -> np.ndarray:
        weight = np.minimum(np.exp(d["old_E"] - d["sampler_E"]), 2.0)
        return weight * clipped(np.exp(d["logp_E"] - d["old_E"]), d["advantage_E"], low, high)

    return wanted


def gspo(d: dict[str, np.ndarray]) -> np.ndarray:
    ratio = np.exp(mean_of_steps(d["logp_E"] - d["old_E"]))
    weight = np.minimum(np.exp(mean_of_steps(d["old_E"] - d["sampler_E"])), 2.0)
    return weight * clipped(ratio, d["advantage_E"], 3e-4, 4e-4)


def cispo(d: dict[str, np.ndarray]) -> np.ndarray:
    ratio = np.clip(np.exp(d["logp_E"] - d["old_E"]), 0.0, 5.0)
    weight = np.minimum(np.exp(d["old_E"] - d["sampler_E"]), 2.0)
    return -weight * ratio * d["advantage_E"] * d["logp_E"]


def ppo(d: dict[str, np.ndarray]) -> np.ndarray:
    near = d["old_value_E"] + np.clip(d["value_E"] - d["old_value_E"], -0.2, 0.2)
    critic = 0.5 * np.maximum((d["value_E"] - d["return_E"]) ** 2, (near - d["return_E"]) ** 2)
    return by_ratio(0.2, 0.2)(d) + 0.5 * critic


FORMULAS: dict[str, Any] = {
    "grpo": by_ratio(0.2, 0.2),
    "drgrpo": by_ratio(0.2, 0.2),
    "dapo": by_ratio(0.2, 0.28),
    "rloo": by_ratio(0.2, 0.2),
    "reinforce++": by_ratio(0.2, 0.2),
    "gspo": gspo,
    "cispo": cispo,
    "ppo": ppo,
    "dpo": lambda d: -d["advantage_E"] * d["logp_E"],
    "sft": lambda d: -d["advantage_E"] * d["logp_E"],
}


@pytest.mark.parametrize("name", [algorithm.name for algorithm in algorithms()])
def test_the_loss_is_the_papers_formula(name: str):
    numbers = drawn(3)
    loss_E = algorithm_of(name).loss(tokens_of(numbers), config_of(name))
    np.testing.assert_allclose(loss_E.numpy(), FORMULAS[name](numbers), atol=1e-9)


@pytest.mark.parametrize("name", [a.name for a in algorithms() if "kl_coef" in a.settings])
def test_kl_and_entropy_terms_are_added_where_they_are_set(name: str):
    numbers = drawn(4)
    loss_E = algorithm_of(name).loss(tokens_of(numbers), config_of(name, kl_coef=0.3, kl_in="loss", entropy_coef=0.1))
    wanted = FORMULAS[name](numbers) + 0.3 * k3(numbers) - 0.1 * numbers["entropy_E"]
    np.testing.assert_allclose(loss_E.numpy(), wanted, atol=1e-9)


@pytest.mark.parametrize("name", [a.name for a in algorithms() if a.reward_kl])
def test_a_kl_term_that_is_in_the_reward_is_not_in_the_loss_too(name: str):
    numbers = drawn(4)
    loss_E = algorithm_of(name).loss(tokens_of(numbers), config_of(name, kl_coef=0.3, kl_in="reward"))
    np.testing.assert_allclose(loss_E.numpy(), FORMULAS[name](numbers), atol=1e-9)


def test_a_steps_mean_by_hand():
    got = step_mean(tensor(1.0, 2.0, 5.0, 4.0), torch.tensor([0, 1, 0, 1]))
    assert got.tolist() == [3.0, 3.0, 3.0, 3.0]
    assert step_mean(tensor(), torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_gspo_by_hand():
    """Log-ratios 0.2 and 0.4 average to 0.3: s = 1.3499, clipped at 1.1 for a good answer and not for a bad one."""
    config = config_of("gspo", clip_epsilon=0.1, clip_epsilon_high=0.1)
    for advantage, wanted in ((1.0, -1.1), (-1.0, math.exp(0.3))):
        tokens = Tokens(
            logp_E=tensor(-0.8, -0.6),
            old_E=tensor(-1.0, -1.0),
            sampler_E=tensor(-1.0, -1.0),
            reference_E=None,
            advantage_E=tensor(advantage, advantage),
            entropy_E=tensor(0.0, 0.0),
            step_E=torch.tensor([0, 0]),
        )
        assert algorithm_of("gspo").loss(tokens, config).tolist() == pytest.approx([wanted, wanted])


def test_cispo_keeps_the_gradient_of_a_token_that_grpo_clips_away():
    gradients = {}
    for name in ("cispo", "grpo"):
        logp_E = (tensor(-1.0) + math.log(1.5)).requires_grad_()
        zero, one = tensor(0.0), tensor(1.0)
        tokens = Tokens(
            logp_E=logp_E,
            old_E=tensor(-1.0),
            sampler_E=tensor(-1.0),
            reference_E=None,
            advantage_E=one,
            entropy_E=zero,
            step_E=torch.tensor([0]),
        )
        algorithm_of(name).loss(tokens, config_of(name)).sum().backward()
        assert logp_E.grad is not None
        gradients[name] = float(logp_E.grad)
    assert gradients == {"cispo": pytest.approx(-1.5), "grpo": 0.0}


def test_a_value_that_ran_away_is_judged_where_it_ran_to():
    """V = 1, V_old = 0, c = 0.2: towards a return of 2 the clipped 0.2 is worse (1.62), away from 0.2 V itself (0.32)."""
    value_E, old_E = tensor(1.0, 1.0), tensor(0.0, 0.0)
    assert value_loss(value_E, old_E, tensor(2.0, 0.2), 0.2).tolist() == pytest.approx([1.8**2 / 2, 0.8**2 / 2])
    assert value_loss(value_E, old_E, tensor(2.0, 0.2), 0.0).tolist() == pytest.approx([0.5, 0.32])


def test_the_loss_of_a_pair_and_its_slope_by_hand():
    assert pair_loss(np.array([0.0, 2.0, -2.0])) == pytest.approx([math.log(2), 0.126928011, 2.126928011])
    assert pair_slope(np.array([0.0, 2.0])) == pytest.approx([0.5, 1 / (1 + math.exp(2))])
    assert np.isfinite(pair_loss(np.array([-1e4, 1e4]))).all() and np.isfinite(pair_slope(np.array([-1e4, 1e4]))).all()


def test_every_algorithm_names_its_paper_and_has_a_rule():
    from agent_lightning.credit import RULES

    for algorithm in algorithms():
        assert "arXiv" in algorithm.paper and algorithm.advantage in RULES
        assert algorithm.critic == (RULES[algorithm.advantage].goes_to == "rewards")
        assert algorithm.pairs == (RULES[algorithm.advantage].goes_to == "pairs")
        assert algorithm.defaults.keys() <= algorithm.settings
