"""Which chat template speaks for a request, how its replies are read, and whether conversations go on by ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agent_lightning.errors import RequestError, SettingError
from agent_lightning.gateway.sampling import History
from agent_lightning.models.chat_template import CHATML, ChatTemplate, knows_chatml
from agent_lightning.models.probe import Probe, opens_thought, probe
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.reading import Reading
from agent_lightning.wire.thoughts import CLOSE, OPEN
from agent_lightning.wire.tool_calls import ToolParser
from agent_lightning.wire.tool_families import HERMES, PARSERS, family_of

_TAIL = 16  # tokens of a prompt in which a generation prompt's <think> is looked for


class Templates:
    """The policy's template, probed, and the shipped one for requests with tools that it cannot serve."""

    def __init__(self, template: ChatTemplate, tokenizer: ChatTokenizer, asked: History, parser: str) -> None:
        """`parser` is the setting tool_parser. Raises SettingError when stitching was asked for and the template is not
        append-only."""
        self.own = template
        self._tokenizer = tokenizer
        self._parser = family_of(template.source) if parser == "auto" else PARSERS[parser]
        # whether a reply may begin with reasoning between tags, or is within them from its first token on
        self.thinks: Literal["never", "may", "inside"] = "never"
        if any(tag in template.source or tokenizer.token_id(tag) is not None for tag in (OPEN, CLOSE)):
            self.thinks = "inside" if opens_thought(template) else "may"
        self.probe: Probe = probe(template, tokenizer)
        if asked == "stitched" and not self.probe.append_only:
            raise SettingError(f"history is 'stitched', but {self.probe.reason}: use 'auto' or 'rendered'")
        # "checked": continued by ids where the template still writes the branch as it was, else rendered anew
        self.history: Literal["stitched", "checked", "rendered"] = "stitched"
        self.reason: str | None = None  # why conversations are rendered anew, in a sentence
        if asked == "rendered" or not self.probe.append_only:
            self.history = "checked" if asked == "auto" and self.probe.loops else "rendered"
            how = "conversations are continued by ids within a loop of tools and rendered anew after it"
            if self.history == "rendered":
                how = "each call is a branch of its own (history is rendered anew)"
            self.reason = f"{how}: {'the setting says so' if asked == 'rendered' else self.probe.reason}"
        self._fallback = template.like(CHATML) if not self.probe.tools and knows_chatml(tokenizer) else None
        ends = set(tokenizer.stop_ids)
        if self.probe.end_of_turn is not None:
            ends.add(self.probe.end_of_turn)
        if self._fallback is not None:
            ends.update(tokenizer.encode("<|im_end|>"))
        self.stop_ids: tuple[int, ...] = tuple(sorted(ends))

    def of(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> ChatTemplate:
        """Raises RequestError when tools are in play and no template can show them."""
        if self.probe.tools or not (tools or any(_about_tools(message) for message in messages)):
            return self.own
        if self._fallback is None:
            raise RequestError(
                f"`tools` cannot be shown to this policy: {self.probe.tools_reason}; set chat_template to one with tools",
                field="tools",
                code="unsupported_value",
            )
        return self._fallback

    def reading(self, request: ChatRequest, prompt_ids: Sequence[int]) -> Reading:
        """How the reply to this prompt is read."""
        if request.prompt is not None:
            return Reading()
        parser = self.parser(request) if request.tools else None
        thoughts = self.thinks != "never"
        tags = (*(parser.tags if parser else ()), *((OPEN, CLOSE) if thoughts else ()))
        shown = frozenset(token for tag in tags if (token := self._special(tag)) is not None)
        end = self._tokenizer.decode(list(prompt_ids[-_TAIL:]), shown).rstrip() if thoughts else ""
        return Reading(tools=parser, thoughts=thoughts, inside=end.endswith(OPEN), shown=shown)

    def parser(self, request: ChatRequest) -> ToolParser:
        """Of the calls that the template of this request writes."""
        own = self.of(request.messages, request.tools) is self.own
        return self._parser if own else HERMES

    def _special(self, tag: str) -> int | None:
        """The id of a tag that a decoded text leaves out."""
        token = self._tokenizer.token_id(tag)
        return token if token is not None and self._tokenizer.decode([token]) == "" else None


def _about_tools(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("tool", "function") or bool(message.get("tool_calls"))
