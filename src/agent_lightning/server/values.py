"""JSON values of strangers: kept to what every reader of ours can read, not deeper than DEEPEST."""

from __future__ import annotations

import math
from typing import Any

DEEPEST = 64  # lists and objects within each other


def only_json(value: Any) -> Any:
    """The value itself. Raises ValueError for NaN, infinity, lone surrogates, and what is nested too deeply."""
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, dict | list) and depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{item} is no JSON number")
        if isinstance(item, str) and not _writable(item):
            raise ValueError("it holds text that UTF-8 cannot write")
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list):
            waiting += [(part, depth + 1) for part in item]
    return value


def shown_json(value: Any, depth: int = 1) -> Any:
    """The value with what `only_json` refuses in a form that can be shown."""
    if isinstance(value, str):
        return value if _writable(value) else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict | list) and depth > DEEPEST:
        return "(nested too deeply to be kept)"
    if isinstance(value, dict):
        return {shown_json(name): shown_json(part, depth + 1) for name, part in value.items()}
    if isinstance(value, list):
        return [shown_json(part, depth + 1) for part in value]
    return value


def _writable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
