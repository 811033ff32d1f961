"""The static key-value cache of the Llama fast path: one tensor a layer, (slot, 2 x kv heads, length, head dim).

Keys are the first half of the second axis, values the second half, so that one write stores both.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

GROWTH = 256  # tokens: length is a multiple of it


class SlotCache:
    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        limit: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots, self.kv_heads, self.head_dim, self.limit = slots, kv_heads, head_dim, limit
        self.dtype, self.device = dtype, device
        self.length = 0  # tokens a slot can hold now
        self.layers: list[Tensor] = [self._zeros(0)] * layers

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens a slot."""
        if length <= self.length:
            return
        assert length <= self.limit, f"{length} tokens in a cache of at most {self.limit}"
        wanted = min(-(-max(length, self.length * 3 // 2) // GROWTH) * GROWTH, self.limit)
        for i, old in enumerate(self.layers):
            new = self._zeros(wanted)
            new[:, :, : self.length] = old
            self.layers[i] = new
        self.length = wanted

    def _zeros(self, length: int) -> Tensor:
        # Zeroed, because attention multiplies masked positions by 0 and 0 x NaN is NaN.
        shape = (self.slots, 2 * self.kv_heads, length, self.head_dim)
        if self.device.type != "cpu" or not length:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        # numpy asks the system for zero pages, so that memory is taken only where a sequence was written.
        zeros = np.zeros(math.prod(shape) * self.dtype.itemsize, np.uint8)
        return torch.from_numpy(zeros).view(self.dtype).view(shape)

    def copy(self, source: int, target: int, length: int) -> None:
        for layer in self.layers:
            layer[target, :, :length] = layer[source, :, :length]

    def places(self, slots: list[int], positions: list[int]) -> Tensor:
        """Where each token's keys and values go in `layer.view(-1, head_dim)`: (tokens x 2 x kv heads,)."""
        heads = 2 * self.kv_heads
        first = torch.tensor(slots, device=self.device) * (heads * self.length)
        first += torch.tensor(positions, device=self.device)
        step = torch.arange(heads, device=self.device) * self.length
        return (first.unsqueeze(1) + step).view(-1)
