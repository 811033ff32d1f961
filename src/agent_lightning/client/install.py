"""The patches of this process, counted: the first who needs them puts them in, the last who leaves takes them out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from agent_lightning.client import parts, sockets, transports
from agent_lightning.client.patch import Patch
from agent_lightning.client.propagation import patch_threads

_PATCHERS = {
    **dict.fromkeys(transports.MODULES, transports.patch_module),
    **dict.fromkeys(sockets.MODULES, sockets.patch_module),
    **dict.fromkeys(parts.MODULES, parts.patch_module),
}
_lock = threading.RLock()
_users = 0
_patches: list[Patch] = []
_patched: set[str] = set()
_watched: set[str] = set()


def also_patch(name: str, patch: Callable[[Any], list[Patch]]) -> None:
    """Patch a module, now or when it is loaded, for the rest of the process."""

    def once(module: Any) -> None:
        with _lock:
            _patches.extend(patch(module))

    _when_loaded(name, once)


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
            for name in _PATCHERS:
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
    if module is not None and not _loading(module):
        _patch(module)
    elif name not in _watched:
        _watched.add(name)
        _when_loaded(name, _patch)


def _when_loaded(name: str, then: Callable[[Any], None]) -> None:
    import wrapt

    wrapt.register_post_import_hook(then, name)


def _loading(module: Any) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _patch(module: Any) -> None:
    with _lock:
        if _users and module.__name__ not in _patched:
            _patched.add(module.__name__)
            _patches.extend(_PATCHERS[module.__name__](module))
