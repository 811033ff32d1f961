"""LoRA beside a shared base."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from agent_lightning.errors import ModelError
from agent_lightning.models.load import load_model
from agent_lightning.models.lora import (
    LoraLinear,
    adaptable,
    adapter_off,
    attach_lora,
    base_linear,
    export_adapter,
    load_adapter,
    lora_layers,
    shared_skeleton,
)
from agent_lightning.models.merge import export_merged
from learner_cases import learner, shaken, tiny_folder, tiny_model

IDS = torch.tensor([[2, 5, 3, 9, 11]])


def test_every_linear_of_the_blocks_is_adapted_and_the_head_is_not():
    paths = adaptable(tiny_model())
    names = {path.rsplit(".", 1)[-1] for path in paths}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(paths) == 14 and "model.layers.1.mlp.down_proj" in paths


def test_only_the_last_blocks_are_adapted_when_asked_and_a_backward_pass_ends_there():
    model = tiny_model()
    twin = shared_skeleton(model)
    wrapped = attach_lora(twin, 4, 8.0, last=1)
    assert len(wrapped) == 7 and all(path.startswith("model.layers.1.") for path in wrapped)
    states = []
    twin.model.layers[1].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    twin(input_ids=IDS).logits.sum().backward()
    assert not states[0].requires_grad
    assert all(layer.b.grad is not None and layer.b.grad.abs().sum() > 0 for layer in wrapped.values())
    assert len(adaptable(model, 2)) == 14
    with pytest.raises(ModelError, match=r"lora_layers is 3: model\.layers of .* has 2 blocks"):
        adaptable(model, 3)


def test_a_new_adapter_changes_nothing_and_a_trained_one_can_be_turned_off():
    model = tiny_model()
    plain = model(input_ids=IDS).logits
    twin = shared_skeleton(model)
    attach_lora(twin, 4, 8.0)
    assert torch.equal(twin(input_ids=IDS).logits, plain)
    for layer in lora_layers(twin).values():
        torch.nn.init.normal_(layer.b, std=0.3)
    assert not torch.allclose(twin(input_ids=IDS).logits, plain)
    with adapter_off(twin):
        assert torch.equal(twin(input_ids=IDS).logits, plain)


def test_the_skeleton_shares_every_weight_and_wrapping_it_leaves_the_model_alone():
    model = tiny_model()
    twin = shared_skeleton(model)
    attach_lora(twin, 4, 8.0)
    assert not lora_layers(model)
    for path, layer in lora_layers(twin).items():
        assert base_linear(layer).weight is model.get_submodule(path).weight
        assert base_linear(model.get_submodule(path)) is model.get_submodule(path)
    assert twin.model.embed_tokens.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_hand_written_backward_is_autograds(dtype):
    torch.manual_seed(0)
    layer = LoraLinear(torch.nn.Linear(6, 5).to(dtype).requires_grad_(False), 3, 6.0)
    torch.nn.init.normal_(layer.b)
    x = torch.randn(2, 4, 6).to(dtype)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(mine).float().square().sum().backward()
    a, b = (copy.deepcopy(p).requires_grad_() for p in (layer.a, layer.b))
    delta = ((theirs.float() @ a.T) @ b.T) * layer.scale
    (layer.base(theirs) + delta.to(dtype)).float().square().sum().backward()
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype != torch.bfloat16 else {"rtol": 2e-2, "atol": 2e-1}
    torch.testing.assert_close(layer.a.grad, a.grad, **close)
    torch.testing.assert_close(layer.b.grad, b.grad, **close)
    torch.testing.assert_close(mine.grad, theirs.grad, **close)


def test_an_adapter_travels_out_and_in():
    first, second = tiny_model(), tiny_model()
    attach_lora(first, 4, 8.0, seed=1)
    attach_lora(second, 4, 8.0, seed=2)
    for layer in lora_layers(first).values():
        torch.nn.init.normal_(layer.b)
    adapter = export_adapter(first, policy="p", version=3, rank=4, alpha=8.0)
    load_adapter(second, adapter.matrices)
    assert torch.equal(first(input_ids=IDS).logits, second(input_ids=IDS).logits)
    assert adapter.version == 3 and all(a.dtype == np.float32 for a, _ in adapter.matrices.values())


def test_an_adapter_of_another_rank_is_refused():
    model = tiny_model()
    attach_lora(model, 4, 8.0)
    other = tiny_model()
    attach_lora(other, 8, 8.0)
    with pytest.raises(ModelError, match="lora_rank"):
        load_adapter(model, export_adapter(other, policy="p", version=0, rank=8, alpha=8.0).matrices)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_merged_folder_is_loaded_by_transformers_and_speaks_like_the_adapter(tmp_path, rank):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = shaken(learner(lora_rank=rank))
    export_merged(tiny_folder(), made.adapter(), tmp_path / "out", chat_template="{{ messages }}")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        assert (merged(input_ids=IDS).logits - made._model(input_ids=IDS).logits).abs().max() < 1e-5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("c1+2")["input_ids"] == [20, 5, 14, 6]
    assert tokenizer.chat_template == "{{ messages }}"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_adapter_of_another_model_is_not_merged(tmp_path):
    adapter = learner().adapter()
    strange = {f"other.{path}": matrices for path, matrices in adapter.matrices.items()}
    with pytest.raises(ModelError, match="does not have"):
        export_merged(
            tiny_folder(), type(adapter)(policy="p", version=1, rank=4, alpha=8.0, matrices=strange), tmp_path / "o"
        )
    assert not (tmp_path / "o").exists()


def test_a_loaded_model_is_frozen():
    model = load_model(tiny_folder(), "bfloat16")
    assert model.dtype == torch.bfloat16 and not model.training
    assert not any(p.requires_grad for p in model.parameters())
