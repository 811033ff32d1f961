"""The published versions of each policy, ready to be computed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_lightning.errors import EngineError
from agent_lightning.inference.slots import Key
from agent_lightning.models.adapter import Adapter

KEPT = 3  # newest publications of a policy that can be asked for by number; running sequences keep theirs besides


class Versions:
    def __init__(self, prepare: Callable[[Adapter], Any]) -> None:
        self._prepare = prepare
        self._ready: dict[Key, Any] = {}  # in order of publication
        self._newest: dict[str, Key] = {}
        self._publications = 0

    def add(self, adapter: Adapter) -> None:
        """Serve it to whoever asks for no version in particular from now on.

        The same number published again is another key: what was cached or runs under the first is not touched.
        """
        prepared = self._prepare(adapter)
        self._publications += 1
        key = (adapter.policy, adapter.version, self._publications)
        self._ready[key] = prepared
        self._newest[adapter.policy] = key

    def resolve(self, policy: str, version: int | None) -> Key:
        """The key to start a sequence under. Raises EngineError for what was never published or was forgotten."""
        if policy not in self._newest:
            known = ", ".join(sorted(self._newest)) or "none"
            raise EngineError(f"policy {policy!r} was asked for; published are: {known}. Publish its adapter first")
        if version is None:
            return self._newest[policy]
        held = [key for key in self._ready if key[0] == policy]
        for key in reversed(held):
            if key[1] == version:
                return key
        raise EngineError(f"version {version} of {policy!r} was asked for; held are {[key[1] for key in held]}")

    def prepared(self, key: Key) -> Any:
        return self._ready[key]

    def prune(self, used: set[Key]) -> set[Key]:
        """Forget versions that are neither among the newest nor in use; gives what is left."""
        for policy in self._newest:
            mine = [key for key in self._ready if key[0] == policy]
            for key in mine[:-KEPT]:
                if key not in used:
                    del self._ready[key]
        return set(self._ready)

    def only(self, adapter: Adapter) -> None:
        """Full weights were replaced: nothing that was published before can be computed any more."""
        self._ready.clear()
        self._newest.clear()
        self.add(adapter)
