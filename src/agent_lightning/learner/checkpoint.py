"""The learner's state on disk, in formats that others read: peft's or transformers' for weights, JSON beside.

adapter_model.safetensors, adapter_config.json   LoRA, as peft loads it; or
model.safetensors, config.json                   full weights, as transformers loads them
optimizer.safetensors                            AdamW's moments by parameter, and its count of steps
critic.safetensors                               the value head and its moments, of an algorithm with a critic
state.json                                       version and random state
manifest.json                                    size and SHA-256 of each file above
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_lightning.errors import CheckpointError
from agent_lightning.models.adapter import Adapter, from_peft_tensors, peft_config, peft_tensors
from agent_lightning.models.folder import check_manifest, save_folder, sync, write_manifest

__all__ = ["Saved", "check_manifest", "read", "save_folder", "write", "write_manifest"]

CRITIC = "critic.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    version: int
    tensors: dict[str, Tensor]  # trained weights by the learner's names
    moments: dict[str, Tensor]
    random_state: Tensor
    critic: dict[str, Tensor] | None  # None where no critic was trained


def write(
    folder: Path,
    *,
    adapter: Adapter,
    model_config: Any,
    moments: dict[str, Tensor],
    critic: dict[str, Tensor] | None,
    generator: torch.Generator,
) -> None:
    """Write into an empty folder; every file is on the disk when this returns. Raises CheckpointError."""
    state = {
        "version": adapter.version,
        "policy": adapter.policy,
        "lora_rank": adapter.rank,
        "lora_alpha": adapter.alpha,
        "random_state": generator.get_state().tolist(),
    }
    try:
        if adapter.weights is None:
            tensors = {name: torch.from_numpy(values) for name, values in peft_tensors(adapter).items()}
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            shown = peft_config(adapter, getattr(model_config, "_name_or_path", ""))
            (folder / "adapter_config.json").write_text(json.dumps(shown, indent=1))
        else:
            full = {name: torch.from_numpy(values) for name, values in adapter.weights.items()}
            save_file(full, folder / "model.safetensors", metadata={"format": "pt"})
            (folder / "config.json").write_text(model_config.to_json_string(use_diff=False))
        save_file(moments, folder / "optimizer.safetensors")
        if critic is not None:
            save_file(critic, folder / CRITIC)
        (folder / "state.json").write_text(json.dumps(state))
        write_manifest(folder)
        for path in [*folder.iterdir(), folder]:
            sync(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} could not be written: {error}; free space and try again") from error


def read(folder: Path, *, rank: int, alpha: float) -> Saved:
    """Check every byte, then read what `write` wrote. Raises CheckpointError."""
    check_manifest(folder)
    try:
        state = json.loads((folder / "state.json").read_text())
        moments = load_file(folder / "optimizer.safetensors")
        if (state["lora_rank"], state["lora_alpha"]) != (rank, alpha if rank else state["lora_alpha"]):
            raise CheckpointError(
                f"{folder} was written with lora_rank {state['lora_rank']} and lora_alpha {state['lora_alpha']}, "
                f"the settings say {rank} and {alpha}: set them alike"
            )
        tensors = _adapter_tensors(folder) if rank else load_file(folder / "model.safetensors")
        random_state = torch.tensor(state["random_state"], dtype=torch.uint8)
        return Saved(
            version=int(state["version"]),
            tensors=tensors,
            moments=moments,
            random_state=random_state,
            critic=load_file(folder / CRITIC) if (folder / CRITIC).exists() else None,
        )
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} is no checkpoint of a learner: {error!r}; use another one") from error


def _adapter_tensors(folder: Path) -> dict[str, Tensor]:
    """peft's names -> the learner's: "PATH.a" and "PATH.b"."""
    tensors: dict[str, Any] = {}
    saved: Any = load_file(folder / "adapter_model.safetensors")
    for path, (a, b) in from_peft_tensors(saved).items():
        tensors |= {f"{path}.a": a, f"{path}.b": b}
    return tensors
