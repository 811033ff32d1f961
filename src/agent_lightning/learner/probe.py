"""Does this architecture give the same numbers packed and unpacked? Found out once, on a small copy of it."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_lightning.learner.forward import score
from agent_lightning.learner.pack import Cost, Pass, plan, plan_unpacked
from agent_lightning.learner.tree_attention import use_tree_attention
from agent_lightning.records import Sample

LOGP_NATS = 5e-5  # largest difference of a log-probability, float32
GRADIENT_SHARE = 1e-5  # largest difference of a gradient, relative to its norm
PROBE_WINDOW = 6  # a sliding window is shrunk to this, so that a short tree meets it
PROBE_VOCABULARY = 97

# Measured with SmolLM2-135M in float32 on one AVX2 core, forward and backward: what a pass costs before its first
# token, in multiply-adds of a linear layer, and what a (query, key) pair of attention costs against its own multiply-adds.
LAYER_OVERHEAD_PRODUCTS = 1.6e8
ATTENTION_FACTOR = 1.0


def why_not_packed(config: Any) -> str | None:
    """None when packed and unpacked agree on a random tree, else the reason in words.

    The copy has the model's own layer kinds and widths, few layers, a small vocabulary, float32 and random weights.
    """
    state = torch.get_rng_state()
    try:
        model = _shallow(config)
        return _difference(model)
    except Exception as error:  # a foreign architecture may fail in any way; the run reports the reason and goes on
        return f"the probe failed on {getattr(config, 'model_type', 'this model')}: {type(error).__name__}: {error}"
    finally:
        torch.set_rng_state(state)


def pass_cost(config: Any) -> Cost:
    """Cost of a pass from the model's shape alone, so that the same batch is always cut the same way."""
    text = config.get_text_config()
    hidden, inner = text.hidden_size, getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    heads = text.num_attention_heads
    head = getattr(text, "head_dim", None) or hidden // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    products = hidden * head * (2 * heads + 2 * kv_heads) + 3 * hidden * inner  # multiply-adds of a token and layer
    return Cost(
        overhead=LAYER_OVERHEAD_PRODUCTS / products,
        quadratic=ATTENTION_FACTOR * 2 * heads * head / products,
    )


def _shallow(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(config)
    text = config.get_text_config()
    kinds = list(getattr(text, "layer_types", None) or [])
    # The shortest stack that shows every kind of layer, two at least.
    depth = max(2, 1 + max((kinds.index(kind) for kind in set(kinds)), default=0))
    text.num_hidden_layers = min(depth, text.num_hidden_layers)
    if kinds:
        text.layer_types = kinds[: text.num_hidden_layers]
    if getattr(text, "sliding_window", None):
        text.sliding_window = PROBE_WINDOW
    text.vocab_size = min(PROBE_VOCABULARY, text.vocab_size)
    text.pad_token_id = text.bos_token_id = text.eos_token_id = None
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    use_tree_attention(model)
    return model.eval()


def _difference(model: Any) -> str | None:
    samples = list(_random_tree(model.config.get_text_config().vocab_size))
    always = Cost(overhead=0.0, quadratic=0.0)  # packs whatever can be packed
    trees = plan(samples, always, pack_tokens=4096, micro_tokens=4096, max_sample_tokens=4096)
    assert any(work.mask_TT is not None for work in trees)
    marks_N = np.concatenate([np.array(s.advantages, np.float32)[np.array(s.trained) == 1] for s in samples])
    packed = _sums(model, trees, marks_N)
    unpacked = _sums(model, plan_unpacked(samples, micro_tokens=4096, max_sample_tokens=4096), marks_N)
    worst = max(abs(packed[0][key] - unpacked[0][key]) for key in unpacked[0])
    if not worst <= LOGP_NATS:
        return f"packed and unpacked log-probabilities differ by {worst:.1e} nats ({LOGP_NATS:.0e} is allowed)"
    share = float((packed[1] - unpacked[1]).norm() / unpacked[1].norm())
    if not share <= GRADIENT_SHARE:
        return f"packed and unpacked gradients differ by {share:.1e} of their norm ({GRADIENT_SHARE:.0e} is allowed)"
    return None


def _sums(model: Any, passes: Sequence[Pass], marks_N: NDArray[np.float32]) -> tuple[dict[int, float], Tensor]:
    """Log-probabilities by entry, and the gradient of their sum weighted by marks in one flat float64 array."""
    model.zero_grad(set_to_none=True)
    logps: dict[int, float] = {}
    for work in passes:
        logp_E, _ = score(model, work)
        (logp_E * torch.from_numpy(marks_N[work.entry_E])).sum().backward()
        logps |= dict(zip(work.entry_E.tolist(), logp_E.tolist(), strict=True))
    grads = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
    return logps, torch.cat(grads)


def _random_tree(vocabulary: int) -> Iterator[Sample]:
    """Two prompts, four branches each, that part and part again; every trained token has an advantage of its own."""
    rng = np.random.default_rng(0)
    mark = 0
    for _ in range(2):
        prompt = rng.integers(0, vocabulary, 13).tolist()
        forks = [rng.integers(0, vocabulary, 5).tolist() for _ in range(2)]
        for fork in (*forks, *forks):
            rest = rng.integers(0, vocabulary, int(rng.integers(3, 12))).tolist()
            tokens, trained = [*prompt, *fork, *rest], [0] * 15 + [1] * (3 + len(rest))
            advantages = [0.0] * 15 + [1.0 + (mark + i) / 64 for i in range(3 + len(rest))]
            mark += 3 + len(rest)
            yield Sample(
                rollout_id="probe",
                group_id="probe",
                tokens=array("i", tokens),
                trained=array("b", trained),
                logprobs=array("f", [0.0] * len(tokens)),
                advantages=array("f", advantages),
                temperature=1.0,
                rollout_tokens=sum(trained),
                version=0,
            )
