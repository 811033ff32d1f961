"""A LoRA adapter as it travels between learner, engine and disk: named float32 arrays beside a pristine base.

y = W x + (alpha / rank) B A x, with A (rank, in) and B (out, rank), for each adapted linear layer (Hu et al. 2021,
arXiv:2106.09685, section 4.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_lightning.errors import CheckpointError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One version of one policy's adapter. Version 0 has B = 0 everywhere: the base model.

    Keys of `matrices` are module paths of the transformers model ("model.layers.0.self_attn.q_proj"); values are
    (A, B). With rank 0 (full weights) `matrices` is empty and `weights` holds every parameter by its name.
    """

    policy: str
    version: int
    rank: int
    alpha: float
    matrices: Mapping[str, tuple[Floats, Floats]]
    weights: Mapping[str, Floats] | None = None

    @property
    def scale(self) -> float:
        return self.alpha / self.rank if self.rank else 0.0


def peft_config(adapter: Adapter, base: str) -> dict[str, Any]:
    """The adapter_config.json that lets peft load this adapter on the base model."""
    indices = {int(found[1]) for path in adapter.matrices if (found := re.search(r"\.(\d+)\.", path))}
    some = {"layers_to_transform": sorted(indices)} if indices and min(indices) > 0 else {}
    return {
        **some,
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({path.rsplit(".", 1)[-1] for path in adapter.matrices}),
    }


def peft_tensors(adapter: Adapter) -> dict[str, Floats]:
    """The tensors of adapter_model.safetensors under peft's names."""
    tensors: dict[str, Floats] = {}
    for path, (a, b) in adapter.matrices.items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = a
        tensors[f"base_model.model.{path}.lora_B.weight"] = b
    return tensors


def from_peft_tensors(tensors: Mapping[str, Floats]) -> dict[str, tuple[Floats, Floats]]:
    """The reverse of `peft_tensors`: module path -> (A, B)."""
    head, tail = "base_model.model.", ".lora_A.weight"
    paths = sorted(name[len(head) : -len(tail)] for name in tensors if name.endswith(tail))
    return {path: (tensors[f"{head}{path}{tail}"], tensors[f"{head}{path}.lora_B.weight"]) for path in paths}


def read_adapter(folder: Path) -> Adapter:
    """The adapter, or the full weights, of a checkpoint. Raises CheckpointError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        full = state["lora_rank"] == 0
        tensors = load_file(folder / ("model.safetensors" if full else "adapter_model.safetensors"))
        return Adapter(
            policy=state["policy"],
            version=state["version"],
            rank=state["lora_rank"],
            alpha=state["lora_alpha"],
            matrices={} if full else from_peft_tensors(tensors),
            weights=tensors if full else None,
        )
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} holds no adapter that can be read: {error!r}") from error
