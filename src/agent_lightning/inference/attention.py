"""Attention over slots of a static cache: one batched call for rows of one token, one call a row for a prefill.

Query heads that share a key head are laid out as queries of it, so that grouped attention needs no repeated keys.
Letters: N tokens, K key heads, G queries a key head, D head dim, L longest length of the step, S slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agent_lightning.inference.forward import Row

Attention = Callable[[Tensor, Tensor, int], Tensor]  # (queries NKGD, cache, K) -> (N, K x G x D)


def attention_of(rows: Sequence[Row], dtype: torch.dtype, device: torch.device) -> Attention:
    """The cheapest way to attend for these rows."""
    singles = [row for row in rows if len(row.tokens) == 1]
    if len(singles) < len(rows):
        return _Mixed(rows, dtype, device) if len(singles) > 1 else _Prefill(rows, dtype, device)
    slots = [row.slot for row in rows]
    if slots == list(range(len(rows))):
        return _Decode(rows, dtype, device)
    if max(slots) < 2 * len(rows) and len(set(slots)) == len(slots):
        return _DecodeWithHoles(rows, dtype, device)
    return _DecodeGathered(rows, dtype, device)


def _mask(lengths: list[int], longest: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """(rows, 1, 1, longest): 0 where a row may look, -inf beyond its length. None when all are as long."""
    if min(lengths) == longest:
        return None
    beyond = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device).unsqueeze(1)
    return torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, -torch.inf)[:, None, None]


class _Decode:
    """Row i lies in slot i: the cache is read in place."""

    def __init__(self, rows: Sequence[Row], dtype: torch.dtype, device: torch.device) -> None:
        lengths = [row.start + 1 for row in rows]
        self.longest = max(lengths)
        self.mask = _mask(lengths, self.longest, dtype, device)

    def __call__(self, queries: Tensor, cache: Tensor, key_heads: int) -> Tensor:
        held = cache[: queries.shape[0], :, : self.longest]
        return _attend(queries, held, key_heads, self.mask).reshape(queries.shape[0], -1)


class _DecodeWithHoles:
    """Most slots up to the last are in use: idle ones are computed along, which costs less than copying the others."""

    def __init__(self, rows: Sequence[Row], dtype: torch.dtype, device: torch.device) -> None:
        slots = [row.slot for row in rows]
        lengths = [1] * (max(slots) + 1)
        for row in rows:
            lengths[row.slot] = row.start + 1
        self.longest = max(lengths)
        self.mask = _mask(lengths, self.longest, dtype, device)
        self.slots = torch.tensor(slots, device=device)
        self.extent = len(lengths)

    def __call__(self, queries: Tensor, cache: Tensor, key_heads: int) -> Tensor:
        spread = queries.new_zeros(self.extent, *queries.shape[1:]).index_copy_(0, self.slots, queries)
        out = _attend(spread, cache[: self.extent, :, : self.longest], key_heads, self.mask)
        return out.index_select(0, self.slots).reshape(queries.shape[0], -1)


class _DecodeGathered:
    """Few slots of many: their keys and values are copied together."""

    def __init__(self, rows: Sequence[Row], dtype: torch.dtype, device: torch.device) -> None:
        lengths = [row.start + 1 for row in rows]
        self.longest = max(lengths)
        self.mask = _mask(lengths, self.longest, dtype, device)
        self.slots = torch.tensor([row.slot for row in rows], device=device)

    def __call__(self, queries: Tensor, cache: Tensor, key_heads: int) -> Tensor:
        held = cache[:, :, : self.longest].index_select(0, self.slots)
        return _attend(queries, held, key_heads, self.mask).reshape(queries.shape[0], -1)


class _Prefill:
    """Rows of several tokens: each looks at its slot's past and, causally, at itself."""

    def __init__(self, rows: Sequence[Row], dtype: torch.dtype, device: torch.device) -> None:
        self.rows = rows
        self.masks = [_causal(row.start, len(row.tokens), dtype, device) if row.start else None for row in rows]

    def __call__(self, queries: Tensor, cache: Tensor, key_heads: int) -> Tensor:
        parts, begin = [], 0
        for row, mask in zip(self.rows, self.masks, strict=True):
            count = len(row.tokens)
            held = cache[row.slot, :, : row.start + count].unsqueeze(1)
            own = queries[begin : begin + count].permute(1, 2, 0, 3)  # (K, G, count, D)
            groups = own.shape[1]
            keys = held[:key_heads].expand(-1, groups, -1, -1)
            values = held[key_heads:].expand(-1, groups, -1, -1)
            out = scaled_dot_product_attention(own, keys, values, attn_mask=mask, is_causal=mask is None)
            parts.append(out.permute(2, 0, 1, 3).reshape(count, -1))
            begin += count
        return torch.cat(parts)


class _Mixed:
    """Rows of one token together, the others one by one."""

    def __init__(self, rows: Sequence[Row], dtype: torch.dtype, device: torch.device) -> None:
        is_single = torch.tensor([len(row.tokens) == 1 for row in rows for _ in row.tokens], device=device)
        self.of_singles, self.of_longer = is_single.nonzero().squeeze(1), (~is_single).nonzero().squeeze(1)
        self.singles = attention_of([row for row in rows if len(row.tokens) == 1], dtype, device)
        self.longer = _Prefill([row for row in rows if len(row.tokens) > 1], dtype, device)

    def __call__(self, queries: Tensor, cache: Tensor, key_heads: int) -> Tensor:
        singles = self.singles(queries[self.of_singles], cache, key_heads)
        out = singles.new_empty(queries.shape[0], singles.shape[1])
        out[self.of_singles] = singles
        out[self.of_longer] = self.longer(queries[self.of_longer], cache, key_heads)
        return out


def _causal(past: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    full = torch.full((count, past + count), -torch.inf, dtype=dtype, device=device)
    return full.triu_(past + 1)


def _attend(queries: Tensor, held: Tensor, key_heads: int, mask: Tensor | None) -> Tensor:
    return scaled_dot_product_attention(queries, held[:, :key_heads], held[:, key_heads:], attn_mask=mask)
