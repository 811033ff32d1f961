"""OpenAI responses, the request: body -> `ChatRequest`.

Items become the neutral form: a `function_call` is a tool call of the assistant's message before it, its output a message
of the tool. Reasoning that comes back is left out, as the policy wrote none. `previous_response_id` names the call
whose conversation comes before; the gateway puts it there. Unknown fields are ignored; what cannot be honoured and would
change the result is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_lightning.errors import RequestError
from agent_lightning.wire.chat import ROLES, ChatRequest, Message
from agent_lightning.wire.fields import flag, foreign_tool, model_of, number, refuse, text_of, tools_of
from agent_lightning.wire.form import form, openai_choice, openai_format
from agent_lightning.wire.parts import content_of, first_opaque, flat_text

PREFIX = "resp_"
_SAMPLING = ("temperature", "top_p", "max_output_tokens", "tool_choice", "parallel_tool_calls", "reasoning", "text")
_REFUSED = {"background": (False,), "context_management": ([],), "conversation": (), "moderation": (), "prompt": ()}


def parse_responses(body: Any) -> ChatRequest:
    """Raises RequestError with the name of the field that is wrong or cannot be honoured."""
    model = model_of(body)
    refuse(body, _REFUSED)
    choice = openai_choice(body.get("tool_choice"))
    tools = tools_of(body, choice, _tool)
    text = body.get("text")
    schema, schema_field = openai_format(text.get("format") if isinstance(text, dict) else None, "text.format", None)
    parallel = flag(body, "parallel_tool_calls", default=True)
    instructions = body.get("instructions")
    limit = number(body, "max_output_tokens", 1, 1_000_000, whole=True)
    include = body.get("include") or []
    messages = (*_instructed(instructions), *_items(body.get("input")))
    return ChatRequest(
        model=model,
        messages=messages,
        opaque=first_opaque(_contents(body.get("input"))),
        instructed=instructions is not None,
        previous=_previous(body.get("previous_response_id")),
        tools=tools,
        form=form(
            tools,
            choice,
            parallel=parallel,
            schema=schema,
            schema_field=schema_field,
            tool_fields="tools[{}].parameters",
        ),
        max_tokens=None if limit is None else int(limit),
        temperature=number(body, "temperature", 0, 2),
        top_p=number(body, "top_p", 0, 1),
        logprobs=isinstance(include, list) and "message.output_text.logprobs" in include,
        top_logprobs=int(number(body, "top_logprobs", 0, 20, whole=True) or 0),
        stream=flag(body, "stream"),
        requested={name: body[name] for name in _SAMPLING if body.get(name) is not None},
    )


def _instructed(value: Any) -> list[Message]:
    if value is None:
        return []
    return [{"role": "system", "content": flat_text(value, "instructions")}]


def _previous(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.startswith(PREFIX):
        raise RequestError(
            f"`previous_response_id` is {value!r}: the id of a response of this rollout is wanted",
            field="previous_response_id",
            code="previous_response_not_found",
        )
    return value.removeprefix(PREFIX)


def _items(value: Any) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise RequestError("`input` is missing or empty: text or a list of items is wanted", field="input")
    made: list[Message] = []
    for position, item in enumerate(value):
        where = f"input[{position}]"
        if not isinstance(item, dict):
            raise RequestError(f"`{where}` is {type(item).__name__}: an item is wanted", field=where)
        kind = item.get("type", "message")
        if kind == "message":
            made.append(_message(item, where))
        elif kind == "function_call":
            _add_call(made, item, where)
        elif kind == "function_call_output":
            output = content_of(item.get("output"), f"{where}.output")
            made.append(
                {"role": "tool", "tool_call_id": text_of(item.get("call_id"), f"{where}.call_id"), "content": output}
            )
        elif kind != "reasoning":
            raise RequestError(
                f"`{where}` is an item of type {kind!r}: this policy reads messages and functions only", field=where
            )
    return made


def _message(item: Mapping[str, Any], where: str) -> Message:
    role = item.get("role")
    if role not in ROLES:
        raise RequestError(
            f"`{where}.role` is {role!r}: wanted one of {', '.join(sorted(ROLES))}", field=f"{where}.role"
        )
    return {"role": role, "content": content_of(item.get("content"), f"{where}.content")}


def _contents(value: Any) -> Iterator[tuple[Any, str]]:
    """Contents of checked items, each with its place."""
    for position, item in enumerate(value if isinstance(value, list) else ()):
        key = "output" if item.get("type") == "function_call_output" else "content"
        if item.get("type") != "reasoning":
            yield item.get(key), f"input[{position}].{key}"


def _add_call(made: list[Message], item: Mapping[str, Any], where: str) -> None:
    """One answer may hold a message and calls, as items in a row: they are one message."""
    function = {
        "name": text_of(item.get("name"), f"{where}.name"),
        "arguments": text_of(item.get("arguments"), f"{where}.arguments"),
    }
    call = {"id": text_of(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": function}
    if made and made[-1]["role"] == "assistant":
        made[-1] = {**made[-1], "tool_calls": [*made[-1].get("tool_calls", ()), call]}
    else:
        made.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _tool(tool: Any, where: str) -> Message:
    kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
    if kind != "function":
        raise foreign_tool(kind, where)
    function = {"name": text_of(tool.get("name"), f"{where}.name"), "parameters": tool.get("parameters") or {}}
    if tool.get("description"):
        function["description"] = tool["description"]
    if tool.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}
