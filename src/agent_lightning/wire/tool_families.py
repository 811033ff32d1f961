"""How families of models write tool calls; the contract is tool_calls.py. Standard JSON is asked of all of them.

hermes   <tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>, one block a call; Qwen and ChatML too
llama3   {"name": "search", "parameters": {"query": "x"}} as the whole reply, or behind <|python_tag|>; several by ";"
mistral  [TOOL_CALLS][{"name": "search", "arguments": {"query": "x"}, "id": "9 letters"}]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_lightning.wire.tool_calls import CLOSE, OPEN, ToolParser, WrittenCall

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


class Hermes:
    name = "hermes"
    marks = (OPEN,)
    tags = (OPEN, CLOSE)
    first = None

    def parse(self, text: str) -> tuple[str, list[WrittenCall]] | None:
        """Text may stand between the blocks; the last one may lack its closing tag."""
        rest, calls, at = [], [], 0
        while (found := text.find(OPEN, at)) >= 0:
            value, end = _value(text, found + len(OPEN))
            call = _call(value, ("arguments",))
            if call is None or not (text.startswith(CLOSE, end) or end == len(text)):
                return None
            rest.append(text[at:found])
            calls.append(call)
            at = min(end + len(CLOSE), len(text))
        return ("".join([*rest, text[at:]]), calls) if calls else None

    def id_of(self, digest: str) -> str:
        return f"call_{digest[:24]}"


class Llama3:
    name = "llama3"
    marks = tags = ("<|python_tag|>",)
    first = "{"

    def parse(self, text: str) -> tuple[str, list[WrittenCall]] | None:
        before, tag, behind = text.partition("<|python_tag|>")
        bare = self._calls(text) if text.lstrip().startswith("{") else None
        if bare is not None:
            return "", bare
        calls = self._calls(behind) if tag else None
        return None if calls is None else (before, calls)

    def _calls(self, text: str) -> list[WrittenCall] | None:
        """Of a text that holds nothing else."""
        calls: list[WrittenCall] = []
        at = 0
        while not calls or at < len(text):
            value, at = _value(text, at)
            call = _call(value, ("parameters", "arguments"))
            if call is None or not {"parameters", "arguments"} & value.keys():  # a name alone may be an answer
                return None
            calls.append(call)
            at += text.startswith(";", at)  # some write nothing between two calls
        return calls

    def id_of(self, digest: str) -> str:
        return f"call_{digest[:24]}"


class Mistral:
    name = "mistral"
    marks = tags = ("[TOOL_CALLS]",)
    first = None

    def parse(self, text: str) -> tuple[str, list[WrittenCall]] | None:
        before, mark, behind = text.partition("[TOOL_CALLS]")
        values, end = _value(behind, 0)
        if not mark or end != len(behind) or not isinstance(values, list) or not values:
            return None
        calls = [_call(value, ("arguments",)) for value in values]
        whole = [
            replace(call, id=_short_id(value)) for call, value in zip(calls, values, strict=True) if call is not None
        ]
        return (before, whole) if len(whole) == len(calls) else None

    def id_of(self, digest: str) -> str:
        """Their templates refuse an id of any other length."""
        return digest[:9]


HERMES, LLAMA3, MISTRAL = Hermes(), Llama3(), Mistral()
PARSERS: Mapping[str, ToolParser] = {parser.name: parser for parser in (HERMES, LLAMA3, MISTRAL)}


def family_of(template: str) -> ToolParser:
    """The parser of the calls that a chat template writes, by the marks in its source."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    llama = "<|python_tag|>" in template or ("<|start_header_id|>" in template and "parameters" in template)
    return LLAMA3 if llama and "<tool_call>" not in template else HERMES


def _value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that stands there, and where what follows it and white space begins; (None, at) without one."""
    try:
        value, end = _DECODER.raw_decode(text, _behind_space(text, at))
    except (ValueError, RecursionError):
        return None, at
    return value, _behind_space(text, end)


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _call(value: Any, keys: tuple[str, ...]) -> WrittenCall | None:
    """A call of an object with a name and, under the first of the keys that is there, arguments; none are {}."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = next((value[key] for key in keys if key in value), {})
    return WrittenCall(name=value["name"], arguments=arguments) if isinstance(arguments, dict) else None


def _short_id(value: Mapping[str, Any]) -> str | None:
    name = value.get("id")
    return name if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9]{9}", name) else None
