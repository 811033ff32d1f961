"""Replacing an attribute so that it can be put back: by the object that did it, at any time, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patch:
    """Wraps `owner.name` with wrapt; `undo` restores it, also when it was inherited.

    If somebody has wrapped it again in the meantime, our wrapper stays below theirs and does nothing any more.
    """

    def __init__(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Raises AttributeError when there is no such attribute, TypeError when the owner cannot be changed."""
        import wrapt

        self._owner, self._name, self._wrapper = owner, name, wrapper
        self._own = vars(owner).get(name, _ABSENT)
        original = self._own if self._own is not _ABSENT else _inherited(owner, name)
        self._live = True
        self._proxy = wrapt.FunctionWrapper(original, self._pass)
        setattr(owner, name, self._proxy)

    def undo(self) -> None:
        if not self._live:
            return
        self._live = False
        if vars(self._owner).get(self._name) is not self._proxy:
            return
        if self._own is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)

    def _pass(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._live:
            return wrapped(*args, **kwargs)
        return self._wrapper(wrapped, instance, args, kwargs)


def _inherited(owner: Any, name: str) -> Any:
    for base in owner.__mro__ if isinstance(owner, type) else ():
        if name in vars(base):
            return vars(base)[name]
    raise AttributeError(f"{owner!r} has no attribute {name!r}")
