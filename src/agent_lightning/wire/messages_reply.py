"""Anthropic messages, the answer: whole, or as the events of a stream; and errors in Anthropic's shape.

Beside Anthropic's fields an answer carries `prompt_token_ids` and `token_ids`, as in the other dialects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_lightning.wire.errors import ErrorAnswer
from agent_lightning.wire.sse import named_event

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def message_body(answer: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    """The neutral answer (with token ids) as a message."""
    made = answer["choices"][0]
    return {
        "id": f"msg_{call_id}",
        "type": "message",
        "role": "assistant",
        "model": answer["model"],
        "content": [*_text_block(made["message"]), *map(_call_block, made["message"].get("tool_calls") or ())],
        **_stop(made),
        "usage": _usage(answer["usage"]),
        "prompt_token_ids": answer["prompt_token_ids"],
        "token_ids": made["token_ids"],
    }


def error_in_their_shape(answer: ErrorAnswer) -> ErrorAnswer:
    told = answer.body["error"]
    kind = _KINDS.get(answer.status, "api_error" if answer.status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": told["message"], "param": told["param"], "code": told["code"]}
    return replace(answer, body={"type": "error", "error": error})


def _text_block(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": message["content"]}] if message.get("content") else []


def _call_block(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}


def _stop(made: Mapping[str, Any]) -> dict[str, Any]:
    text = made.get("stop_reason")  # the stop text that ended it
    if made["finish_reason"] == "tool_calls":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if made["finish_reason"] == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "end_turn" if text is None else "stop_sequence", "stop_sequence": text}


def _usage(used: Mapping[str, Any]) -> dict[str, int]:
    """Tokens read from the cache are counted apart."""
    cached = used["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": used["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": used["completion_tokens"],
    }


@dataclass(slots=True, kw_only=True)
class EventWriter:
    """Writes the events of one stream. Its answer has one choice, whose blocks are numbered from 0."""

    call_id: str
    model: str
    _blocks: int = field(default=0)  # begun so far
    _open: bool = field(default=False)  # a text block is

    def opening(self, index: int, prompt_ids: Sequence[int]) -> bytes:
        usage = {"input_tokens": len(prompt_ids), "output_tokens": 0}
        message = {
            "id": f"msg_{self.call_id}", "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage, "prompt_token_ids": list(prompt_ids),
        }  # fmt: skip
        return _event("message_start", message=message)

    def text(self, index: int, content: str, ids: Sequence[int], logprobs: Sequence[Mapping[str, Any]] | None) -> bytes:
        """Ids of tokens that show no text where none is open travel with a ping."""
        if not content and not self._open:
            return _event("ping", token_ids=list(ids)) if ids else b""
        begun = b""
        if not self._open:
            begun = self._begin({"type": "text", "text": ""})
            self._open = True
        delta = {"type": "text_delta", "text": content}
        return begun + _event("content_block_delta", index=self._blocks - 1, delta=delta, token_ids=list(ids))

    def calls(self, index: int, tool_calls: Sequence[Mapping[str, Any]]) -> bytes:
        written = self._end()
        for call in tool_calls:
            written += self._begin({**_call_block(call), "input": {}})
            delta = {"type": "input_json_delta", "partial_json": call["function"]["arguments"]}
            written += _event("content_block_delta", index=self._blocks - 1, delta=delta)
            written += _event("content_block_stop", index=self._blocks - 1)
        return written

    def said(self, made: Mapping[str, Any], prompt_ids: Sequence[int]) -> Iterator[bytes]:
        yield self.opening(0, prompt_ids)
        yield self.text(0, made["message"]["content"] or "", made["token_ids"], None)
        if made["message"].get("tool_calls"):
            yield self.calls(0, made["message"]["tool_calls"])

    def ending(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        made = answer["choices"][0]
        yield self._end()
        yield _event("message_delta", delta=_stop(made), usage=_usage(answer["usage"]))
        yield _event("message_stop")

    def whole(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        yield from self.said(answer["choices"][0], answer["prompt_token_ids"])
        yield from self.ending(answer)

    def _begin(self, block: Mapping[str, Any]) -> bytes:
        self._blocks += 1
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _end(self) -> bytes:
        if not self._open:
            return b""
        self._open = False
        return _event("content_block_stop", index=self._blocks - 1)


def _event(kind: str, **data: Any) -> bytes:
    return named_event(kind, {"type": kind, **data})
