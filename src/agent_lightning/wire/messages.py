"""Anthropic messages, the request: body -> `ChatRequest`.

Content blocks become the neutral form: `tool_use` a tool call, `tool_result` a message of the tool, text text. Thinking
that comes back is left out, as the policy wrote none. Unknown fields are ignored; what cannot be honoured and would
change the result is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_lightning.errors import RequestError
from agent_lightning.wire.chat import ChatRequest, Message
from agent_lightning.wire.fields import flag, foreign_tool, model_of, number, text_of, tools_of

_SAMPLING = ("temperature", "top_p", "top_k", "stop_sequences", "max_tokens", "tool_choice", "thinking")
_LEFT_OUT = ("thinking", "redacted_thinking")
_ROLES = ("user", "assistant")


def parse_messages(body: Any) -> ChatRequest:
    """Raises RequestError with the name of the field that is wrong or cannot be honoured."""
    model = model_of(body)
    choice = body.get("tool_choice")
    limit = number(body, "max_tokens", 1, 1_000_000, whole=True)
    _refuse_output_format(body)
    top_k = number(body, "top_k", 0, 1_000_000, whole=True)
    return ChatRequest(
        model=model,
        messages=(*_system(body.get("system")), *_messages(body.get("messages"))),
        tools=tools_of(body, choice.get("type") if isinstance(choice, dict) else choice, _tool),
        stop=_stop(body.get("stop_sequences")),
        max_tokens=None if limit is None else int(limit),
        temperature=number(body, "temperature", 0, 1),
        top_p=number(body, "top_p", 0, 1),
        top_k=None if top_k is None else int(top_k),
        stream=flag(body, "stream"),
        requested={name: body[name] for name in _SAMPLING if body.get(name) is not None},
    )


def _system(value: Any) -> list[Message]:
    text = _text(value, "system")
    return [{"role": "system", "content": text}] if text else []


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise RequestError("`messages` is missing or empty: a list of messages is wanted", field="messages")
    made: list[Message] = []
    for position, message in enumerate(value):
        where = f"messages[{position}]"
        if not isinstance(message, dict):
            raise RequestError(f"`{where}` is {type(message).__name__}: an object is wanted", field=where)
        role = message.get("role")
        if role not in _ROLES:
            raise RequestError(f"`{where}.role` is {role!r}: wanted one of {', '.join(_ROLES)}", field=f"{where}.role")
        blocks = _blocks(message.get("content"), f"{where}.content")
        made += [_assistant(blocks, where)] if role == "assistant" else _user(blocks, where)
    return made


def _blocks(content: Any, where: str) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise RequestError(f"`{where}` is wanted as text or a list of content blocks", field=where)
    return content


def _assistant(blocks: list[Mapping[str, Any]], where: str) -> Message:
    texts: list[str] = []
    calls: list[Mapping[str, Any]] = []
    for position, block in enumerate(blocks):
        at = f"{where}.content[{position}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(text_of(block.get("text"), f"{at}.text"))
        elif kind == "tool_use":
            arguments = block.get("input")
            if not isinstance(arguments, dict):
                raise RequestError(f"`{at}.input` is {type(arguments).__name__}: an object is wanted", field=at)
            name = text_of(block.get("name"), f"{at}.name")
            function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
            calls.append({"id": text_of(block.get("id"), f"{at}.id"), "type": "function", "function": function})
        elif kind not in _LEFT_OUT:
            raise _unread(kind, at)
    said: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    return {**said, "tool_calls": calls} if calls else said


def _user(blocks: list[Mapping[str, Any]], where: str) -> list[Message]:
    """Results of tools are messages of their own, in their place among the user's texts."""
    made: list[Message] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            made.append({"role": "user", "content": "".join(texts)})
            texts.clear()

    for position, block in enumerate(blocks):
        at = f"{where}.content[{position}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(text_of(block.get("text"), f"{at}.text"))
        elif kind == "tool_result":
            flush()
            call_id = text_of(block.get("tool_use_id"), f"{at}.tool_use_id")
            made.append(
                {"role": "tool", "tool_call_id": call_id, "content": _text(block.get("content"), f"{at}.content")}
            )
        elif kind not in _LEFT_OUT:
            raise _unread(kind, at)
    flush()
    return made or [{"role": "user", "content": ""}]


def _text(value: Any, where: str) -> str:
    """A text, or the texts of a list of text blocks; nothing is an empty text."""
    if value is None:
        return ""
    texts = []
    for position, block in enumerate(_blocks(value, where)):
        if block.get("type") != "text":
            raise _unread(block.get("type"), f"{where}[{position}]")
        texts.append(text_of(block.get("text"), f"{where}[{position}].text"))
    return "".join(texts)


def _tool(tool: Any, where: str) -> Message:
    if not isinstance(tool, dict) or tool.get("type", "custom") not in (None, "custom"):
        kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
        raise foreign_tool(kind, where)
    function = {"name": text_of(tool.get("name"), f"{where}.name"), "parameters": tool.get("input_schema") or {}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _refuse_output_format(body: Mapping[str, Any]) -> None:
    options = body.get("output_config")
    wanted = body.get("output_format") or (options.get("format") if isinstance(options, dict) else None)
    if wanted is not None:
        raise RequestError(
            "`output_config.format` cannot be honoured: ask for the format in the prompt",
            field="output_config.format",
            code="unsupported_value",
        )


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > 16 or not all(isinstance(stop, str) and stop for stop in value):
        raise RequestError(
            "`stop_sequences` is wanted as a list of at most 16 texts, none empty", field="stop_sequences"
        )
    return tuple(value)


def _unread(kind: Any, where: str) -> RequestError:
    return RequestError(f"`{where}` is a block of type {kind!r}: this policy reads text and tools only", field=where)
