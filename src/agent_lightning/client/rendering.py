"""What an agent took and returned, as JSON. Never raises, ends on rings: what has no JSON form is shown as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a value is kept; the rest is replaced by a note that says how much there was."""

    text: int  # characters of one string
    items: int  # of one container
    depth: int  # containers within containers
    size: int  # characters in all, each value counted as 16: containers that hold each other would never end


SHOWN = Limits(text=4_000, items=200, depth=8, size=200_000)  # for a reader
REPLAYED = Limits(text=1_000_000, items=10_000, depth=32, size=4_000_000)  # to be given to an agent again
_LARGEST_BITS = 1024  # of an integer; Python refuses to write far longer ones in decimals


def as_json(value: Any, *, limits: Limits = SHOWN, text: Callable[[str], str] = str) -> Any:
    """JSON types as they are, chat messages as {role, content}, everything else as text. `text` sees every string."""
    return _Rendering(limits, text).of(value, 0)


def brief(error: BaseException) -> str:
    """Type and message of what the agent raised."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ raised
        return f"{type(error).__name__} whose message cannot be shown"


class _Rendering:
    def __init__(self, limits: Limits, text: Callable[[str], str]) -> None:
        self._limits, self._text = limits, text
        self._left = limits.size

    def of(self, value: Any, depth: int) -> Any:
        try:
            return self._of(value, depth)
        except Exception:  # properties, iterators and __str__ of the agent's objects may raise anything
            return self._note(f"<{type(value).__qualname__} that cannot be shown>")

    def _of(self, value: Any, depth: int) -> Any:
        self._left -= 16
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if value.bit_length() <= _LARGEST_BITS else self._note(hex(value))
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return self._cut(value)
        if isinstance(value, Mapping):
            return self._mapping(value, depth) if self._enters(depth) else self._closed(value)
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth) if self._enters(depth) else self._closed(value)
        if self._enters(depth) and isinstance(getattr(value, "type", None), str) and hasattr(value, "content"):
            return {"role": self._cut(value.type), "content": self.of(value.content, depth + 1)}
        return self._cut(str(value))

    def _enters(self, depth: int) -> bool:
        return depth < self._limits.depth and self._left > 0

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        walked = 0
        for key, item in islice(value.items(), self._limits.items):
            if self._left <= 0:
                break
            made[str(self.of(key, depth + 1))] = self.of(item, depth + 1)
            walked += 1
        if walked < len(value):
            made["..."] = f"{len(value)} items in all"
        return made

    def _list(self, value: Collection[Any], depth: int) -> list[Any]:
        made: list[Any] = []
        for item in islice(value, self._limits.items):
            if self._left <= 0:
                break
            made.append(self.of(item, depth + 1))
        if len(made) < len(value):
            made.append(f"... ({len(value)} items in all)")
        return made

    def _cut(self, value: str) -> str:
        """First what `text` makes of it, so that a secret across the cut is found whole."""
        seen = self._text(str(value))
        self._left -= min(len(seen), self._limits.text)
        return seen if len(seen) <= self._limits.text else f"{seen[: self._limits.text]}... ({len(seen)} characters)"

    def _closed(self, value: Collection[Any]) -> str:
        return self._note(f"<{type(value).__qualname__} of {len(value)} items, left out>")

    def _note(self, text: str) -> str:
        self._left -= len(text)
        return text
