"""What an agent returned, as JSON that can be shown. Never raises: what has no JSON form is shown as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_TEXT = 4000  # characters of one string
MAX_ITEMS = 200
MAX_DEPTH = 8


def as_json(value: Any, depth: int = 0) -> Any:
    """JSON types as they are, chat messages as {role, content}, everything else as text; long things are cut."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}... ({len(value)} characters)"
    if depth >= MAX_DEPTH:
        return _text(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(item, depth + 1) for key, item in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, depth + 1) for item in list(value)[:MAX_ITEMS]]
    if isinstance(getattr(value, "type", None), str) and hasattr(value, "content"):
        return {"role": value.type, "content": as_json(value.content, depth + 1)}
    return _text(value)


def _text(value: Any) -> str:
    try:
        return as_json(json.dumps(value, default=str))
    except Exception:  # the object's own __str__ may raise anything
        return f"<{type(value).__qualname__} that cannot be shown>"
