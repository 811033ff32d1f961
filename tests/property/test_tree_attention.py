"""Attention over blocks is attention over the dense mask, for any tree and any cut."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from agent_lightning.learner.tree_attention import _OverBlocks, blocks_of


def tree_mask(chance: random.Random, size: int) -> np.ndarray:
    """A random tree in depth-first order: row i sees itself and its ancestors."""
    mask = np.zeros((size, size), dtype=bool)
    path: list[int] = []
    for node in range(size):
        while path and chance.random() < 0.25:
            path.pop()
        mask[node, path] = True
        mask[node, node] = True
        path.append(node)
    return mask


trees = st.tuples(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 12))


@given(trees)
def test_blocks_cover_each_row_once_and_see_exactly_what_the_mask_allows(tree):
    seed, size, rows = tree
    mask = tree_mask(random.Random(seed), size)
    rebuilt = np.zeros_like(mask)
    covered = []
    for block in blocks_of(mask, rows):
        covered += range(block.start, block.end)
        columns = np.concatenate([np.arange(low, high) for low, high in block.spans])
        rebuilt[np.ix_(range(block.start, block.end), columns)] = block.mask.numpy()
    assert covered == list(range(size))
    assert (rebuilt == mask).all()


@settings(max_examples=25, deadline=None)
@given(trees)
def test_values_and_gradients_equal_dense_attention(tree):
    seed, size, rows = tree
    mask = tree_mask(random.Random(seed), size)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 4, size, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 2, size, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    value = torch.randn(1, 2, size, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    dense = scaled_dot_product_attention(
        query,
        key.repeat_interleave(2, dim=1),
        value.repeat_interleave(2, dim=1),
        attn_mask=torch.from_numpy(mask),
    )
    packed = _OverBlocks.apply(query, key, value, blocks_of(mask, rows), None)
    torch.testing.assert_close(packed, dense)
    weight = torch.randn(dense.shape, generator=generator, dtype=torch.float64)
    wanted = torch.autograd.grad((dense * weight).sum(), (query, key, value))
    got = torch.autograd.grad((packed * weight).sum(), (query, key, value))
    torch.testing.assert_close(got, wanted)
