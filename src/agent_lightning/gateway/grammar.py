"""The form that a request wants of a reply -> the grammar that the engine follows, checked here so that what cannot
be honoured is refused by its field's name.

Schemas are llguidance's: a keyword that it cannot enforce is refused, never passed over. White space between JSON's
parts is the policy's, up to MOST_SPACE: a policy that is not sure of itself would write it for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from agent_lightning.errors import RequestError
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.wire import thoughts
from agent_lightning.wire.call_shapes import SHAPES, CallShape
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.form import Form, check_size

Thinks: TypeAlias = Literal["never", "may", "inside"]
MOST_SPACE = 12  # characters in a row
_SPACE = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{MOST_SPACE}}}"}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
_VALUES = {"const", "enum", "default", "examples"}  # hold values, not schemas
_NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}  # schemas by names of any kind
_ANY_OBJECT = {"type": "object"}


def grammar_of(
    request: ChatRequest, tokenizer: ChatTokenizer, *, family: str = "hermes", thinks: Thinks = "never"
) -> str | None:
    """None where the reply is free. `family` is how the policy writes calls (wire/call_shapes.py); `thinks` whether its
    reply may begin with reasoning between tags, or is within them already. Raises RequestError with the name of the
    field that cannot be honoured."""
    form, tools = request.form, request.tools
    if not form.binds(tools):
        return None
    rules = {"start": "reply", "reply": _reply(bool(tools), form, SHAPES[family])}
    if tools:
        rules |= _call_rules(tools, form, SHAPES[family], tokenizer)
    if form.schema is not None:
        rules["answer"] = _json(form.schema, form.schema_field)
    if thinks != "never":
        begun = "" if thinks == "inside" else _mark(thoughts.OPEN, tokenizer)
        thought = f"{begun} thought SPACE"
        rules["start"] = f"{thought} reply" if thinks == "inside" else f"({thought})? reply"
        rules |= {**_until("thought", thoughts.CLOSE, tokenizer), "SPACE": r"/\s*/"}
    rules["TEXT"] = "/(?s:.)*/"
    return _lark("\n".join(f"{name}: {rule}" for name, rule in rules.items()))


def bound_to(request: ChatRequest) -> str:
    """In words, for the call's record."""
    parts = ["json"] if request.form.schema is not None and not request.form.must_call else []
    if request.tools:
        parts.append("tool calls" if request.form.must_call or parts else "text or tool calls")
    return " or ".join(parts)


def _reply(tools: bool, form: Form, shape: CallShape) -> str:
    if not tools:
        return "answer"
    calls = "calls" if shape.bare else "mark calls"
    if form.must_call:
        return calls
    if form.schema is not None:
        return f"answer | {calls}"
    return "PLAIN | calls | said calls" if shape.bare else "TEXT | said calls"


def _call_rules(
    tools: Sequence[Mapping[str, Any]], form: Form, shape: CallShape, tokenizer: ChatTokenizer
) -> dict[str, str]:
    """Calls as the policy's template writes them. In free text the mark alone begins them."""
    allowed = {
        f"tool_{position}": _call(tool["function"], form.tool_fields.format(position), shape)
        for position, tool in enumerate(tools)
        if form.names is None or tool["function"]["name"] in form.names
    }
    between = f"{_quoted(shape.between)} {'mark' if shape.mark_again else ''}"
    more = "" if form.one_call else f"({between} call)*"
    return {
        **_until("said", shape.mark, tokenizer, text="PLAIN" if shape.bare else "TEXT"),
        "mark": _mark(shape.mark, tokenizer),
        "calls": f"{_quoted(shape.first)} call {more} {_quoted(shape.last)}",
        "call": " | ".join(allowed),
        **allowed,
        "PLAIN": r"/\s*([^\s{](?s:.)*)?/",  # a brace would begin a call
    }


def _call(tool: Mapping[str, Any], where: str, shape: CallShape) -> str:
    """Without `strict` a schema that cannot be enforced is advice, and any object does."""
    schema = {**_ANY_OBJECT, **(tool.get("parameters") or {})}
    check_size(schema, where)
    try:
        arguments = _json(schema, where)
    except RequestError:
        if tool.get("strict"):
            raise
        arguments = _json(_ANY_OBJECT, where)
    head = f"{shape.before_name}{json.dumps(tool['name'], ensure_ascii=False)}{shape.before_arguments}"
    return f"{_quoted(head)} {arguments} {_quoted(shape.behind)}"


def _until(name: str, mark: str, tokenizer: ChatTokenizer, text: str = "TEXT") -> dict[str, str]:
    """A rule of a text that ends with its first mark."""
    spelled = _mark(mark, tokenizer)
    return {f"{name}[lazy]" if spelled == _quoted(mark) else name: f"{text} {spelled}"}


def _mark(mark: str, tokenizer: ChatTokenizer) -> str:
    """A mark as text, or as the special token that it is in this vocabulary."""
    token = tokenizer.token_id(mark)
    special = token is not None and tokenizer.decode([token]) == ""
    return f"<[{token}]>" if special else _quoted(mark)


def _json(schema: Mapping[str, Any], where: str) -> str:
    """The schema as a rule. Raises RequestError when it cannot be enforced."""
    rule = "%json " + json.dumps({**_enforced(schema), "x-guidance": _SPACE})
    if error := _flaw(_lark(f"start: {rule}")):
        raise RequestError(f"`{where}` cannot be enforced: {error}", field=where, code="unsupported_value")
    return rule


def _enforced(schema: Any) -> Any:
    """The schema less the formats that say how a text is to be read, not which texts there are."""
    if isinstance(schema, list):
        return [_enforced(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            made[key] = {name: _enforced(part) for name, part in value.items()}
        elif key in _VALUES:
            made[key] = value
        elif key != "format" or value in _FORMATS:
            made[key] = _enforced(value)
    return made


@lru_cache(maxsize=256)
def _flaw(grammar: str) -> str:
    """What is wrong with a grammar; "" when nothing is."""
    from llguidance import LLMatcher, LLParserLimits

    found = LLMatcher.validate_grammar(grammar, limits=LLParserLimits(verbose_errors=False))
    return found.partition("\n")[0]


def _lark(rules: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": rules}]})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
