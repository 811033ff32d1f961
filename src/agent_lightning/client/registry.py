"""Which objects are injected, by whom. Keeps none of them alive."""

from __future__ import annotations

import threading
import weakref
from typing import Any

lock = threading.RLock()
_handles: dict[int, list[Any]] = {}  # by id of the injected object; the newest decides
_keepers: dict[int, Any] = {}  # weak reference where the object allows one, else the object itself


def handles_of(agent: Any) -> list[Any]:
    """Handles of this very object, oldest first; empty when it is not injected."""
    return _handles.get(id(agent), [])


def remember(handle: Any, agent: Any) -> None:
    identity = id(agent)
    with lock:
        if identity not in _keepers:
            try:
                _keepers[identity] = weakref.ref(agent, lambda _: _collected(identity))
            except TypeError:
                _keepers[identity] = agent
        known = _handles.setdefault(identity, [])
        if handle not in known:
            known.append(handle)


def remember_copy(original: Any, copy: Any) -> None:
    """A copy of an injected object is injected like the original."""
    with lock:
        if copy is not original and type(copy) is type(original):
            for handle in tuple(handles_of(original)):
                remember(handle, copy)


def forget(handle: Any) -> None:
    """Remove every object of this handle."""
    with lock:
        for identity, known in tuple(_handles.items()):
            if handle in known:
                known.remove(handle)
            if not known:
                _collected(identity)


def _collected(identity: int) -> None:
    with lock:
        _handles.pop(identity, None)
        _keepers.pop(identity, None)
