"""Tiny models, adapters and requests for the inference tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from agent_lightning.inference.engine import GenerateRequest, Piece, Sampling
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import token_ids

VOCABULARY = 64


def tiny_llama(seed: int = 0, **config: Any) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    chosen = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "initializer_range": 0.2,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**chosen, **config})).eval().requires_grad_(False)


def tiny_gpt2() -> Any:
    torch.manual_seed(1)
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=4, n_positions=256, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0,
        initializer_range=0.2,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval().requires_grad_(False)


def tiny_sliding_mistral() -> Any:
    torch.manual_seed(2)
    config = MistralConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=256, sliding_window=8, initializer_range=0.2,
    )  # fmt: skip
    return MistralForCausalLM(config).eval().requires_grad_(False)


def adapter(model: Any, *, version: int, policy: str = "default", seed: int = 0, rank: int = 4) -> Adapter:
    """Random matrices, large enough to change what is greedy, on every linear layer of the blocks; version 0 adds 0."""
    rng = np.random.default_rng(1000 * version + seed)
    matrices = {}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in path:
            out, width = module.weight.shape
            a = rng.normal(0, 0.2, (rank, width)).astype(np.float32)
            b = rng.normal(0, 0.2 if version else 0.0, (out, rank)).astype(np.float32)
            matrices[path] = (a, b)
    return Adapter(policy=policy, version=version, rank=rank, alpha=2.0 * rank, matrices=matrices)


def merged(model: Any, published: Adapter) -> Any:
    """A second model with the adapter added into its float32 weights: the reference."""
    twin = type(model)(model.config).eval().requires_grad_(False)
    twin.load_state_dict(model.state_dict())
    for path, (a, b) in published.matrices.items():
        twin.get_submodule(path).weight += published.scale * torch.from_numpy(b) @ torch.from_numpy(a)
    return twin


def request(name: str, prompt: Sequence[int], *, version: int | None = None, policy: str = "default", **sampling: Any):
    chosen = {"max_new_tokens": 6, "temperature": 0.0, **sampling}
    return GenerateRequest(
        id=name, policy=policy, prompt_ids=token_ids(prompt), sampling=Sampling(**chosen), noise_key=f"0/{name}",
        version=version,
    )  # fmt: skip


def answer(pieces: Sequence[Piece]) -> tuple[list[int], list[float]]:
    return [i for p in pieces for i in p.ids], [x for p in pieces for x in p.logprobs]


def drain(core: TorchCore, into: dict[str, list[Piece]] | None = None) -> dict[str, list[Piece]]:
    got = {} if into is None else into
    while not core.idle:
        for name, piece in core.step():
            got.setdefault(name, []).append(piece)
    return got


@torch.no_grad()
def reference_logprobs(model: Any, prompt: Sequence[int], sampled: Sequence[int], temperature: float) -> list[float]:
    """Nats of each sampled token by the model's own forward over the whole sequence."""
    ids = torch.tensor([[*prompt, *sampled]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / (temperature or 1.0)
    nats = torch.log_softmax(logits, -1)
    return nats[torch.arange(len(sampled)), torch.tensor(list(sampled))].tolist()
