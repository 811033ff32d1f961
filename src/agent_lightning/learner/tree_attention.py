"""Attention over a packed tree, block by block: rows that lie together see few columns, so most of T x T is left out.

A tree is flat in depth-first order and a token sees its ancestors and itself. A block is a run of rows whose subtrees
hang under one parent: its columns are that parent's ancestors and the block itself. Dense attention over the tree costs
T^2; this costs the sum over blocks of rows x (ancestors + rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "agent_lightning_tree"  # of the implementation, as transformers knows it
BLOCK_ROWS = 96  # a subtree of at most so many rows is not cut any further


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    start: int  # rows [start, end) of the flat tree
    end: int
    spans: tuple[tuple[int, int], ...]  # columns that its rows may see, as ranges in order; the last is its own
    mask: Tensor  # (rows, columns), bool, True where the row may see the column


_in_force: list[Sequence[Block]] = []


def blocks_of(mask_TT: NDArray[np.bool_], rows: int = BLOCK_ROWS) -> list[Block]:
    """Cut a tree into blocks that cover every row once. `mask_TT` is True where the row may see the column."""
    sizes_T = mask_TT.sum(axis=0)  # rows that see a token: its subtree
    return [_block(mask_TT, start, end) for start, end in _cuts(sizes_T, 0, len(sizes_T), rows)]


def _cuts(sizes_T: NDArray[np.int64], low: int, high: int, rows: int) -> Iterator[tuple[int, int]]:
    """Row ranges of the sibling subtrees that fill [low, high): small neighbours together, large ones cut further."""
    start = place = low
    while place < high:
        size = int(sizes_T[place])
        if size > rows:
            if start < place:
                yield start, place
            chain = place + 1
            while chain < place + size and sizes_T[chain] == sizes_T[chain - 1] - 1:
                chain += 1
            for first in range(place, chain, rows):
                yield first, min(first + rows, chain)
            yield from _cuts(sizes_T, chain, place + size, rows)
            start = place + size
        elif place + size - start > rows and start < place:
            yield start, place
            start = place
        place += size
    if start < high:
        yield start, high


def _block(mask_TT: NDArray[np.bool_], start: int, end: int) -> Block:
    above = np.flatnonzero(mask_TT[start, :start])
    breaks = np.flatnonzero(np.diff(above) > 1) + 1
    spans = [(int(run[0]), int(run[-1]) + 1) for run in np.split(above, breaks) if len(run)]
    columns = np.concatenate([above, np.arange(start, end)])
    return Block(
        start=start,
        end=end,
        spans=(*spans, (start, end)),
        mask=torch.from_numpy(np.ascontiguousarray(mask_TT[start:end][:, columns])),
    )


@contextmanager
def tree_in_force(blocks: Sequence[Block] | None) -> Iterator[None]:
    """Attention of `use_tree_attention` models runs over these blocks within the block; None: it runs densely."""
    if blocks is None:
        yield
        return
    _in_force.append(blocks)
    try:
        yield
    finally:
        _in_force.pop()


def use_tree_attention(model: Any) -> None:
    """Let this model, and nothing that shares its weights, attend over trees. Models that do not go through
    transformers' attention interface keep their own attention and the dense mask."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    """transformers' attention function: (B, H, T, D) in, (B, T, H, D) out."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not _in_force or given.get("sliding_window") or given.get("softcap"):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)  # type: ignore[return-value]
    scaling = given.get("scaling")
    out: Any = _OverBlocks.apply(query, key, value, _in_force[-1], scaling)
    return out.transpose(1, 2).contiguous(), None


class _OverBlocks(torch.autograd.Function):
    """Each block's attention; the backward pass computes it again, block by block, so that no T x T is ever kept."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[Block], scaling: float | None
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.blocks, ctx.scaling = blocks, scaling
        out = torch.empty_like(query)
        for block in blocks:
            rows = query[:, :, block.start : block.end]
            out[:, :, block.start : block.end] = _one(
                rows, _columns(key, block), _columns(value, block), block, scaling
            )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        (grad_out,) = grads
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for block in ctx.blocks:
            own = slice(block.start, block.end)
            inputs = [part.detach().requires_grad_(True) for part in (query[:, :, own], *_both(key, value, block))]
            with torch.enable_grad():
                out = _one(inputs[0], inputs[1], inputs[2], block, ctx.scaling)
            got = torch.autograd.grad(out, inputs, grad_out[:, :, own])
            grad_query[:, :, own] = got[0]
            _scatter(grad_key, got[1], block)
            _scatter(grad_value, got[2], block)
        return grad_query, grad_key, grad_value, None, None


def _one(rows: Tensor, keys: Tensor, values: Tensor, block: Block, scaling: float | None) -> Tensor:
    groups = rows.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    return scaled_dot_product_attention(rows, keys, values, attn_mask=block.mask.to(rows.device), scale=scaling)


def _columns(states: Tensor, block: Block) -> Tensor:
    return torch.cat([states[:, :, low:high] for low, high in block.spans], dim=2)


def _both(key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    return _columns(key, block), _columns(value, block)


def _scatter(total: Tensor, got: Tensor, block: Block) -> None:
    place = 0
    for low, high in block.spans:
        total[:, :, low:high] += got[:, :, place : place + high - low]
        place += high - low
