"""Tool calls in a reply's text: the contract of a family's parser, and what is the same for all of them.

Families differ in how a model was taught to write calls; tool_families.py has them. A parser says which marks may begin
a call and takes a whole text apart; ids in OpenAI's form and the filter of a stream are made here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

OPEN, CLOSE = "<tool_call>", "</tool_call>"  # of the most common family, hermes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """A call as the policy wrote it."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None  # where the family writes one that can be told apart


class ToolParser(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> Sequence[str]:
        """Texts that begin calls wherever they stand in a reply."""
        ...

    @property
    def tags(self) -> Sequence[str]:
        """All texts around calls that may be special tokens of the vocabulary."""
        ...

    @property
    def first(self) -> str | None:
        """A character that begins calls where it begins the reply."""
        ...

    def parse(self, text: str) -> tuple[str, list[WrittenCall]] | None:
        """The text less its calls, and the calls; None when it holds none, or one that is not whole and valid."""
        ...

    def id_of(self, digest: str) -> str:
        """An id in the family's form out of 64 hexadecimal digits."""
        ...


def split_tool_calls(text: str, call_id: str, parser: ToolParser) -> tuple[str, list[dict[str, Any]]]:
    """The reply's text without its calls, and the calls in OpenAI's form.

    A malformed call leaves the whole reply as text: the agent sees what the policy wrote. An id that the policy wrote is
    kept, since results will name it; the others are made of the call id and the position: a replay gives the same ones.
    """
    found = parser.parse(text)
    if found is None:
        return text, []
    rest, written = found
    calls, taken = [], set()
    for position, call in enumerate(written):
        digest = hashlib.sha256(f"{call_id}/{position}".encode()).hexdigest()
        name = call.id if call.id is not None and call.id not in taken else parser.id_of(digest)
        taken.add(name)
        function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        calls.append({"id": name, "type": "function", "function": function})
    return rest.rstrip(), calls


class ToolCallFilter:
    """Lets the text of a growing reply through up to its first tool call; what may begin one is held back."""

    __slots__ = ("_held", "_opened", "_parser", "_sent")

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
        self._held = ""
        self._opened = False  # what is held begins with a mark
        self._sent = False  # some text was let through

    def push(self, text: str) -> str:
        self._held += text
        if self._opened:
            return ""
        at = self._opening()
        # the white space before a call belongs to neither
        at = len(self._held[:at].rstrip())
        out, self._held = self._held[:at], self._held[at:]
        self._sent = self._sent or bool(out)
        return out

    def _opening(self) -> int:
        """Where in the held text a call begins or may begin."""
        first = self._parser.first
        if first is not None and not self._sent and self._held.lstrip().startswith(first):
            self._opened = True
            return 0
        places = [at for mark in self._parser.marks if (at := self._held.find(mark)) >= 0]
        if places:
            self._opened = True
            return min(places)
        return len(self._held) - max((overlap(self._held, mark) for mark in self._parser.marks), default=0)


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark` and is not the whole of it."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
