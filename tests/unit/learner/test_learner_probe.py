"""Which architectures may be packed."""

from __future__ import annotations

from transformers import LlamaConfig, MistralConfig, Qwen3Config

from agent_lightning.learner.probe import pass_cost, why_not_packed
from learner_cases import learner, tiny_model

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 200,
    "max_position_embeddings": 256,
}


def test_llama_and_qwen_agree_packed_and_unpacked():
    assert why_not_packed(tiny_model().config) is None
    assert why_not_packed(LlamaConfig(**SHAPE)) is None
    assert why_not_packed(Qwen3Config(**SHAPE, head_dim=8)) is None


def test_a_sliding_window_takes_the_per_branch_path_and_says_so():
    reason = why_not_packed(MistralConfig(**SHAPE, sliding_window=64))
    assert reason is not None and "differ" in reason


def test_an_architecture_that_cannot_be_copied_small_is_not_packed():
    class Strange:
        model_type = "strange"

        def get_text_config(self):
            raise ValueError("no text here")

    reason = why_not_packed(Strange())
    assert reason is not None and "strange" in reason and "no text here" in reason


def test_the_learner_says_why_it_does_not_pack():
    assert learner(packing=False).packing_reason == "the setting `packing` is off"
    assert learner().packing


def test_the_probe_leaves_the_random_state_alone():
    import torch

    torch.manual_seed(3)
    before = torch.get_rng_state()
    why_not_packed(tiny_model().config)
    assert torch.equal(before, torch.get_rng_state())


def test_a_wider_model_pays_less_overhead_a_token():
    wide = {**SHAPE, "hidden_size": 512, "intermediate_size": 1024}
    assert pass_cost(LlamaConfig(**wide)).overhead < pass_cost(LlamaConfig(**SHAPE)).overhead
