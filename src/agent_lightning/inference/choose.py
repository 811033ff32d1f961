"""Which forward a model gets: the fast path where it is proven equal at load, else the general one, with the reason."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from agent_lightning.inference.forward import Forward, Row
from agent_lightning.inference.general_forward import GeneralForward
from agent_lightning.inference.llama_forward import FUSED, LlamaForward

FAST = ("LlamaForCausalLM",)
TOLERANCE = {torch.float32: 1e-4}  # nats, largest difference of a log-probability
COARSE = 0.5  # the same in narrower types, where both sides round


def choose_forward(model: Any, *, slots: int, context_length: int) -> tuple[Forward, str]:
    """The forward, and in words why it was chosen."""
    reason = _unfit(model)
    if reason is None:
        fast = LlamaForward(model, slots=slots, context_length=context_length)
        gap = _largest_gap(model, fast)
        limit = TOLERANCE.get(fast.dtype, COARSE)
        if gap <= limit:
            return fast, f"equal to the model's own forward within {gap:.1e} nats"
        reason = f"the fast path differs from the model's own forward by {gap:.1e} nats, {limit:.0e} allowed"
    return GeneralForward(model), reason


def _unfit(model: Any) -> str | None:
    """Why the fast path cannot take this model, as far as its config and modules say."""
    architecture, config = type(model).__name__, model.config
    if architecture not in FAST:
        return f"{architecture} has no fast path"
    if config.hidden_act != "silu":
        return f"hidden_act {config.hidden_act!r} is not silu"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        return f"rope type {rope!r} changes with the length"
    layer = model.model.layers[0]
    paths = [path for group in FUSED.values() for path in group]
    if odd := [path for path in paths if type(layer.get_submodule(path)) is not nn.Linear]:
        return f"{odd[0]} is a {type(layer.get_submodule(odd[0])).__name__}, not a plain linear layer"
    return None


@torch.no_grad()
def _largest_gap(model: Any, fast: LlamaForward) -> float:
    """Compare a ragged prefill and a decode step on random ids with the model's own forward."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(fast.vocabulary, (n,), generator=generator).tolist() for n in (9, 5)]
    slots = [0, fast.cache.slots - 1][: fast.cache.slots]
    texts = texts[: len(slots)]
    fast.extend([Row(slot=s, tokens=t[:-1], start=0, adapter=None) for s, t in zip(slots, texts, strict=True)])
    rows = [Row(slot=s, tokens=t[-1:], start=len(t) - 1, adapter=None) for s, t in zip(slots, texts, strict=True)]
    ours = torch.log_softmax(fast.extend(rows), -1)
    theirs = [model(input_ids=torch.tensor([t], device=fast.device)).logits[0, -1].float() for t in texts]
    gap = float((ours - torch.log_softmax(torch.stack(theirs), -1)).abs().max())
    return float("inf") if math.isnan(gap) else gap
