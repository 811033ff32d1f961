"""Folders that are written whole or not at all, and whose every byte can be checked later."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_lightning.errors import CheckpointError

MANIFEST = "manifest.json"


@contextmanager
def save_folder(target: Path) -> Iterator[Path]:
    """Give an empty draft folder beside `target`; on success it is sealed, flushed and renamed to `target`.

    Whatever goes wrong, a `target` that was there before stays whole and the draft is removed. Raises CheckpointError
    where the disk refuses (full, read-only, quota); errors of the caller's own code pass through.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    _settle(target)
    draft = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.draft"
    try:
        draft.mkdir()
        yield draft
        write_manifest(draft)
        _flush(draft)
        _put_in_place(draft, target)
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else str(error)
        raise CheckpointError(
            f"{target} could not be written: {reason}; what was there before is untouched. Free space and try again"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_manifest(folder: Path) -> None:
    """Write manifest.json: size and SHA-256 of every other file in the folder, by its path relative to it."""
    files = {str(path.relative_to(folder)): _fingerprint(path) for path in _files(folder)}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1, sort_keys=True))


def check_manifest(folder: Path) -> None:
    """Read every byte of the folder and compare. Raises CheckpointError that names the damaged file."""
    for name, wanted in _manifest(folder).items():
        _check_size(folder / name, wanted["bytes"])
        if _fingerprint(folder / name)["sha256"] != wanted["sha256"]:
            raise CheckpointError(f"{folder / name} is damaged: its SHA-256 is not the manifest's; use another one")


def check_sizes(folder: Path) -> None:
    """The cheap half of `check_manifest`: every file is there and has its size."""
    for name, wanted in _manifest(folder).items():
        _check_size(folder / name, wanted["bytes"])


def _manifest(folder: Path) -> dict[str, dict]:
    _settle(folder)
    try:
        return json.loads((folder / MANIFEST).read_text())["files"]
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}: it is no checkpoint, or was never finished") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is damaged: {error}; use another checkpoint") from error


def _check_size(path: Path, wanted: int) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; use another checkpoint")
    if path.stat().st_size != wanted:
        raise CheckpointError(f"{path} is damaged: {path.stat().st_size} bytes, {wanted} were written; use another one")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def _fingerprint(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _flush(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _retired(target: Path) -> Path:
    return target.parent / f".{target.name}.retired"


def _put_in_place(draft: Path, target: Path) -> None:
    """Rename; a folder that is already there steps aside first, and `_settle` brings it back after a crash between."""
    if target.exists():
        target.rename(_retired(target))
    draft.rename(target)
    sync(target.parent)
    shutil.rmtree(_retired(target), ignore_errors=True)


def _settle(target: Path) -> None:
    retired = _retired(target)
    if not retired.exists():
        return
    if target.exists():
        shutil.rmtree(retired, ignore_errors=True)
    else:
        retired.rename(target)
