"""How families of models write calls of tools, as a grammar needs it: the texts around a name and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent_lightning.wire.tool_calls import CLOSE, OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """mark, first, call, between, call, ..., last; a call is before_name, name, before_arguments, arguments, behind."""

    mark: str  # begins calls wherever it stands; may be a special token
    before_name: str = '{"name": '
    before_arguments: str = ', "arguments": '
    behind: str = "}"
    first: str = ""
    between: str
    last: str = ""
    mark_again: bool = False  # every call has its own
    bare: bool = False  # calls that begin the reply need no mark


SHAPES: Mapping[str, CallShape] = {
    "hermes": CallShape(mark=OPEN, before_name='\n{"name": ', behind=f"}}\n{CLOSE}", between="\n", mark_again=True),
    "llama3": CallShape(mark="<|python_tag|>", before_arguments=', "parameters": ', between="; ", bare=True),
    "mistral": CallShape(mark="[TOOL_CALLS]", first="[", between=", ", last="]"),
}
