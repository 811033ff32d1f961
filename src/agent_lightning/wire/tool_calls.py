"""Tool calls in a reply's text, as models of the Hermes and ChatML family write them.

<tool_call>
{"name": "search", "arguments": {"query": "x"}}
</tool_call>
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(rf"{OPEN}(.*?)(?:{CLOSE}|\Z)", re.DOTALL)


def split_tool_calls(text: str, call_id: str) -> tuple[str, list[dict[str, Any]]]:
    """The reply's text without its calls, and the calls in OpenAI's form.

    A block that is not JSON with a name leaves the whole reply as text: the agent sees what the policy wrote.
    Ids are made of the call id and the position, so that a replay gives the same ones.
    """
    if OPEN not in text:
        return text, []
    calls = []
    for position, block in enumerate(_BLOCK.findall(text)):
        call = _parse(block)
        if call is None:
            return text, []
        name, arguments = call
        digest = hashlib.sha256(f"{call_id}/{position}".encode()).hexdigest()[:24]
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({"id": f"call_{digest}", "type": "function", "function": function})
    return _BLOCK.sub("", text).rstrip(), calls


def _parse(block: str) -> tuple[str, Mapping[str, Any]] | None:
    try:
        value = json.loads(block)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    return (value["name"], arguments) if isinstance(arguments, dict) else None


class ToolCallFilter:
    """Lets the text of a growing reply through up to its first tool call; what may begin one is held back."""

    __slots__ = ("_held", "sent")

    def __init__(self) -> None:
        self._held = ""
        self.sent = ""  # text let through so far

    def push(self, text: str) -> str:
        self._held += text
        if self._held.startswith(OPEN):
            return ""
        at = self._held.find(OPEN)
        if at < 0:
            at = len(self._held) - _begun(self._held)
        # the white space before a call belongs to neither
        at = len(self._held[:at].rstrip()) if at < len(self._held) else len(self._held.rstrip())
        out, self._held = self._held[:at], self._held[at:]
        self.sent += out
        return out


def _begun(text: str) -> int:
    """Length of the longest end of `text` that begins the opening tag."""
    return next((size for size in range(min(len(OPEN) - 1, len(text)), 0, -1) if text.endswith(OPEN[:size])), 0)
