"""Stand-ins for `__copy__` and `__deepcopy__` on classes that have none, so that a copy stays injected.

The copy itself is made by Python's default: while it is, the stand-in is as absent as it was before.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from agent_lightning.client import registry

NAMES = ("__copy__", "__deepcopy__")
_copying = threading.local()


class CopyHook:
    """Put on a class under a name of NAMES; `undo` removes it."""

    def __init__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name
        setattr(owner, name, self)

    def undo(self) -> None:
        if vars(self._owner).get(self._name) is self:
            delattr(self._owner, self._name)

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        # copy.copy looks on the class, copy.deepcopy on the object.
        if self._name == "__copy__":
            if getattr(_copying, "shallow", None) is owner:
                raise AttributeError(self._name)
            return self._shallow if instance is None else lambda: self._shallow(instance)
        deep: set[int] = _copying.__dict__.setdefault("deep", set())
        if instance is None or id(instance) in deep or not registry.handles_of(instance):
            raise AttributeError(self._name)
        return lambda memo: _deep(instance, memo, deep)

    def _shallow(self, instance: Any) -> Any:
        before = getattr(_copying, "shallow", None)
        _copying.shallow = type(instance)
        try:
            made = copy.copy(instance)
        finally:
            _copying.shallow = before
        registry.remember_copy(instance, made)
        return made


def _deep(instance: Any, memo: dict[int, Any], under_way: set[int]) -> Any:
    under_way.add(id(instance))
    try:
        made = copy.deepcopy(instance, memo)
    finally:
        under_way.discard(id(instance))
    registry.remember_copy(instance, made)
    return made
