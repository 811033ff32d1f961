"""What a chat template does to a conversation that goes on: tried on small ones when the policy is loaded.

Only where renderings grow at the end ("append-only") can a conversation be continued by token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_lightning.errors import RequestError
from agent_lightning.models.chat_template import ChatTemplate, Message
from agent_lightning.models.tokenizer import ChatTokenizer

_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_argument": {"type": "string"}}},
    },
}
_SYSTEM = {"role": "system", "content": "probe rules"}
_USER = {"role": "user", "content": "probe question"}
_MORE = {"role": "user", "content": "probe more"}
_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "probe1234",  # the form that the strictest template asks for
            "type": "function",
            "function": {"name": "probe_tool", "arguments": '{"probe_argument": "v1"}'},
        }
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "probe1234", "name": "probe_tool", "content": "probe result"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a template was seen to do."""

    append_only: bool  # longer histories extend shorter ones, and the text behind a reply can be cut out
    reason: str | None  # why not
    loops: bool  # what it does not keep for good, it keeps while results of tools come in
    tools: bool  # shows `tools`, calls without text and tool results
    tools_reason: str | None
    end_of_turn: int | None  # the token that a reply is followed by; None when it is not a single stop id


def probe(template: ChatTemplate, tokenizer: ChatTokenizer) -> Probe:
    """Try the template on small conversations; never raises for what the template does."""
    tools_reason = _why_not_tools(template)
    reason = _why_not_append_only(template, [_TOOL] if tools_reason is None else [])
    return Probe(
        append_only=reason is None,
        reason=reason,
        loops=tools_reason is None and _keeps_loops(template),
        tools=tools_reason is None,
        tools_reason=tools_reason,
        end_of_turn=_end_of_turn(template, tokenizer),
    )


def opens_thought(template: ChatTemplate) -> bool:
    """Whether the generation prompt ends within the tags of reasoning."""
    try:
        return template.render([_USER]).rstrip().endswith("<think>")
    except RequestError:
        return False


def _why_not_append_only(template: ChatTemplate, tools: Sequence[Message]) -> str | None:
    try:
        for reply in ("probe reply", "<think>\nprobe thought\n</think>\n\nprobe reply"):
            first = template.render([_USER])
            answered = [_USER, {"role": "assistant", "content": reply}, _USER]
            second = template.render(answered)
            if not _extends(second, first, reply):
                what = "thinking in an earlier reply" if "<think>" in reply else "an earlier reply"
                return f"the chat template rewrites {what} once the conversation goes on"
            third = template.render([*answered, {"role": "assistant", "content": reply}, _USER])
            if not _extends(third, second, reply):
                return "the chat template rewrites earlier turns once the conversation goes on"
        if not template.suffix_after([_USER], [_USER]):
            return "the chat template writes nothing behind a reply"
    except RequestError as error:
        return str(error)
    if _moves(template, [_SYSTEM, _USER], ()):
        return "the chat template moves the system message once the conversation goes on"
    if tools and _moves(template, [_USER], tools):
        return "the chat template moves the list of tools once the conversation goes on"
    return None


def _extends(longer: str, shorter: str, reply: str) -> bool:
    """White space between the generation prompt and a reply is the template's own affair."""
    return longer.startswith(shorter) and longer[len(shorter) :].lstrip().startswith(reply)


def _moves(template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Message]) -> bool:
    """Whether the beginning is written otherwise once a reply and a question have followed."""
    try:
        first = template.render(messages, tools)
        second = template.render([*messages, {"role": "assistant", "content": "probe reply"}, _MORE], tools)
    except RequestError:
        return False  # no system messages, say: then no conversation begins with one
    return not second.startswith(first)


def _keeps_loops(template: ChatTemplate) -> bool:
    try:
        return template.keeps_thoughts([_USER, _CALL, _RESULT], 1, [_TOOL])
    except RequestError:
        return False


def _why_not_tools(template: ChatTemplate) -> str | None:
    try:
        first = template.render([_USER], [_TOOL])
        if "probe_tool" not in first:
            return "the chat template ignores tools"
        second = template.render([_USER, _CALL, _RESULT], [_TOOL])
        for wanted in ("v1", "probe result"):
            if wanted not in second:
                return "the chat template leaves out calls of tools or their results"
        if not second.startswith(first):
            return "the chat template rewrites earlier turns once a tool was called"
        if "probe result" not in template.suffix_after([_USER], [_RESULT], [_TOOL]):
            return "the chat template cannot place a tool's result behind a reply"
    except RequestError as error:
        return str(error)
    return None


def _end_of_turn(template: ChatTemplate, tokenizer: ChatTokenizer) -> int | None:
    try:
        ids = tokenizer.encode(template.suffix_after([_USER], [_USER]))
    except RequestError:
        return None
    return ids[0] if ids and (ids[0] in tokenizer.stop_ids or _is_special(tokenizer, ids[0])) else None


def _is_special(tokenizer: ChatTokenizer, token: int) -> bool:
    return tokenizer.decode([token]) == "" and tokenizer.token_text(token) != ""
