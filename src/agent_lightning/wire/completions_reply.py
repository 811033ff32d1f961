"""OpenAI completions, the answer: whole or as chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.wire.sse import DONE, event


def completion_body(answer: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    """The neutral answer (with token ids) as a text completion."""
    choices = [_choice(made, made["message"]["content"] or "", _content(made), 0) for made in answer["choices"]]
    whole = {**_base(call_id, answer["created"], answer["model"]), "choices": choices, "usage": answer["usage"]}
    return {**whole, "prompt_token_ids": answer["prompt_token_ids"]} if "prompt_token_ids" in answer else whole


def _base(call_id: str, created: int, model: str) -> dict[str, Any]:
    return {"id": f"cmpl-{call_id}", "object": "text_completion", "created": created, "model": model}


def _content(made: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    return (made.get("logprobs") or {}).get("content")


def _choice(
    made: Mapping[str, Any], text: str, entries: Sequence[Mapping[str, Any]] | None, offset: int
) -> dict[str, Any]:
    ids = {"token_ids": made["token_ids"]} if "token_ids" in made else {}
    return {
        "index": made["index"],
        "text": text,
        "logprobs": None if entries is None else _logprobs(entries, offset),
        "finish_reason": made["finish_reason"],
        "stop_reason": made.get("stop_reason"),
        **ids,
    }


def _logprobs(entries: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any]:
    """Columns instead of rows; `offset` is where the first token begins in the text."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
        "text_offset": offsets,
    }


@dataclass(slots=True, kw_only=True)
class TextWriter:
    """Writes the events of one stream."""

    call_id: str
    created: int
    model: str
    include_usage: bool
    _shown: dict[int, int] = field(default_factory=dict)  # characters of each choice so far

    def opening(self, index: int, prompt_ids: Sequence[int]) -> bytes:
        extra = {"prompt_token_ids": list(prompt_ids)} if index == 0 else {}
        return self._chunk(index, "", None, (), None, **extra)

    def text(self, index: int, content: str, ids: Sequence[int], logprobs: Sequence[Mapping[str, Any]] | None) -> bytes:
        written = self._chunk(index, content, None, ids, logprobs)
        self._shown[index] = self._shown.get(index, 0) + len(content)
        return written

    def reasoning(self, index: int, text: str, ids: Sequence[int]) -> bytes:
        raise AssertionError("a completion is not read for reasoning")

    def calls(self, index: int, tool_calls: Sequence[Mapping[str, Any]]) -> bytes:
        raise AssertionError("a completion has no tools")

    def said(self, made: Mapping[str, Any], prompt_ids: Sequence[int]) -> Iterator[bytes]:
        yield self.opening(made["index"], prompt_ids)
        yield self.text(made["index"], made["message"]["content"] or "", made["token_ids"], _content(made))

    def ending(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        for made in answer["choices"]:
            yield self._chunk(made["index"], "", made["finish_reason"], (), None)
        if self.include_usage:
            base = _base(self.call_id, self.created, self.model)
            yield event({**base, "choices": [], "usage": answer["usage"]})
        yield DONE

    def whole(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        for made in answer["choices"]:
            yield from self.said(made, answer["prompt_token_ids"])
        yield from self.ending(answer)

    def _chunk(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        ids: Sequence[int],
        entries: Sequence[Mapping[str, Any]] | None,
        **extra: Any,
    ) -> bytes:
        made: dict[str, Any] = {"index": index, "finish_reason": finish_reason}
        if ids:
            made["token_ids"] = list(ids)
        choice = _choice(made, text, entries, self._shown.get(index, 0))
        return event({**_base(self.call_id, self.created, self.model), "choices": [choice], **extra})
