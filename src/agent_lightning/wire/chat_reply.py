"""OpenAI chat completions, the answer: whole or as chunks of a stream.

Beside OpenAI's fields an answer carries `prompt_token_ids`, and each choice `token_ids`: what the policy read and wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_lightning.wire.sse import DONE, event


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What every part of one answer repeats."""

    call_id: str
    created: int  # Unix seconds
    model: str  # the name that the client used

    @property
    def id(self) -> str:
        return f"chatcmpl-{self.call_id}"


def message(content: str, tool_calls: Sequence[Mapping[str, Any]], reasoning: str = "") -> dict[str, Any]:
    """The assistant's message; content is null when there is nothing beside the calls."""
    made: dict[str, Any] = {"role": "assistant", "content": content if content or not tool_calls else None}
    if tool_calls:
        made["tool_calls"] = list(tool_calls)
    return made | _reasoning(reasoning)


def _reasoning(text: str) -> dict[str, str]:
    """Beside OpenAI's fields, under both names that other servers use."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


def choice(
    index: int,
    message: Mapping[str, Any],
    finish_reason: str,
    logprobs: Sequence[Mapping[str, Any]] | None,
    stop_text: str | None = None,
) -> dict[str, Any]:
    """`stop_reason` beside OpenAI's fields, as other servers have it: the stop text that ended the reply."""
    content = None if logprobs is None else {"content": list(logprobs), "refusal": None}
    made = {"index": index, "message": message, "logprobs": content, "finish_reason": finish_reason}
    return {**made, "stop_reason": stop_text}


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int, thought_tokens: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": thought_tokens},
    }


def thoughts_in(used: Mapping[str, Any]) -> int:
    """Reasoning tokens of a neutral usage; answers that were stored by earlier versions do not name them."""
    return used.get("completion_tokens_details", {}).get("reasoning_tokens", 0)


def completion(heading: Heading, choices: Sequence[Mapping[str, Any]], used: Mapping[str, Any]) -> dict[str, Any]:
    """The answer without its token ids: they are kept once, in the call's own arrays."""
    return {
        "id": heading.id,
        "object": "chat.completion",
        "created": heading.created,
        "model": heading.model,
        "choices": list(choices),
        "usage": used,
    }


def with_token_ids(
    answer: Mapping[str, Any], prompt_ids: Sequence[int], sampled: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """The answer as it is sent; `sampled` has one entry a choice."""
    choices = [{**made, "token_ids": list(ids)} for made, ids in zip(answer["choices"], sampled, strict=True)]
    return {**answer, "choices": choices, "prompt_token_ids": list(prompt_ids)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWriter:
    """Writes the events of one stream."""

    heading: Heading
    include_usage: bool

    def opening(self, index: int, prompt_ids: Sequence[int]) -> bytes:
        """The first event of a choice: the role; of the first choice also the prompt."""
        extra = {"prompt_token_ids": list(prompt_ids)} if index == 0 else {}
        return event({**self._chunk(index, {"role": "assistant"}, None), **extra})

    def text(self, index: int, content: str, ids: Sequence[int], logprobs: Sequence[Mapping[str, Any]] | None) -> bytes:
        return event(self._chunk(index, {"content": content} if content else {}, None, ids, logprobs))

    def reasoning(self, index: int, text: str, ids: Sequence[int]) -> bytes:
        return event(self._chunk(index, _reasoning(text), None, ids))

    def calls(self, index: int, tool_calls: Sequence[Mapping[str, Any]]) -> bytes:
        numbered = [{"index": position, **call} for position, call in enumerate(tool_calls)]
        return event(self._chunk(index, {"tool_calls": numbered}, None))

    def ending(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """Finish reasons, usage if it was asked for, and the last event. A client that adds up what it was sent has an
        empty text where the answer has one, and none where it has none."""
        for made in answer["choices"]:
            delta = {"content": ""} if made["message"]["content"] == "" else {}
            yield event(self._chunk(made["index"], delta, made["finish_reason"]))
        if self.include_usage:
            yield event({**self._base(), "choices": [], "usage": answer["usage"]})
        yield DONE

    def whole(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """A finished answer (with token ids) as a stream: what a retry of a streamed call gets."""
        for made in answer["choices"]:
            yield from self.said(made, answer["prompt_token_ids"])
        yield from self.ending(answer)

    def said(self, made: Mapping[str, Any], prompt_ids: Sequence[int]) -> Iterator[bytes]:
        """A finished choice (with token ids), less its finish reason."""
        index, spoken = made["index"], made["message"]
        yield self.opening(index, prompt_ids)
        if spoken.get("reasoning_content"):
            yield self.reasoning(index, spoken["reasoning_content"], ())
        yield self.text(index, spoken["content"] or "", made["token_ids"], (made["logprobs"] or {}).get("content"))
        if spoken.get("tool_calls"):
            yield self.calls(index, spoken["tool_calls"])

    def _base(self) -> dict[str, Any]:
        base: dict[str, Any] = {
            "id": self.heading.id,
            "object": "chat.completion.chunk",
            "created": self.heading.created,
            "model": self.heading.model,
        }
        if self.include_usage:
            base["usage"] = None
        return base

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        finish_reason: str | None,
        ids: Sequence[int] = (),
        logprobs: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        made: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish_reason}
        made["logprobs"] = {"content": list(logprobs), "refusal": None} if logprobs else None
        if ids:
            made["token_ids"] = list(ids)
        return {**self._base(), "choices": [made]}
