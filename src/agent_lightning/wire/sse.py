"""Server-sent events, the way OpenAI's and Anthropic's streams use them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

DONE = b"data: [DONE]\n\n"
CONTENT_TYPE = "text/event-stream; charset=utf-8"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: `json.dumps` makes one a call


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8. Lone surrogates, which UTF-8 cannot hold, are escaped."""
    text = _encode(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def named_event(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode("ascii") + b"\n" + event(data)


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + dumps(data) + b"\n\n"
