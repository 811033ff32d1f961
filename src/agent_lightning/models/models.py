"""The room's contract: a model is a folder in Hugging Face's format, and everything else starts from its path.

`source.resolve(name)` gives the folder, `read_card(folder)` what can be known of it without torch, `load.load_model`
the torch module, `lora` the trainable matrices beside it, `merge.export_merged` a folder with both in one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_lightning.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    path: Path
    architecture: str  # "LlamaForCausalLM"
    context_length: int  # tokens, prompt and answer together
    vocab_size: int
    eos_ids: tuple[int, ...]  # any of these ends a turn
    pad_id: int


def read_card(folder: Path) -> ModelCard:
    """Read config.json and generation_config.json. Raises ModelError that names what is missing or wrong."""
    check_folder(folder)
    config = _json(folder / "config.json")
    text = config.get("text_config", config)
    generation = _json(folder / "generation_config.json") if (folder / "generation_config.json").is_file() else {}
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
    pad = config.get("pad_token_id")
    try:
        return ModelCard(
            path=folder,
            architecture=(config.get("architectures") or ["unknown"])[0],
            context_length=int(text["max_position_embeddings"]),
            vocab_size=int(text["vocab_size"]),
            eos_ids=eos_ids,
            pad_id=int(pad) if pad is not None else (eos_ids or (0,))[0],
        )
    except KeyError as error:
        raise ModelError(f"{folder / 'config.json'} has no {error}: a causal language model is wanted") from None


def auto_dtype() -> str:
    """The dtype to compute in on this machine: "bfloat16" where the hardware multiplies it, else "float32".

    A processor without AVX512-BF16, AMX or the Arm instructions emulates bfloat16 10 to 80 times slower than float32.
    """
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return "bfloat16"
    try:
        described = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "float32"
    flags = next((line for line in described.splitlines() if line.lower().startswith(("flags", "features"))), "")
    return "bfloat16" if {"avx512_bf16", "amx_bf16", "bf16"} & set(flags.split()) else "float32"


def check_folder(folder: Path) -> None:
    """Raise ModelError, naming what is missing, unless the folder holds a model with its tokenizer."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder: a Hugging Face model folder is wanted")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        pickled = " (pickled weights are not read; convert them)" if list(folder.glob("*.bin")) else ""
        missing.append(f"model.safetensors{pickled}")
    if missing:
        raise ModelError(f"{folder} is no model folder: it lacks {', '.join(missing)}")


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
