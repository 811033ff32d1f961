"""Chat templates: messages -> the text that the policy reads.

A template is a Jinja program out of a model's folder, so it runs in an immutable sandbox; the date that it may read is
frozen when it is made. What a template does to a conversation that goes on is found out by probe.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_lightning.errors import ModelError, RequestError
from agent_lightning.models.tokenizer import ChatTokenizer

Message = Mapping[str, Any]

Disguise = Callable[[Any], Any]

SENTINEL = "LASTREPLYENDSHERE"  # stands for the policy's own reply: no spaces, so that no template trims it
_THOUGHT = "THOUGHTOFREPLY"

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


def as_it_is(value: Any) -> Any:
    """No disguise: of texts that are all our own."""
    return value


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
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        add_generation_prompt: bool = True,
        disguise: Disguise = as_it_is,
    ) -> str:
        """The text of a conversation; `disguise` is applied to what others typed into it. Raises RequestError when
        the template refuses it."""
        try:
            return self._template.render(
                messages=disguise([_plain(message) for message in messages]),
                tools=disguise(list(tools)) or None,
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
        self,
        messages: Sequence[Message],
        new_messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        disguise: Disguise = as_it_is,
    ) -> str:
        """What follows the policy's reply to `messages` once `new_messages` have come: from the reply's end-of-turn
        token to the next generation prompt. Raises RequestError when the template does not write the reply as it is.
        """
        sentinel = SENTINEL
        for _ in range(2):
            reply = {"role": "assistant", "content": sentinel}
            text = self.render([*messages, reply, *new_messages], tools, disguise=disguise)
            if text.count(sentinel) == 1:
                return text.rpartition(sentinel)[2]
            # somebody typed it: no text holds a digest of itself
            sentinel = SENTINEL + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        raise RequestError("the policy's chat template leaves out an earlier reply, or repeats it", field="messages")

    def keeps_thoughts(
        self,
        messages: Sequence[Message],
        start: int,
        tools: Sequence[Message] = (),
        *,
        disguise: Disguise = as_it_is,
    ) -> bool:
        """Whether replies from `messages[start]` on are written with their thinking, behind what comes before them."""
        marked, marks = list(messages), []
        for position in range(start, len(messages)):
            if messages[position]["role"] == "assistant":
                marks.append(f"{_THOUGHT}{position}.")
                content = f"<think>\n{marks[-1]}\n</think>\n\n{messages[position].get('content') or ''}"
                bare = {"content": content, "reasoning_content": None, "reasoning": None}
                marked[position] = {**messages[position], **bare}
        text = self.render(marked, tools, disguise=disguise)
        before = self.render(messages[:start], tools, disguise=disguise)
        return text.startswith(before) and all(mark in text for mark in marks)


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


def _plain(message: Message) -> dict[str, Any]:
    """The message as templates expect it: text for content, an object for the arguments of a call."""
    plain = dict(message)
    plain["content"] = message.get("content") or ""
    if isinstance(message.get("reasoning"), str) and not message.get("reasoning_content"):
        plain["reasoning_content"] = message["reasoning"]  # two names are in use; templates know this one
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
