"""Anthropic messages, the request: body -> `ChatRequest`.

Content blocks become the neutral form: `tool_use` a tool call, `tool_result` a message of the tool, text text. Thinking
that comes back is left out, as the policy wrote none. Unknown fields are ignored; what cannot be honoured and would
change the result is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from agent_lightning.errors import RequestError
from agent_lightning.wire.chat import ChatRequest, Message
from agent_lightning.wire.fields import flag, foreign_tool, model_of, number, refuse, text_of, tools_of
from agent_lightning.wire.form import Choice, Schema, form, json_schema, unheard_choice
from agent_lightning.wire.parts import content_of, first_opaque, flat_text

_SAMPLING = ("temperature", "top_p", "top_k", "stop_sequences", "max_tokens", "tool_choice", "thinking")
_LEFT_OUT = ("thinking", "redacted_thinking")
_REFUSED = {
    "compaction": (), "container": (), "context_management": ({}, {"edits": []}), "mcp_servers": ([],), "thread": (),
}  # fmt: skip
_ROLES = ("user", "assistant")
_CHOICES: Mapping[str, Literal["auto", "none", "required"]] = {
    "auto": "auto", "none": "none", "any": "required", "tool": "required",
}  # fmt: skip


def parse_messages(body: Any) -> ChatRequest:
    """Raises RequestError with the name of the field that is wrong or cannot be honoured."""
    model = model_of(body)
    refuse(body, _REFUSED)
    choice = _choice(body.get("tool_choice"))
    tools = tools_of(body, choice, _tool)
    schema, schema_field = _output_format(body)
    limit = number(body, "max_tokens", 1, 1_000_000, whole=True)
    top_k = number(body, "top_k", 0, 1_000_000, whole=True)
    messages = (*_system(body.get("system")), *_messages(body.get("messages")))
    return ChatRequest(
        model=model,
        messages=messages,
        opaque=first_opaque(_contents(body["messages"])),
        tools=tools,
        form=form(tools, choice, schema=schema, schema_field=schema_field, tool_fields="tools[{}].input_schema"),
        stop=_stop(body.get("stop_sequences")),
        max_tokens=None if limit is None else int(limit),
        temperature=number(body, "temperature", 0, 1),
        top_p=number(body, "top_p", 0, 1),
        top_k=None if top_k is None else int(top_k),
        stream=flag(body, "stream"),
        requested={name: body[name] for name in _SAMPLING if body.get(name) is not None},
    )


def _system(value: Any) -> list[Message]:
    text = flat_text(value, "system")
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
    parts: list[Mapping[str, Any]] = []
    calls: list[Mapping[str, Any]] = []
    for position, block in enumerate(blocks):
        at = f"{where}.content[{position}]"
        kind = block.get("type")
        if kind == "tool_use":
            arguments = block.get("input")
            if not isinstance(arguments, dict):
                raise RequestError(f"`{at}.input` is {type(arguments).__name__}: an object is wanted", field=at)
            name = text_of(block.get("name"), f"{at}.name")
            function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
            calls.append({"id": text_of(block.get("id"), f"{at}.id"), "type": "function", "function": function})
        elif kind not in _LEFT_OUT:
            parts.append(_part(block, at))
    said: dict[str, Any] = {"role": "assistant", "content": content_of(parts, where) if parts or not calls else None}
    return {**said, "tool_calls": calls} if calls else said


def _user(blocks: list[Mapping[str, Any]], where: str) -> list[Message]:
    """Results of tools are messages of their own, in their place among the user's texts."""
    made: list[Message] = []
    parts: list[Mapping[str, Any]] = []

    def flush() -> None:
        if parts:
            made.append({"role": "user", "content": content_of(parts[:], where)})
            parts.clear()

    for position, block in enumerate(blocks):
        at = f"{where}.content[{position}]"
        kind = block.get("type")
        if kind == "tool_result":
            flush()
            call_id = text_of(block.get("tool_use_id"), f"{at}.tool_use_id")
            content = _content(block.get("content"), f"{at}.content")
            made.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind not in _LEFT_OUT:
            parts.append(_part(block, at))
    flush()
    return made or [{"role": "user", "content": ""}]


def _content(value: Any, where: str) -> str | list[Any]:
    """A text or a list of blocks; nothing is an empty text."""
    if value is None:
        return ""
    return content_of([_part(block, f"{where}[{at}]") for at, block in enumerate(_blocks(value, where))], where)


def _part(block: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A text block without what is not its text; any other as it came."""
    return (
        {"type": "text", "text": text_of(block.get("text"), f"{where}.text")} if block.get("type") == "text" else block
    )


def _contents(messages: list[Any]) -> Iterator[tuple[Any, str]]:
    """Contents of checked messages and of the results in them, less what is not a part, each with its place."""
    for position, message in enumerate(messages):
        content, where = message.get("content"), f"messages[{position}].content"
        for at, block in enumerate(content if isinstance(content, list) else ()):
            if block.get("type") == "tool_result":
                yield block.get("content"), f"{where}[{at}].content"
        yield _read_parts(content), where


def _read_parts(content: Any) -> Any:
    """Blocks that are no parts stand as empty texts, so that the others keep their places."""
    if not isinstance(content, list):
        return content
    return ["" if block.get("type") in (*_LEFT_OUT, "tool_use", "tool_result") else block for block in content]


def _tool(tool: Any, where: str) -> Message:
    if not isinstance(tool, dict) or tool.get("type", "custom") not in (None, "custom"):
        kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
        raise foreign_tool(kind, where)
    function = {"name": text_of(tool.get("name"), f"{where}.name"), "parameters": tool.get("input_schema") or {}}
    if tool.get("description"):
        function["description"] = tool["description"]
    if tool.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(value: Any) -> Choice:
    if value is None:
        return Choice()
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is None or kind not in _CHOICES:
        raise unheard_choice(value)
    names = (text_of(value.get("name"), "tool_choice.name"),) if kind == "tool" else None
    one = kind == "tool" or flag(value, "disable_parallel_tool_use")
    return Choice(mode=_CHOICES[kind], names=names, one=one)


def _output_format(body: Mapping[str, Any]) -> tuple[Schema | None, str]:
    """The schema of the text, and where it stood: `output_config.format`, once called `output_format`."""
    options = body.get("output_config")
    where, wanted = "output_config.format", options.get("format") if isinstance(options, dict) else None
    if wanted is None:
        where, wanted = "output_format", body.get("output_format")
    if wanted is None:
        return None, ""
    kind = wanted.get("type") if isinstance(wanted, dict) else wanted
    if kind != "json_schema":
        raise RequestError(
            f"`{where}` is {kind!r}: 'json_schema' can be honoured", field=where, code="unsupported_value"
        )
    return json_schema(wanted.get("schema"), f"{where}.schema"), f"{where}.schema"


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > 16 or not all(isinstance(stop, str) and stop for stop in value):
        raise RequestError(
            "`stop_sequences` is wanted as a list of at most 16 texts, none empty", field="stop_sequences"
        )
    return tuple(value)
