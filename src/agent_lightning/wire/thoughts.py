"""Reasoning in a reply's text: <think>...</think> before what is meant for the agent.

Some templates open the block in the generation prompt: then the reply begins inside it. A block that is never closed is
reasoning to the end. White space at the rims of the reasoning, and line ends behind it, belong to neither part.
"""

from __future__ import annotations

from typing import Literal

from agent_lightning.wire.tool_calls import overlap

OPEN, CLOSE = "<think>", "</think>"


class ThoughtFilter:
    """Parts a growing reply into reasoning and content."""

    __slots__ = ("_begun", "_held", "_place", "thought")

    def __init__(self, *, inside: bool) -> None:
        self._place: Literal["start", "inside", "gap", "content"] = "inside" if inside else "start"
        self._held = ""
        self._begun = False  # some reasoning was let through
        self.thought = inside  # the reply has a block of reasoning

    @property
    def thinking(self) -> bool:
        """Whether what comes next is, or may be, still of the block."""
        return self._place in ("start", "inside")

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that is certain now."""
        self._held += text
        if self._place == "start" and not self._opened():
            return "", self._held_or_content()
        reasoning = self._reasoning() if self._place == "inside" else ""
        if self._place == "gap":
            self._held = self._held.lstrip("\r\n")
            self._place = "content" if self._held else "gap"
        return reasoning, self._content() if self._place == "content" else ""

    def close(self) -> tuple[str, str]:
        """No text follows."""
        held, self._held = self._held, ""
        if self._place == "inside":
            return (held if self._begun else held.lstrip()).rstrip(), ""
        return "", held

    def _opened(self) -> bool:
        begin = self._held.lstrip()
        if not begin.startswith(OPEN):
            return False
        self._place, self._held, self.thought = "inside", begin[len(OPEN) :], True
        return True

    def _held_or_content(self) -> str:
        if OPEN.startswith(self._held.lstrip()):
            return ""
        self._place = "content"
        return self._content()

    def _reasoning(self) -> str:
        if not self._begun:
            self._held = self._held.lstrip()
        at = self._held.find(CLOSE)
        if at >= 0:
            reasoning, self._held = self._held[:at].rstrip(), self._held[at + len(CLOSE) :]
            self._place = "gap"
        else:
            at = len(self._held[: len(self._held) - overlap(self._held, CLOSE)].rstrip())
            reasoning, self._held = self._held[:at], self._held[at:]
        self._begun = self._begun or bool(reasoning)
        return reasoning

    def _content(self) -> str:
        content, self._held = self._held, ""
        return content


def split_thought(text: str, *, inside: bool) -> tuple[str, str]:
    """(reasoning, content) of a whole reply."""
    parts = ThoughtFilter(inside=inside)
    (reasoning, content), (more, rest) = parts.push(text), parts.close()
    return reasoning + more, content + rest
