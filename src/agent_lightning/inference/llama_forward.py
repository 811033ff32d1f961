"""The fast path: a hand-written forward of the Llama family over a static cache, with adapters beside the base.

RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al. 2023, arXiv:2302.13971). Tokens of all rows
lie flat, without padding; projections of one input are one matrix product. Letters: N tokens of the step, L length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from agent_lightning.errors import EngineError
from agent_lightning.inference.attention import Attention, attention_of
from agent_lightning.inference.forward import Row, is_base, replace_weights
from agent_lightning.inference.llama_cache import SlotCache
from agent_lightning.inference.packed import ROWS, PackedWeight, pack
from agent_lightning.models.adapter import Adapter

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
CHUNK = 512  # tokens of one prefill pass: bounds the activations, and more does not make products faster


@dataclass(slots=True)
class _Projection:
    weight: Tensor  # (out, in)
    bias: Tensor | None
    sizes: tuple[int, ...]  # rows of `weight` that each fused layer owns
    packed: PackedWeight | None  # the same once more, for few rows

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is not None and x.shape[0] <= ROWS:
            return self.packed(x)
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Block:
    norm_in: Tensor
    norm_mid: Tensor
    qkv: _Projection
    out: _Projection
    gate_up: _Projection
    down: _Projection

    @property
    def projections(self) -> tuple[_Projection, ...]:
        return self.qkv, self.out, self.gate_up, self.down


Pairs = dict[tuple[int, str], tuple[Tensor, Tensor]]  # (layer, fused name) -> A^T (in, r), scale x B^T (r, out)


@dataclass(frozen=True, slots=True)
class _Step:
    """What is the same for every block of one pass."""

    cos: Tensor  # (N, 1, head dim)
    sin: Tensor
    places: Tensor  # where the new keys and values go
    attention: Attention
    spans: list[tuple[Pairs, int, int]]


class LlamaForward:
    name = "llama"
    crops = True

    def __init__(self, model: Any, *, slots: int, context_length: int) -> None:
        config, inner = model.config, model.model
        self.model = model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = float(config.rms_norm_eps)
        self.embedding: nn.Embedding = inner.embed_tokens
        self.dtype, self.device = self.embedding.weight.dtype, self.embedding.weight.device
        self.norm: Any = inner.norm
        self.head = _projection([model.lm_head])
        self.vocabulary = int(self.head.weight.shape[0])
        self.blocks = [_block(layer) for layer in inner.layers]
        self.cos, self.sin = self._rotary(context_length)
        self.cache = SlotCache(
            layers=len(self.blocks), slots=slots, kv_heads=self.kv_heads, head_dim=self.head_dim,
            limit=context_length, dtype=self.dtype, device=self.device,
        )  # fmt: skip

    @torch.inference_mode()
    def _rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """Tables (length, 1, head dim); the first half of sin is negated, so that a half turn replaces rotate_half."""
        positions = torch.arange(length, device=self.device).unsqueeze(0)
        probe = torch.zeros(1, dtype=self.dtype, device=self.device)
        cos, sin = self.model.model.rotary_emb(probe, positions)
        sin = sin[0].clone()
        sin[:, : self.head_dim // 2].neg_()
        return cos[0].unsqueeze(1).clone(), sin.unsqueeze(1)

    def prepare(self, adapter: Adapter) -> Pairs | None:
        if is_base(adapter):
            return None
        pairs: Pairs = {}
        known: set[str] = set()
        for index, block in enumerate(self.blocks):
            for name, paths in FUSED.items():
                full = [f"model.layers.{index}.{path}" for path in paths]
                known.update(full)
                pair = _fused_pair(adapter, full, getattr(block, name), self.device)
                if pair is not None:
                    pairs[index, name] = pair
        if unknown := sorted(adapter.matrices.keys() - known):
            raise EngineError(f"the adapter changes {unknown[0]!r}: linear layers inside the decoder blocks are wanted")
        return pairs

    def copy(self, source: int, target: int, length: int) -> None:
        with torch.inference_mode():
            self.cache.copy(source, target, length)

    def replace(self, weights: Mapping[str, np.ndarray]) -> None:
        """The packed copies are of the old values: from now on every product reads the weights themselves."""
        replace_weights(self.model, weights)
        for projection in (self.head, *(each for block in self.blocks for each in block.projections)):
            projection.packed = None

    @torch.inference_mode()
    def extend(self, rows: Sequence[Row]) -> Tensor:
        self.cache.reserve(max(row.start + len(row.tokens) for row in rows))
        if all(len(row.tokens) == 1 for row in rows):
            return self._pass(rows)
        return torch.cat([self._pass_chunked(part) for part in _portions(rows)])

    def _pass_chunked(self, rows: Sequence[Row]) -> Tensor:
        """One pass, or for a single long row several: only the last one's logits are wanted."""
        row = rows[0]
        done = 0
        while len(rows) == 1 and len(row.tokens) - done > CHUNK:
            part = row.tokens[done : done + CHUNK]
            self._hidden([Row(slot=row.slot, tokens=part, start=row.start + done, adapter=row.adapter)])
            done += CHUNK
        if done:
            rows = [Row(slot=row.slot, tokens=row.tokens[done:], start=row.start + done, adapter=row.adapter)]
        return self._pass(rows)

    def _pass(self, rows: Sequence[Row]) -> Tensor:
        """Logits behind the last token of each row."""
        x = self._hidden(rows)
        if len(rows) < x.shape[0]:
            ends = torch.tensor([len(row.tokens) for row in rows], device=self.device).cumsum(0) - 1
            x = x[ends]
        return self.head(self._normed(x, self.norm.weight)).float()

    def _hidden(self, rows: Sequence[Row]) -> Tensor:
        """What the last block gives for every token (N, hidden); fills the cache."""
        tokens = [token for row in rows for token in row.tokens]
        positions = [position for row in rows for position in range(row.start, row.start + len(row.tokens))]
        slots = [row.slot for row in rows for _ in row.tokens]
        where = torch.tensor(positions, device=self.device)
        step = _Step(
            cos=self.cos[where],
            sin=self.sin[where],
            places=self.cache.places(slots, positions),
            attention=attention_of(rows, self.dtype, self.device),
            spans=_spans(rows),
        )
        x = self.embedding.weight[torch.tensor(tokens, device=self.device)]
        for index, block in enumerate(self.blocks):
            x = self._attend(index, block, x, step)
            x = self._feed(index, block, x, step)
        return x

    def _attend(self, index: int, block: _Block, x: Tensor, step: _Step) -> Tensor:
        h = self._normed(x, block.norm_in)
        qkv = _project(h, block.qkv, step.spans, (index, "qkv")).view(x.shape[0], -1, self.head_dim)
        turned = qkv[:, : self.heads + self.kv_heads]
        half = turned.roll(self.head_dim // 2, -1)
        turned.copy_((turned * step.cos).add_(half.mul_(step.sin)))
        cache = self.cache.layers[index]
        cache.view(-1, self.head_dim).index_copy_(0, step.places, qkv[:, self.heads :].reshape(-1, self.head_dim))
        grouped = qkv[:, : self.heads].view(x.shape[0], self.kv_heads, -1, self.head_dim)
        attended = step.attention(grouped, cache, self.kv_heads)
        return _project(attended, block.out, step.spans, (index, "out")).add_(x)

    def _feed(self, index: int, block: _Block, x: Tensor, step: _Step) -> Tensor:
        h = self._normed(x, block.norm_mid)
        gate, up = _project(h, block.gate_up, step.spans, (index, "gate_up")).chunk(2, -1)
        return _project(functional.silu(gate).mul_(up), block.down, step.spans, (index, "down")).add_(x)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square normalisation, in float32 whatever the model's type (Zhang and Sennrich 2019)."""
        wide = x.float()
        scale = wide.pow(2).mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return weight * (wide * scale).to(x.dtype)


def _project(x: Tensor, projection: _Projection, spans: list[tuple[Pairs, int, int]], key: tuple[int, str]) -> Tensor:
    """W x + bias in the model's type, plus each span's scale B (A x), computed in float32."""
    y = projection(x)
    for pairs, begin, end in spans:
        if (pair := pairs.get(key)) is None:
            continue
        part, inner = y[begin:end], x[begin:end].float() @ pair[0]
        if y.dtype == torch.float32:
            part.addmm_(inner, pair[1])
        else:
            part.add_((inner @ pair[1]).to(y.dtype))
    return y


def _spans(rows: Sequence[Row]) -> list[tuple[Pairs, int, int]]:
    """Runs of tokens under one adapter: (adapter, begin, end). Base rows need none."""
    spans, begin = [], 0
    for _, run in groupby(rows, key=lambda row: id(row.adapter)):
        members = list(run)
        end = begin + sum(len(row.tokens) for row in members)
        if members[0].adapter is not None:
            spans.append((members[0].adapter, begin, end))
        begin = end
    return spans


def _portions(rows: Sequence[Row]) -> list[list[Row]]:
    """Cut rows, in order, into passes of at most CHUNK tokens; a longer row is alone."""
    portions: list[list[Row]] = []
    room = 0
    for row in rows:
        if len(row.tokens) > room:
            portions.append([])
            room = CHUNK
        portions[-1].append(row)
        room -= len(row.tokens)
    return portions


def _block(layer: Any) -> _Block:
    fused = {name: _projection([layer.get_submodule(path) for path in paths]) for name, paths in FUSED.items()}
    return _Block(norm_in=layer.input_layernorm.weight, norm_mid=layer.post_attention_layernorm.weight, **fused)


def _projection(linears: list[nn.Linear]) -> _Projection:
    weight, bias = _fuse(linears)
    sizes = tuple(linear.weight.shape[0] for linear in linears)
    return _Projection(weight, bias, sizes, pack(weight, bias))


def _fuse(linears: list[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Lay the weights one behind the other and let the layers' parameters point into them: no second copy."""
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    sizes = [linear.weight.shape[0] for linear in linears]
    bias = None
    with torch.no_grad():
        weight = torch.cat([linear.weight for linear in linears])
        for linear, part in zip(linears, weight.split(sizes), strict=True):
            linear.weight.data = part
        if linears[0].bias is not None:
            bias = torch.cat([linear.bias for linear in linears])
            for linear, part in zip(linears, bias.split(sizes), strict=True):
                linear.bias.data = part
    return weight, bias


def _fused_pair(
    adapter: Adapter, paths: list[str], projection: _Projection, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """A stacked and B block-diagonal over the fused layers; a layer without an adapter keeps zeros in its rows."""
    present = [(i, adapter.matrices[path]) for i, path in enumerate(paths) if path in adapter.matrices]
    if not present:
        return None
    rank_sum = sum(a.shape[0] for _, (a, _) in present)
    down = torch.zeros(rank_sum, projection.weight.shape[1])
    up = torch.zeros(sum(projection.sizes), rank_sum)
    rank = 0
    for i, (a, b) in present:
        top, size = sum(projection.sizes[:i]), projection.sizes[i]
        if a.shape[1] != down.shape[1] or b.shape != (size, a.shape[0]):
            raise EngineError(
                f"{paths[i]}: A {a.shape} and B {b.shape} do not fit a layer of shape {(size, down.shape[1])}"
            )
        down[rank : rank + a.shape[0]] = torch.from_numpy(a)
        up[top : top + size, rank : rank + a.shape[0]] = torch.from_numpy(b)
        rank += a.shape[0]
    return down.T.contiguous().to(device), (up * adapter.scale).T.contiguous().to(device)
