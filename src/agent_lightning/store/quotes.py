"""Finding what quotes a text, whole or in part: alerts and notes repeat pieces of what agents said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

WINDOW = 12  # characters in a row that make a quotation


class Quotes:
    """Knows every run of WINDOW characters of some texts. JSON texts count string by string, keys left out."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._windows: set[str] = set()
        seen: set[str] = set()
        for text in texts:
            for leaf in _leaves(_read(text)):
                if leaf not in seen:
                    seen.add(leaf)
                    self._windows.update(_windows(leaf))

    def quoted_in(self, text: str) -> bool:
        return any(window in self._windows for window in _windows(text))

    def cut_from(self, body: Any, instead: str) -> Any | None:
        """The JSON value with each string that quotes replaced; None when none does."""
        changed = self._cut(body, instead)
        return None if changed == body else changed

    def _cut(self, value: Any, instead: str) -> Any:
        if isinstance(value, str):
            return instead if self.quoted_in(value) else value
        if isinstance(value, list):
            return [self._cut(item, instead) for item in value]
        if isinstance(value, dict):
            return {key: self._cut(item, instead) for key, item in value.items()}
        return value


def _windows(text: str) -> Iterator[str]:
    return (text[start : start + WINDOW] for start in range(len(text) - WINDOW + 1))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
