"""From a model folder to a torch module, ready to sample from or to train beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_lightning.errors import ModelError
from agent_lightning.models.models import check_folder


def load_model(path: Path, dtype: str = "float32") -> Any:
    """Load a causal language model in eval mode, no parameter requiring a gradient, SDPA attention.

    `dtype` is "float32" or "bfloat16". Raises ModelError.
    """
    import torch
    from transformers import AutoModelForCausalLM

    check_folder(path)
    try:
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(
                str(path), dtype=getattr(torch, dtype), local_files_only=True, attn_implementation="sdpa"
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be loaded as a causal language model: {error}") from error
    return model.eval().requires_grad_(False)


def context_length(model: Any) -> int:
    """Tokens that fit, prompt and answer together."""
    return int(model.config.get_text_config().max_position_embeddings)


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
