"""The head's softmax, in chunks of rows, against autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agent_lightning.learner import forward

ROWS, WIDTH = 11, 40


def case(kind: torch.dtype, *, sure: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, temperatures, and 25 targets of which several hang on one row."""
    generator = torch.Generator().manual_seed(0)
    logits_PV = (sure * torch.randn(ROWS, WIDTH, generator=generator)).to(kind)
    temperature_P = torch.rand(ROWS, generator=generator) + 0.5
    of_E = torch.randint(ROWS, (25,), generator=generator).sort().values
    return logits_PV, temperature_P, of_E, torch.randint(WIDTH, (25,), generator=generator)


def exact(logits_PV: Tensor, temperature_P: Tensor, of_E: Tensor, target_E: Tensor) -> tuple[Tensor, Tensor]:
    log_PV = torch.log_softmax(logits_PV / temperature_P.double()[:, None], -1)
    return log_PV[of_E, target_E], -(log_PV.exp() * log_PV).sum(-1)


@pytest.mark.parametrize("together", [1, 3, ROWS])
@pytest.mark.parametrize("entropy", [0.0, 0.3])
@pytest.mark.parametrize(("kind", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2.0**-8)])
def test_values_and_gradients_are_those_of_autograd(
    monkeypatch: pytest.MonkeyPatch, together: int, entropy: float, kind: torch.dtype, bound: float
):
    monkeypatch.setattr(forward, "IN_CACHE", together * WIDTH)
    logits_PV, temperature_P, of_E, target_E = case(kind)
    weight_E, weight_P = torch.linspace(-1.0, 1.0, 25), torch.linspace(0.1, 1.0, ROWS)
    grads = []
    for own_PV, score in ((logits_PV.double(), exact), (logits_PV, forward._Softmax.apply)):
        leaf = own_PV.clone().requires_grad_(True)
        logp_E, entropy_P = score(leaf, temperature_P, of_E, target_E)
        loss = (weight_E * logp_E).sum()
        if entropy:
            loss = loss + entropy * (weight_P * entropy_P).sum()
        loss.backward()
        grads.append((logp_E.detach().double(), entropy_P.detach().double(), leaf.grad.double()))
    for wanted, got, limit in zip(*grads, (1e-5, 1e-5, bound), strict=True):
        assert float((got - wanted).abs().max()) <= limit * float(wanted.abs().max())


def test_a_narrow_type_rounds_the_sum_of_a_rows_targets_and_not_its_parts():
    """Siblings of opposite sign on one sure token: what is left is far below what each of them is."""
    logits_PV = torch.zeros(1, WIDTH, dtype=torch.bfloat16)
    logits_PV[0, 3] = 12.0
    of_E, target_E, weight_E = torch.zeros(2, dtype=torch.long), torch.tensor([3, 3]), torch.tensor([1.0, -0.99])
    leaf = logits_PV.clone().requires_grad_(True)
    logp_E, _ = forward._Softmax.apply(leaf, torch.ones(1), of_E, target_E)
    (weight_E * logp_E).sum().backward()
    p = torch.softmax(logits_PV.double(), -1)[0, 3]
    assert float(leaf.grad[0, 3]) == pytest.approx(0.01 * float(1 - p), rel=2e-2)


def test_a_token_that_cannot_come_has_no_gradient():
    logits_PV = torch.tensor([[0.5, -torch.inf, 1.0]]).requires_grad_(True)
    logp_E, _ = forward._Softmax.apply(logits_PV, torch.ones(1), torch.tensor([0]), torch.tensor([0]))
    logp_E.sum().backward()
    assert logits_PV.grad is not None
    assert logits_PV.grad[0, 1] == 0.0 and bool(torch.isfinite(logits_PV.grad).all())
