"""OpenAI chat completions, the request: body -> `ChatRequest`, the neutral form of every dialect.

Unknown fields are ignored. A field that cannot be honoured is refused by its name, never dropped in silence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.errors import RequestError
from agent_lightning.wire.fields import flag, model_of, number, refuse, sampling_of, tools_of
from agent_lightning.wire.form import FREE, Form, form, openai_choice, openai_format
from agent_lightning.wire.parts import first_opaque, flat_text

Message = Mapping[str, Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_SAMPLING = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "n",
    "max_tokens", "max_completion_tokens", "tool_choice", "parallel_tool_calls",
)  # fmt: skip
_REFUSED = {
    "audio": (), "function_call": ("none",), "functions": ([],), "modalities": (["text"],), "moderation": (),
    "web_search_options": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """None is what the client left open."""

    model: str
    messages: tuple[Message, ...]  # as they came
    tools: tuple[Message, ...] = ()  # empty when tool_choice is "none"
    form: Form = FREE  # what a reply must look like
    opaque: str | None = None  # where the first part of the messages stood that is no text
    instructed: bool = False  # the first message is for this call alone, not of the conversation
    prompt: str | tuple[int, ...] | None = None  # what is continued instead of rendered messages: text or token ids
    previous: str | None = None  # call whose conversation comes before the messages
    n: int = 1
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    stream: bool = False
    include_usage: bool = False
    requested: Mapping[str, Any] = field(default_factory=dict)  # the sampling fields as they came


def body_hash(body: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical body: the same for a retry, whatever the order of its keys."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def parse_chat(body: Any) -> ChatRequest:
    """Raises RequestError with the name of the field that is wrong or cannot be honoured."""
    model = model_of(body)
    refuse(body, _REFUSED)
    choice = openai_choice(body.get("tool_choice"))
    tools = tools_of(body, choice, _tool)
    schema, schema_field = openai_format(body.get("response_format"), "response_format", "json_schema")
    parallel = flag(body, "parallel_tool_calls", default=True)
    logprobs = flag(body, "logprobs")
    top_logprobs = int(number(body, "top_logprobs", 0, 20, whole=True) or 0)
    if top_logprobs and not logprobs:
        raise RequestError("`top_logprobs` needs `logprobs`: true", field="top_logprobs")
    limits = [number(body, name, 1, 1_000_000, whole=True) for name in ("max_completion_tokens", "max_tokens")]
    messages = _messages(body.get("messages"))
    return ChatRequest(
        model=model,
        messages=messages,
        opaque=first_opaque((said.get("content"), f"messages[{i}].content") for i, said in enumerate(messages)),
        tools=tools,
        form=form(tools, choice, parallel=parallel, schema=schema, schema_field=schema_field),
        max_tokens=next((int(limit) for limit in limits if limit is not None), None),
        **sampling_of(body),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        stream=flag(body, "stream"),
        requested={name: body[name] for name in _SAMPLING if body.get(name) is not None},
    )


def readable(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as a chat template reads them: content flattened to text, "developer" called "system"."""
    plain = []
    for position, message in enumerate(messages):
        content = flat_text(message.get("content"), f"messages[{position}].content")
        role = {"developer": "system", "function": "tool"}.get(message["role"], message["role"])
        plain.append({**message, "role": role, "content": content})
    return plain


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise RequestError("`messages` is missing or empty: a list of messages is wanted", field="messages")
    for position, message in enumerate(value):
        where = f"messages[{position}]"
        if not isinstance(message, dict):
            raise RequestError(f"`{where}` is {type(message).__name__}: an object is wanted", field=where)
        if message.get("role") not in ROLES:
            raise RequestError(
                f"`{where}.role` is {message.get('role')!r}: wanted one of {', '.join(sorted(ROLES))}",
                field=f"{where}.role",
            )
        _check_calls(message.get("tool_calls"), f"{where}.tool_calls")
    return tuple(value)


def _check_calls(calls: Any, where: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise RequestError(f"`{where}` is {type(calls).__name__}: a list is wanted", field=where)
    for position, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            name = f"{where}[{position}].function"
            raise RequestError(f"`{name}` has no name: only calls of functions are understood", field=name)


def _tool(tool: Any, where: str) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        where = f"{where}.function"
        raise RequestError(f"`{where}` has no name: only tools of type 'function' are understood", field=where)
    return tool
