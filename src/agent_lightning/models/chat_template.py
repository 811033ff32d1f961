"""Chat templates: messages -> the text that the policy reads.

A template is a Jinja program out of a model's folder, so it runs in an immutable sandbox; the date that it may read is
frozen when it is made. `probe` finds out at load whether renderings only ever grow at the end ("append-only"): only
then can a conversation be continued by token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_lightning.errors import ModelError, RequestError
from agent_lightning.models.tokenizer import ChatTokenizer

Message = Mapping[str, Any]

SENTINEL = "LASTREPLYENDSHERE"  # stands for the policy's own reply: no spaces, so that no template trims it

CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Tools that you can call, one JSON description a line:\\n<tools>\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- '</tools>\\nWrite a call as JSON between tags, one pair of tags for each call:\\n<tool_call>\\n' }}
{{- '{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": ' + call.function.name | tojson }}
{{- ', "arguments": ' + call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + (message.content or '') + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a template was seen to do."""

    append_only: bool  # longer histories extend shorter ones, and the text behind a reply can be cut out
    reason: str | None  # why not
    tools: bool  # shows `tools`, calls without text and tool results
    tools_reason: str | None
    end_of_turn: int | None  # the token that a reply is followed by; None when it is not a single stop id


class ChatTemplate:
    """One compiled template. `source` is what is exported with the model."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: datetime) -> None:
        """Raises ModelError when the source is no template."""
        self.source = source
        self._special = dict(special_tokens)
        self._now = now
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = now.strftime
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelError(f"the chat template cannot be compiled: {error}") from error

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation. Raises RequestError when the template refuses it."""
        try:
            return self._template.render(
                messages=[_plain(message) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except RequestError:
            raise
        except Exception as error:  # a template is a stranger's program
            raise RequestError(
                f"the policy's chat template refuses these messages: {error}", field="messages", code="template_refused"
            ) from error

    def like(self, source: str) -> ChatTemplate:
        """Another source with the same special tokens and date."""
        return ChatTemplate(source, self._special, self._now)

    def suffix_after(
        self, messages: Sequence[Message], new_messages: Sequence[Message], tools: Sequence[Message] = ()
    ) -> str:
        """What follows the policy's reply to `messages` once `new_messages` have come: from the reply's end-of-turn
        token to the next generation prompt. Raises RequestError when the template does not write the reply as it is.
        """
        text = self.render([*messages, {"role": "assistant", "content": SENTINEL}, *new_messages], tools)
        _, found, suffix = text.rpartition(SENTINEL)
        if not found:
            raise RequestError("the policy's chat template leaves out an earlier reply", field="messages")
        return suffix


def load_template(tokenizer: ChatTokenizer, now: datetime, chat_template: str | None = None) -> ChatTemplate:
    """The template of a policy by its `chat_template` setting: None is the model's own, else the shipped one;
    "chatml" is the shipped one; a path names a Jinja file; anything else is Jinja source. Raises ModelError."""
    source = chat_template or tokenizer.chat_template or "chatml"
    if source == "chatml":
        source = CHATML
        if not knows_chatml(tokenizer):
            raise ModelError(
                "the model has no chat template of its own and no <|im_start|> and <|im_end|> tokens for the shipped "
                "one: set chat_template to Jinja source or to the path of a file with it"
            )
    elif "{" not in source:
        path = Path(source)
        if not path.is_file():
            raise ModelError(
                f"chat_template is {source!r}: wanted 'chatml', Jinja source or the path of a file with it"
            )
        source = path.read_text("utf-8")
    return ChatTemplate(source, tokenizer.special_tokens, now)


def exported_template(model: Path, chat_template: str | None) -> str | None:
    """The text to write beside a model that was trained with this setting; None where the model's own is right."""
    tokenizer = ChatTokenizer.load(model)
    if chat_template is None and tokenizer.chat_template is not None:
        return None
    return load_template(tokenizer, datetime.now(UTC), chat_template).source


def knows_chatml(tokenizer: ChatTokenizer) -> bool:
    """Whether the shipped template's marks are single tokens of this model."""
    return all(len(tokenizer.encode(mark)) == 1 for mark in ("<|im_start|>", "<|im_end|>"))


_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_argument": {"type": "string"}}},
    },
}
_USER = {"role": "user", "content": "probe question"}
_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "probe_tool", "arguments": '{"probe_argument": "v1"}'}}
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "1", "content": "probe result"}


def probe(template: ChatTemplate, tokenizer: ChatTokenizer) -> Probe:
    """Try the template on small conversations; never raises for what the template does."""
    reason = _why_not_append_only(template)
    tools_reason = _why_not_tools(template)
    end_of_turn = None
    if reason is None:
        ids = tokenizer.encode(template.suffix_after([_USER], [_USER]))
        if ids and (ids[0] in tokenizer.stop_ids or _is_special(tokenizer, ids[0])):
            end_of_turn = ids[0]
    return Probe(
        append_only=reason is None,
        reason=reason,
        tools=tools_reason is None,
        tools_reason=tools_reason,
        end_of_turn=end_of_turn,
    )


def _why_not_append_only(template: ChatTemplate) -> str | None:
    try:
        for reply in ("probe reply", "<think>\nprobe thought\n</think>\n\nprobe reply"):
            first = template.render([_USER])
            answered = [_USER, {"role": "assistant", "content": reply}, _USER]
            second = template.render(answered)
            if not second.startswith(first + reply):
                what = "thinking in an earlier reply" if "<think>" in reply else "an earlier reply"
                return f"the chat template rewrites {what} once the conversation goes on"
            third = template.render([*answered, {"role": "assistant", "content": reply}, _USER])
            if not third.startswith(second + reply):
                return "the chat template rewrites earlier turns once the conversation goes on"
        if not template.suffix_after([_USER], [_USER]):
            return "the chat template writes nothing behind a reply"
    except RequestError as error:
        return str(error)
    return None


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


def _is_special(tokenizer: ChatTokenizer, token: int) -> bool:
    return tokenizer.decode([token]) == "" and tokenizer.token_text(token) != ""


def _plain(message: Message) -> dict[str, Any]:
    """The message as templates expect it: text for content, an object for the arguments of a call."""
    plain = dict(message)
    plain["content"] = message.get("content") or ""
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments)
        except ValueError:
            function["arguments"] = arguments
    return {**call, "function": function}


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise RequestError(
        f"the policy's chat template refuses these messages: {message}", field="messages", code="template_refused"
    )
