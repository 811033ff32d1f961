"""The contract of a dialect: a provider's request -> `ChatRequest`, and the neutral answer -> the provider's shape.

Neutral is OpenAI's chat completion: it is what the store keeps and what stitching compares. A dialect only translates,
so a conversation may begin in one and go on in another. To add one: a module with these functions, and a line in
`dialects.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from agent_lightning.records import Dialect as Name
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.errors import ErrorAnswer


class StreamWriter(Protocol):
    """Writes the events of one answer; an event may be empty."""

    def opening(self, index: int, prompt_ids: Sequence[int]) -> bytes:
        """The first event of a choice."""
        ...

    def text(
        self, index: int, content: str, ids: Sequence[int], logprobs: Sequence[Mapping[str, Any]] | None
    ) -> bytes: ...

    def reasoning(self, index: int, text: str, ids: Sequence[int]) -> bytes:
        """Comes before the text of its choice."""
        ...

    def calls(self, index: int, tool_calls: Sequence[Mapping[str, Any]]) -> bytes: ...

    def said(self, made: Mapping[str, Any], prompt_ids: Sequence[int]) -> Iterable[bytes]:
        """A finished choice (with token ids), less its end."""
        ...

    def ending(self, answer: Mapping[str, Any]) -> Iterable[bytes]:
        """What follows when every choice has been said; `answer` is neutral, in full."""
        ...

    def whole(self, answer: Mapping[str, Any]) -> Iterable[bytes]:
        """A finished neutral answer (with token ids) as a stream: what a retry of a streamed call gets."""
        ...


class Dialect(Protocol):
    @property
    def name(self) -> Name: ...

    def parse(self, body: Any) -> ChatRequest:
        """Raises RequestError with the name of the field that is wrong or cannot be honoured."""
        ...

    def body(self, answer: Mapping[str, Any], call_id: str, request: ChatRequest) -> Mapping[str, Any]:
        """A neutral answer (with token ids) as it is sent."""
        ...

    def writer(self, call_id: str, created: int, request: ChatRequest) -> StreamWriter: ...

    def error(self, answer: ErrorAnswer) -> ErrorAnswer: ...

    def error_event(self, answer: ErrorAnswer) -> bytes:
        """The last event of a stream that cannot go on."""
        ...
