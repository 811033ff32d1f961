"""Anthropic messages, the answer: whole, or as the events of a stream; and errors in Anthropic's shape.

Beside Anthropic's fields an answer carries `prompt_token_ids` and `token_ids`, as in the other dialects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.chat_reply import thoughts_in
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


def message_body(answer: Mapping[str, Any], call_id: str, request: ChatRequest) -> dict[str, Any]:
    """The neutral answer (with token ids) as a message."""
    made = answer["choices"][0]
    message = made["message"]
    thought = message.get("reasoning_content") if shows_thinking(request) else None
    thinking = [{"type": "thinking", "thinking": thought, "signature": _signature(call_id)}] if thought else []
    return {
        "id": f"msg_{call_id}",
        "type": "message",
        "role": "assistant",
        "model": answer["model"],
        "content": [*thinking, *_text_block(message), *map(_call_block, message.get("tool_calls") or ())],
        **_stop(made),
        "usage": _usage(answer["usage"]),
        "prompt_token_ids": answer["prompt_token_ids"],
        "token_ids": made["token_ids"],
    }


def shows_thinking(request: ChatRequest) -> bool:
    """Only who asks for thinking is sent blocks of it: others take the first block for the answer's text."""
    asked = request.requested.get("thinking")
    if not isinstance(asked, Mapping):
        return False
    return asked.get("type") in ("enabled", "adaptive") and asked.get("display") != "omitted"


def _signature(call_id: str) -> str:
    """Opaque to clients, who send it back with the block: here it names the call that thought."""
    return base64.b64encode(f"call:{call_id}".encode()).decode("ascii")


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


def _usage(used: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens read from the cache are counted apart."""
    cached = used["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": used["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": used["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": thoughts_in(used)},
    }


@dataclass(slots=True, kw_only=True)
class EventWriter:
    """Writes the events of one stream. Its answer has one choice, whose blocks are numbered from 0."""

    call_id: str
    request: ChatRequest
    _blocks: int = field(default=0)  # begun so far
    _open: Literal["text", "thinking"] | None = field(default=None)  # the block that is

    def opening(self, index: int, prompt_ids: Sequence[int]) -> bytes:
        usage = {"input_tokens": len(prompt_ids), "output_tokens": 0}
        message = {
            "id": f"msg_{self.call_id}", "type": "message", "role": "assistant", "model": self.request.model,
            "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage, "prompt_token_ids": list(prompt_ids),
        }  # fmt: skip
        return _event("message_start", message=message)

    def text(self, index: int, content: str, ids: Sequence[int], logprobs: Sequence[Mapping[str, Any]] | None) -> bytes:
        """Ids of tokens that show no text where none is open travel with a ping."""
        if not content and self._open != "text":
            return _ping(ids)
        delta = {"type": "text_delta", "text": content}
        return self._in("text", {"type": "text", "text": ""}) + self._delta(delta, token_ids=list(ids))

    def reasoning(self, index: int, text: str, ids: Sequence[int]) -> bytes:
        if not shows_thinking(self.request):
            return _ping(ids)
        delta = {"type": "thinking_delta", "thinking": text}
        block = {"type": "thinking", "thinking": "", "signature": ""}
        return self._in("thinking", block) + self._delta(delta, token_ids=list(ids))

    def calls(self, index: int, tool_calls: Sequence[Mapping[str, Any]]) -> bytes:
        written = self._end()
        for call in tool_calls:
            written += self._begin({**_call_block(call), "input": {}})
            written += self._delta({"type": "input_json_delta", "partial_json": call["function"]["arguments"]})
            written += _event("content_block_stop", index=self._blocks - 1)
        return written

    def said(self, made: Mapping[str, Any], prompt_ids: Sequence[int]) -> Iterator[bytes]:
        yield self.opening(0, prompt_ids)
        if made["message"].get("reasoning_content"):
            yield self.reasoning(0, made["message"]["reasoning_content"], ())
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

    def _in(self, kind: Literal["text", "thinking"], block: Mapping[str, Any]) -> bytes:
        """Be in a block of this kind: begin one if none is open."""
        if self._open == kind:
            return b""
        written = self._end() + self._begin(block)
        self._open = kind
        return written

    def _delta(self, delta: Mapping[str, Any], **extra: Any) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta, **extra)

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": _signature(self.call_id)})
        self._open = None
        return signed + _event("content_block_stop", index=self._blocks - 1)


def _ping(ids: Sequence[int]) -> bytes:
    return _event("ping", token_ids=list(ids)) if ids else b""


def _event(kind: str, **data: Any) -> bytes:
    return named_event(kind, {"type": kind, **data})
