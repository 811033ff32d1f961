"""A model's forward over numbered cache slots: what the core asks of a model, however it is computed.

A slot holds the keys and values of one token sequence. The core decides what each slot means; a forward only computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from agent_lightning.errors import EngineError
from agent_lightning.models.adapter import Adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Tokens to feed into one slot."""

    slot: int
    tokens: Sequence[int]  # at least one
    start: int  # tokens of the slot that stay; what it holds beyond them is overwritten
    adapter: Any  # what `prepare` gave; None is the base


class Forward(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def crops(self) -> bool:
        """Whether a slot can be cut back to any length (not with a sliding window or linear attention)."""
        ...

    def prepare(self, adapter: Adapter) -> Any:
        """The adapter in the form that `extend` takes; None when it changes nothing. Raises EngineError."""
        ...

    def extend(self, rows: Sequence[Row]) -> torch.Tensor:
        """Feed every row's tokens; gives float32 logits (rows, vocabulary) behind the last token of each."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Make `target` hold the first `length` tokens of `source`."""
        ...

    def replace(self, weights: Mapping[str, np.ndarray]) -> None:
        """Full-weight training: take new values for the model's own parameters. Raises EngineError."""
        ...


def is_base(adapter: Adapter) -> bool:
    """Whether the adapter adds nothing: it has no matrices, or every B is zero."""
    return not any(np.any(b) for _, b in adapter.matrices.values())


def replace_weights(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Copy new values into the parameters. Raises EngineError when names or shapes differ."""
    parameters = dict(model.named_parameters())
    if unknown := sorted(weights.keys() - parameters.keys()):
        raise EngineError(f"{len(unknown)} published weights have no place in the model, {unknown[0]!r} among them")
    with torch.no_grad():
        for name, value in weights.items():
            parameter = parameters[name]
            if tuple(value.shape) != tuple(parameter.shape):
                raise EngineError(f"{name}: shape {value.shape} was published, {tuple(parameter.shape)} was wanted")
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
