"""The patches of this process, counted: the first who needs them puts them in, the last who leaves takes them out."""

from __future__ import annotations

import sys
import threading
from typing import Any

from agent_lightning.client import transports
from agent_lightning.client.patch import Patch
from agent_lightning.client.propagation import patch_threads

_lock = threading.RLock()
_users = 0
_patches: list[Patch] = []
_patched: set[str] = set()
_watched: set[str] = set()


class Installed:
    """One user of the patches. `remove` is idempotent."""

    def __init__(self) -> None:
        self._counted = True

    def remove(self) -> None:
        with _lock:
            if self._counted:
                self._counted = False
                _leave()

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def install() -> Installed:
    """Intercept LLM calls and carry scopes into threads. Does nothing to code outside of a rollout."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _patches.extend(patch_threads())
            for name in transports.MODULES:
                _await_module(name)
    return Installed()


def _leave() -> None:
    global _users
    _users -= 1
    if _users == 0:
        for patch in reversed(_patches):
            patch.undo()
        _patches.clear()
        _patched.clear()


def _await_module(name: str) -> None:
    """Patch the module now if it is loaded, else as soon as it is."""
    module = sys.modules.get(name)
    if module is not None and hasattr(module, "AsyncClient"):
        _patch(module)
    elif name not in _watched:
        import wrapt

        _watched.add(name)
        wrapt.register_post_import_hook(_patch, name)


def _patch(module: Any) -> None:
    with _lock:
        if _users and module.__name__ not in _patched:
            _patched.add(module.__name__)
            _patches.extend(transports.patch_module(module))
