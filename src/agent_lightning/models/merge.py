"""Base and adapter in one folder that transformers loads by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from agent_lightning.errors import ModelError
from agent_lightning.models.adapter import Adapter
from agent_lightning.models.folder import save_folder

BESIDE_WEIGHTS = (
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
)


def export_merged(base_path: Path, adapter: Adapter, out: Path, chat_template: str | None = None) -> None:
    """Write W + (alpha / rank) B A, merged in float32 from the pristine base, with tokenizer and chat template.

    `chat_template` replaces the base's. The folder appears whole or not at all. Raises ModelError where the adapter is
    not of this base, CheckpointError where the disk refuses.
    """
    import torch

    from agent_lightning.models.load import load_model

    model = load_model(base_path, "float32")
    with torch.no_grad():
        for path, (a, b) in adapter.matrices.items():
            weight = _weight(model, path, base_path)
            weight += adapter.scale * (torch.from_numpy(b) @ torch.from_numpy(a))
        if adapter.weights is not None:
            _replace(model, adapter, base_path)
    with save_folder(out) as draft:
        model.save_pretrained(draft)
        for pattern in BESIDE_WEIGHTS:
            for file in base_path.glob(pattern):
                shutil.copy2(file, draft / file.name)
        if chat_template is not None:
            (draft / "chat_template.jinja").write_text(chat_template)


def _weight(model: Any, path: str, base_path: Path) -> Any:
    try:
        return model.get_submodule(path).weight
    except AttributeError:
        raise ModelError(
            f"the adapter changes {path!r}, which {base_path} does not have: is it of this base?"
        ) from None


def _replace(model: Any, adapter: Adapter, base_path: Path) -> None:
    import torch

    assert adapter.weights is not None
    parameters = dict(model.named_parameters())
    if unknown := sorted(adapter.weights.keys() - parameters.keys()):
        raise ModelError(f"the weights have {unknown[0]!r}, which {base_path} does not: are they of this base?")
    for name, values in adapter.weights.items():
        parameters[name].copy_(torch.from_numpy(values))
