"""What a reply must look like: JSON under a schema, calls of tools, or either. One neutral form for every dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent_lightning.errors import RequestError

MOST_CHARACTERS = 50_000  # of a schema as JSON
MOST_LEVELS = 64

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    schema: Schema | None = None  # of the text of a reply that calls no tool; None: any text
    schema_field: str = ""  # where it stood, for whoever refuses it
    must_call: bool = False  # a reply is calls alone
    one_call: bool = False  # at most one a reply
    names: tuple[str, ...] | None = None  # of the tools that may be called; None: all
    tool_fields: str = "tools[{}].function.parameters"  # where the schema of a tool's arguments stood

    def binds(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Whether it forbids any reply at all."""
        strict = any(tool["function"].get("strict") for tool in tools)
        return self.schema is not None or (
            bool(tools) and (self.must_call or self.one_call or strict or bool(self.names))
        )


FREE = Form()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What `tool_choice` says."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    one: bool = False


def openai_choice(value: Any) -> Choice:
    """Of chat completions and responses, which write a function's name in or beside `function`. Raises RequestError."""
    if value is None or value in ("auto", "none", "required"):
        return Choice(mode=value or "auto")
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function":
        return Choice(mode="required", names=(_name(value),), one=True)
    if kind == "allowed_tools":
        allowed = value.get("allowed_tools", value)
        if isinstance(allowed, dict) and allowed.get("mode") in ("auto", "required"):
            tools = allowed.get("tools")
            if isinstance(tools, list) and tools:
                return Choice(mode=allowed["mode"], names=tuple(_name(tool) for tool in tools))
    raise unheard_choice(value)


def unheard_choice(value: Any) -> RequestError:
    return RequestError(
        f"`tool_choice` is {value!r}: it can say to call any function or none, or name functions of the request",
        field="tool_choice",
        code="unsupported_value",
    )


def form(
    tools: Sequence[Mapping[str, Any]],
    choice: Choice,
    *,
    parallel: bool = True,
    schema: Schema | None = None,
    schema_field: str = "",
    tool_fields: str = FREE.tool_fields,
) -> Form:
    """Raises RequestError when the choice names what is not among the tools, or a schema is too large."""
    known = {tool["function"]["name"] for tool in tools}
    if choice.mode == "required" and not tools:
        raise RequestError("`tool_choice` asks for a call and `tools` is empty", field="tool_choice")
    if missing := [name for name in choice.names or () if name not in known]:
        raise RequestError(f"`tool_choice` names {missing[0]!r}, which is not among `tools`", field="tool_choice")
    if schema is not None:
        check_size(schema, schema_field)
    return Form(
        schema=schema,
        schema_field=schema_field,
        must_call=choice.mode == "required",
        one_call=choice.one or not parallel,
        names=choice.names,
        tool_fields=tool_fields,
    )


def json_schema(value: Any, where: str) -> Schema:
    """A schema as it came. Raises RequestError when it is none."""
    if not isinstance(value, dict):
        raise RequestError(f"`{where}` is {type(value).__name__}: a JSON schema is wanted", field=where)
    return value


def openai_format(value: Any, where: str, nested: str | None) -> tuple[Schema | None, str]:
    """The schema that `response_format` or `text.format` asks for, and where it stood; None where any text will do.
    `nested` is the key under which chat completions keep the schema's own description. Raises RequestError."""
    if value is None:
        return None, ""
    kind = value.get("type") if isinstance(value, dict) else value
    if kind == "text":
        return None, ""
    if kind == "json_object":
        return {"type": "object"}, where
    if kind == "json_schema":
        described = value.get(nested) if nested else value
        place = f"{where}.{nested}" if nested else where
        if not isinstance(described, dict):
            raise RequestError(f"`{place}` is missing: an object with a `schema` is wanted", field=place)
        return json_schema(described.get("schema"), f"{place}.schema"), f"{place}.schema"
    raise RequestError(
        f"`{where}` is {kind!r}: 'text', 'json_object' and 'json_schema' can be honoured",
        field=where,
        code="unsupported_value",
    )


def check_size(schema: Schema, where: str) -> None:
    """Raises RequestError for a schema that is too large or too deep to be worth compiling."""
    try:
        size = len(json.dumps(schema))
    except RecursionError:
        size = MOST_CHARACTERS + 1
    if size > MOST_CHARACTERS or _levels(schema) > MOST_LEVELS:
        raise RequestError(
            f"`{where}` is too large: at most {MOST_CHARACTERS:,} characters and {MOST_LEVELS} levels are wanted",
            field=where,
            code="unsupported_value",
        )


def _levels(value: Any) -> int:
    """How deep the JSON is nested; counted no further than one beyond what is allowed."""
    layer, depth = [value], 0
    while layer and depth <= MOST_LEVELS:
        inner = [item for item in layer if isinstance(item, dict | list)]
        layer = [part for item in inner for part in (item.values() if isinstance(item, dict) else item)]
        depth += bool(inner)
    return depth


def _name(tool: Any) -> str:
    holder = tool.get("function", tool) if isinstance(tool, dict) else None
    name = holder.get("name") if isinstance(holder, dict) else None
    if not isinstance(name, str):
        raise RequestError("`tool_choice` is wanted with the name of a function", field="tool_choice")
    return name
