"""Where the replicas come back from: the folder that was saved or restored last."""

from __future__ import annotations

import os
from pathlib import Path


class Anchor:
    """Follows the folder when its owner renames it, as one does to put a draft in place, by keeping it open."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version = version
        self._folder = folder
        self._open = os.open(folder, os.O_RDONLY)

    @property
    def folder(self) -> Path:
        """Where it lies now."""
        told = Path(f"/proc/self/fd/{self._open}")
        return Path(os.readlink(told)) if told.is_symlink() else self._folder

    @property
    def present(self) -> bool:
        return self.folder.is_dir()

    def close(self) -> None:
        if self._open >= 0:
            os.close(self._open)
        self._open = -1
