"""Products over packed weights: exact values, and only where they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import inference_cases as cases
from agent_lightning.inference.llama_forward import LlamaForward
from agent_lightning.inference.packed import ROWS, pack
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.models.adapter import Adapter

STEM = list(range(1, 31))

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="this processor has no packed products"
)


def halved(seed: int = 0, **config: Any) -> Any:
    """A float32 model whose weights are float16 values, as one that was loaded from a half precision checkpoint."""
    model = cases.tiny_llama(seed, **config)
    for parameter in model.parameters():
        parameter.copy_(parameter.half())
    return model


@pytest.mark.parametrize("rows", [1, 2, 5, 18, ROWS])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_packed_product_is_as_exact_as_a_float32_one(rows: int, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(70, 33).to(kind).float(), torch.randn(70), torch.randn(rows, 33)
    packed = pack(weight, bias)
    assert packed is not None
    exact = x.double() @ weight.double().T + bias.double()
    bound = 33 * torch.finfo(torch.float32).eps * (x.double().abs() @ weight.double().abs().T + bias.double().abs())
    assert bool(((packed(x).double() - exact).abs() <= bound).all())


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (torch.full((4, 4), 1.0 + 2.0**-12), "a bit that float16 has not"),
        (torch.full((4, 4), 1e5), "beyond float16's largest value"),
        (torch.full((4, 4), float("nan")), "no number"),
        (torch.full((4, 4), 1.1e-5), "a whole row of small ones"),
        (torch.ones(4, 4, dtype=torch.bfloat16), "not computed in float32"),
    ],
)
def test_weights_that_packing_would_change_are_not_packed(weight: torch.Tensor, why: str) -> None:
    assert pack(weight, None) is None, why


def test_values_that_vanish_beside_the_others_of_their_row_do_not_hinder() -> None:
    weight = torch.tensor([[1.0, 2.0**-26], [2.0**-24, 0.5], [0.0, 0.0]])
    packed = pack(weight, None)
    assert packed is not None and packed(torch.ones(1, 2)).tolist() == [[1.0, 0.5 + 2.0**-24, 0.0]]


def test_a_checkpoint_in_bfloat16_can_be_packed() -> None:
    """A few of its values near zero are rounded: by less than a float32 product of 576 terms may be off."""
    torch.manual_seed(0)
    weight, x = (0.02 * torch.randn(512, 576)).bfloat16().float(), torch.randn(18, 576)
    packed = pack(weight, None)
    assert packed is not None and not torch.equal(weight.half().float(), weight)
    bound = 576 * torch.finfo(torch.float32).eps * (x.double().abs() @ weight.double().abs().T)
    assert bool(((packed(x).double() - x.double() @ weight.double().T).abs() <= bound).all())


@pytest.mark.parametrize("config", [{}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": True}])
def test_a_model_in_half_precision_values_is_packed_and_answers_as_its_own_forward(config: dict[str, Any]) -> None:
    model = halved(**config)
    core = TorchCore(model, max_sequences=4, context_length=128)
    assert isinstance(core.forward, LlamaForward), core.forward_reason
    assert all(each.packed for block in core.forward.blocks for each in block.projections) and core.forward.head.packed
    core.publish(cases.adapter(model, version=1))
    for name in "abc":
        core.submit(cases.request(name, [*STEM, ord(name) % 9], temperature=0.7, max_new_tokens=12))
    judge = cases.merged(model, cases.adapter(model, version=1))
    for name, pieces in cases.drain(core).items():
        ids, logprobs = cases.answer(pieces)
        prompt = [*STEM, ord(name) % 9]
        assert logprobs == pytest.approx(cases.reference_logprobs(judge, prompt, ids, 0.7), abs=1e-4)


def test_replaced_weights_are_read_from_then_on() -> None:
    model, other = halved(), cases.tiny_llama(seed=9)
    core = TorchCore(model, max_sequences=2, context_length=64)
    weights = {name: parameter.numpy() for name, parameter in other.named_parameters()}
    core.publish(Adapter(policy="default", version=1, rank=0, alpha=1.0, matrices={}, weights=weights))
    core.submit(cases.request("new", STEM))
    ids, logprobs = cases.answer(cases.drain(core)["new"])
    assert logprobs == pytest.approx(cases.reference_logprobs(other, STEM, ids, 1.0), abs=1e-4)
