"""Parts of a message's content: text is read, everything else (images, sound, files) is carried as it came.

A part that is no text changes nothing on its way: it is stored, compared and sent on as it is. A policy that reads text
alone cannot be shown one; who renders refuses it by the place that `first_opaque` gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_lightning.errors import RequestError

_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # type -> key of its text


def part_text(part: Any) -> str | None:
    """The text of a part; None for one that is no text."""
    if isinstance(part, str):
        return part
    key = _TEXTS.get(part.get("type", "text")) if isinstance(part, dict) else None
    text = None if key is None else part.get(key)
    return text if isinstance(text, str) else None


def content_of(value: Any, where: str) -> str | list[Any]:
    """A content in the neutral form: one text where all of it is text, else its parts as they came. Raises RequestError."""
    parts = _parts(value, where)
    texts = [part_text(part) for part in parts]
    return parts if None in texts else "".join(text for text in texts if text is not None)


def first_opaque(contents: Iterable[tuple[Any, str]]) -> str | None:
    """Of contents and their places, the place of the first part that is no text. Raises RequestError."""
    for content, where in contents:
        for position, part in enumerate(_parts(content, where)):
            if part_text(part) is None:
                return f"{where}[{position}]"
    return None


def flat_text(content: Any, where: str = "messages") -> str:
    """Text of a content: a string, null, or a list of text parts. Raises RequestError for other parts."""
    parts = _parts(content, where)
    if (place := first_opaque([(parts, where)])) is not None:
        raise unreadable(place)
    return "".join(part_text(part) or "" for part in parts)


def unreadable(where: str) -> RequestError:
    return RequestError(
        f"`{where}` is no text, and this policy reads text alone: leave it out, or send this call to a model that can "
        "read it",
        field=where,
        code="unsupported_value",
    )


def _parts(content: Any, where: str) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise RequestError(f"`{where}` is {type(content).__name__}: text or a list of parts is wanted", field=where)
    for position, part in enumerate(content):
        if not isinstance(part, str | dict):
            place = f"{where}[{position}]"
            raise RequestError(f"`{place}` is {type(part).__name__}: a part of a content is wanted", field=place)
    return content
