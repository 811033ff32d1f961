"""OpenAI responses, the answer: whole, or as the numbered events of a stream.

Beside OpenAI's fields an answer carries `prompt_token_ids` and `token_ids`, as in the other dialects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.chat_reply import thoughts_in
from agent_lightning.wire.errors import ErrorAnswer
from agent_lightning.wire.responses import PREFIX
from agent_lightning.wire.sse import named_event


def response_body(answer: Mapping[str, Any], call_id: str, request: ChatRequest) -> dict[str, Any]:
    """The neutral answer as a response."""
    made, used = answer["choices"][0], answer["usage"]
    cut = made["finish_reason"] == "length"
    body = {
        **_heading(call_id, answer["created"], request),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(made, call_id),
        "usage": {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": used["prompt_tokens_details"]["cached_tokens"], "cache_write_tokens": 0},
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": thoughts_in(used)},
            "total_tokens": used["total_tokens"],
        },
    }  # fmt: skip
    if "prompt_token_ids" in answer:
        body |= {"prompt_token_ids": answer["prompt_token_ids"], "token_ids": made["token_ids"]}
    return body


def error_event(answer: ErrorAnswer) -> bytes:
    told = answer.body["error"]
    data = {"type": "error", "code": told["code"], "message": told["message"], "param": told["param"]}
    return named_event("error", {**data, "sequence_number": 0})


def _heading(call_id: str, created: int, request: ChatRequest) -> dict[str, Any]:
    return {
        "id": f"{PREFIX}{call_id}",
        "object": "response",
        "created_at": created,
        "model": request.model,
        "error": None,
        "instructions": request.messages[0]["content"] if request.instructed else None,
        "metadata": {},
        "parallel_tool_calls": request.requested.get("parallel_tool_calls", True),
        "previous_response_id": None if request.previous is None else f"{PREFIX}{request.previous}",
        "temperature": request.temperature,
        "text": request.requested.get("text", {"format": {"type": "text"}}),
        "tool_choice": request.requested.get("tool_choice", "auto"),
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in request.tools],
        "top_p": request.top_p,
    }


def _output(made: Mapping[str, Any], call_id: str) -> list[dict[str, Any]]:
    message, done = made["message"], "incomplete" if made["finish_reason"] == "length" else "completed"
    items = []
    if message.get("reasoning_content"):
        whole = message.get("content") or message.get("tool_calls")
        items.append(_reasoning(call_id, "completed" if whole else done, [_thought_part(message["reasoning_content"])]))
    if message.get("content") is not None:
        logprobs = (made.get("logprobs") or {}).get("content")
        items.append(_message(call_id, done, [_text_part(message["content"], logprobs)]))
    calls = enumerate(message.get("tool_calls") or ())
    return [*items, *(_call(call_id, position, call, "completed") for position, call in calls)]


def _reasoning(call_id: str, status: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    item = {"type": "reasoning", "id": f"rs_{call_id}", "summary": [], "content": list(content)}
    return {**item, "encrypted_content": None, "status": status}


def _thought_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def _message(call_id: str, status: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{call_id}",
        "role": "assistant",
        "status": status,
        "content": list(content),
    }


def _text_part(text: str, logprobs: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs or ())}


def _call(call_id: str, position: int, call: Mapping[str, Any], status: str) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    made = {"type": "function_call", "id": f"fc_{call_id}_{position}", "call_id": call["id"], "name": name}
    return {**made, "arguments": arguments, "status": status}


@dataclass(slots=True, kw_only=True)
class NumberedWriter:
    """Writes the events of one stream: items one after the other, each begun, filled and done."""

    call_id: str
    created: int
    request: ChatRequest
    _number: int = field(default=0)
    _items: int = field(default=0)  # begun so far
    _thought: str | None = field(default=None)  # of the reasoning that is open
    _text: str | None = field(default=None)  # of the message that is open
    _said: bool = field(default=False)  # a message was begun
    _logprobs: list[Mapping[str, Any]] = field(default_factory=list)

    def opening(self, index: int, prompt_ids: Sequence[int]) -> bytes:
        begun = {**_heading(self.call_id, self.created, self.request), "status": "in_progress", "output": []}
        created = self._event("response.created", response={**begun, "prompt_token_ids": list(prompt_ids)})
        return created + self._event("response.in_progress", response=begun)

    def text(self, index: int, content: str, ids: Sequence[int], logprobs: Sequence[Mapping[str, Any]] | None) -> bytes:
        """Ids of tokens that show no text where no message is open are in the whole answer alone."""
        if not content and self._text is None:
            return b""
        begun = self._end_reasoning("completed") + self._begin_message() if self._text is None else b""
        self._text = (self._text or "") + content
        self._logprobs += logprobs or ()
        return begun + self._event(
            "response.output_text.delta", **self._place(), delta=content, logprobs=list(logprobs or ()),
            token_ids=list(ids),
        )  # fmt: skip

    def reasoning(self, index: int, text: str, ids: Sequence[int]) -> bytes:
        begun = self._begin_reasoning() if self._thought is None else b""
        self._thought = (self._thought or "") + text
        return begun + self._event(
            "response.reasoning_text.delta", **self._place("rs"), delta=text, token_ids=list(ids)
        )

    def calls(self, index: int, tool_calls: Sequence[Mapping[str, Any]]) -> bytes:
        written = self._end_reasoning("completed") + self._end_message("completed")
        for position, call in enumerate(tool_calls):
            item = _call(self.call_id, position, call, "completed")
            place = {"output_index": self._items, "item_id": item["id"]}
            arguments = item["arguments"]
            written += self._item("added", {**item, "arguments": "", "status": "in_progress"})
            written += self._event("response.function_call_arguments.delta", **place, delta=arguments)
            written += self._event(
                "response.function_call_arguments.done", **place, arguments=arguments, name=item["name"]
            )
            written += self._item("done", item)
            self._items += 1
        return written

    def said(self, made: Mapping[str, Any], prompt_ids: Sequence[int]) -> Iterator[bytes]:
        yield self.opening(0, prompt_ids)
        if made["message"].get("reasoning_content"):
            yield self.reasoning(0, made["message"]["reasoning_content"], ())
        logprobs = (made["logprobs"] or {}).get("content")
        yield self.text(0, made["message"]["content"] or "", made["token_ids"], logprobs)
        if made["message"].get("tool_calls"):
            yield self.calls(0, made["message"]["tool_calls"])

    def ending(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        body = response_body(answer, self.call_id, self.request)
        yield self._end_reasoning(body["status"])
        if not self._said and any(item["type"] == "message" for item in body["output"]):  # of no text
            self._text = ""
            yield self._begin_message()
        yield self._end_message(body["status"])
        yield self._event(f"response.{body['status']}", response=body)

    def whole(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        yield from self.said(answer["choices"][0], answer["prompt_token_ids"])
        yield from self.ending(answer)

    def _begin_reasoning(self) -> bytes:
        added = self._item("added", _reasoning(self.call_id, "in_progress", []))
        return added + self._event("response.content_part.added", **self._place("rs"), part=_thought_part(""))

    def _end_reasoning(self, status: str) -> bytes:
        if self._thought is None:
            return b""
        part, place = _thought_part(self._thought), self._place("rs")
        written = self._event("response.reasoning_text.done", **place, text=self._thought)
        written += self._event("response.content_part.done", **place, part=part)
        written += self._item("done", _reasoning(self.call_id, status, [part]))
        self._thought = None
        self._items += 1
        return written

    def _begin_message(self) -> bytes:
        self._said = True
        added = self._item("added", _message(self.call_id, "in_progress", []))
        return added + self._event("response.content_part.added", **self._place(), part=_text_part("", None))

    def _end_message(self, status: str) -> bytes:
        if self._text is None:
            return b""
        part, place = _text_part(self._text, self._logprobs), self._place()
        written = self._event("response.output_text.done", **place, text=self._text, logprobs=self._logprobs)
        written += self._event("response.content_part.done", **place, part=part)
        written += self._item("done", _message(self.call_id, status, [part]))
        self._text = None
        self._items += 1
        return written

    def _place(self, kind: str = "msg") -> dict[str, Any]:
        return {"output_index": self._items, "content_index": 0, "item_id": f"{kind}_{self.call_id}"}

    def _item(self, what: str, item: Mapping[str, Any]) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=self._items, item=item)

    def _event(self, kind: str, **data: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **data})
