"""The general path: any transformers causal LM through its own forward, one dynamic cache a slot."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from agent_lightning.errors import EngineError
from agent_lightning.inference.forward import Row, is_base, replace_weights
from agent_lightning.models.adapter import Adapter

Pairs = dict[str, tuple[Tensor, Tensor]]  # module path -> A^T (in, r), scale x B^T (r, out)


class GeneralForward:
    name = "general"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])
        accepted = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"  # the older name is going away
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        layers = self._empty().layers
        self.crops = bool(layers) and all(type(layer) is DynamicLayer for layer in layers)
        self._caches: dict[int, DynamicCache] = {}

    def _empty(self) -> DynamicCache:
        return DynamicCache(config=self.model.config)

    def prepare(self, adapter: Adapter) -> Pairs | None:
        if is_base(adapter):
            return None
        modules = dict(self.model.named_modules())
        if unknown := sorted(adapter.matrices.keys() - modules.keys()):
            raise EngineError(f"the adapter changes {unknown[0]!r}, which {type(self.model).__name__} lacks")
        return {
            path: (
                torch.from_numpy(a).T.contiguous().to(self.device),
                (torch.from_numpy(b) * adapter.scale).T.contiguous().to(self.device),
            )
            for path, (a, b) in adapter.matrices.items()
        }

    def copy(self, source: int, target: int, length: int) -> None:
        if source != target:
            self._caches[target] = copy.deepcopy(self._caches[source])
        self._cut(self._caches[target], length)

    def replace(self, weights: Mapping[str, np.ndarray]) -> None:
        replace_weights(self.model, weights)

    def _cut(self, cache: DynamicCache, length: int) -> None:
        surplus = cache.get_seq_length() - length
        if surplus > 0:
            assert self.crops, "a cache that cannot be cut was used in part"
            for layer in cache.layers:
                assert isinstance(layer, DynamicLayer)
                layer.crop(-surplus)

    def extend(self, rows: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            return torch.cat([self._extend_one(row) for row in rows])

    def _extend_one(self, row: Row) -> Tensor:
        if row.start == 0:
            self._caches[row.slot] = self._empty()
        cache = self._caches[row.slot]
        self._cut(cache, row.start)
        ids = torch.tensor([list(row.tokens)], device=self.device)
        with self._adapted(row.adapter):
            out = self.model(input_ids=ids, use_cache=True, **{self._cache_name: cache}, **self._last_only)
        return out.logits[:, -1].float()

    @contextmanager
    def _adapted(self, pairs: Pairs | None) -> Iterator[None]:
        """Within the block the named layers add scale B (A x) to what they give; the model is left as it was."""
        handles = [
            self.model.get_submodule(path).register_forward_hook(_adding(pair)) for path, pair in (pairs or {}).items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _adding(pair: tuple[Tensor, Tensor]) -> Any:
    def add(_module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        delta = (inputs[0].float() @ pair[0]) @ pair[1]
        return output + delta.to(output.dtype)

    return add
