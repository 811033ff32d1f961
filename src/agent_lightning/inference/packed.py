"""Weights packed in float16 for products with few rows: half the bytes to read, float32 arithmetic, the same results.

A decode step reads every weight to multiply it with a handful of rows; a general matrix product besides copies the
weights into its own layout at every call. FBGEMM (Khudia et al. 2021, arXiv:2101.05615) does that once. Weights are
packed only where float16 holds them as exactly as a float32 product tells apart: those of a checkpoint in float16 all,
those of one in bfloat16 but for a few near zero. So what is sampled stays what the learner computes.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

ROWS = 96  # beyond, a general product is as fast: it is bound by arithmetic
ROUNDING = 2.0**-22  # of a row's length: a float32 product of some hundred terms is off by more


class PackedWeight:
    """A (out, in) matrix with its bias, ready for `x W^T + bias`."""

    __slots__ = ("_packed",)

    def __init__(self, packed: Any) -> None:
        self._packed = packed

    def __call__(self, x: Tensor) -> Tensor:
        """Float32 (rows, in) to float32 (rows, out)."""
        return torch.ops.quantized.linear_dynamic_fp16(x, self._packed)


def pack(weight: Tensor, bias: Tensor | None) -> PackedWeight | None:
    """None where this machine or these values have no exact packed form."""
    if not _can_pack() or weight.device.type != "cpu" or weight.dtype != torch.float32 or not _is_half(weight):
        return None
    with warnings.catch_warnings():  # it warns of values that it clips, and those were refused above
        warnings.simplefilter("ignore")
        return PackedWeight(torch.ops.quantized.linear_prepack_fp16(weight.detach().contiguous(), bias))


def _can_pack() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def _is_half(weight: Tensor) -> bool:
    """Whether float16 holds every row; a block of them at a time, so that no second copy of a large one is made."""
    return all(
        bool(((part.half().float() - part).norm(dim=1) <= ROUNDING * part.norm(dim=1)).all())
        for part in weight.detach().split(4096)
    )
