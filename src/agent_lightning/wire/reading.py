"""How a reply is read: the policy's text -> reasoning, content and tool calls, whole or as it grows."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.wire.thoughts import ThoughtFilter, split_thought
from agent_lightning.wire.tool_calls import ToolCallFilter, ToolParser, split_tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A whole reply, taken apart."""

    reasoning: str
    content: str
    calls: list[dict[str, Any]]  # in OpenAI's form


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    tools: ToolParser | None = None  # None: nobody offered tools, and what looks like a call is text
    thoughts: bool = False  # the family reasons between tags
    inside: bool = False  # and the prompt ends within them
    shown: Set[int] = field(default_factory=frozenset)  # special tokens that are read as text: marks of the family

    def read(self, text: str, call_id: str) -> Read:
        reasoning, content = split_thought(text, inside=self.inside) if self.thoughts else ("", text)
        calls: list[dict[str, Any]] = []
        if self.tools is not None:
            content, calls = split_tool_calls(content, call_id, self.tools)
        return Read(reasoning=reasoning, content=content, calls=calls)

    def begin(self) -> ReadingFilter:
        return ReadingFilter(self)


class ReadingFilter:
    """Lets through what is certain of a growing reply: always a beginning of what `read` gives in the end."""

    __slots__ = ("_calls", "_thoughts")

    def __init__(self, reading: Reading) -> None:
        self._thoughts = ThoughtFilter(inside=reading.inside) if reading.thoughts else None
        self._calls = ToolCallFilter(reading.tools) if reading.tools is not None else None

    @property
    def thinking(self) -> bool:
        """Whether what comes next is, or may be, reasoning."""
        return self._thoughts is not None and self._thoughts.thinking

    @property
    def thought(self) -> bool:
        """Whether the reply has a block of reasoning."""
        return self._thoughts is not None and self._thoughts.thought

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, content)."""
        reasoning, content = self._thoughts.push(text) if self._thoughts is not None else ("", text)
        return reasoning, self._calls.push(content) if self._calls is not None and content else content
