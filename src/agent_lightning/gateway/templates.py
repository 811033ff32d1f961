"""Which chat template speaks for a request, and whether conversations are continued by ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agent_lightning.errors import RequestError, SettingError
from agent_lightning.gateway.sampling import History
from agent_lightning.models.chat_template import CHATML, ChatTemplate, Probe, knows_chatml, probe
from agent_lightning.models.tokenizer import ChatTokenizer


class Templates:
    """The policy's template, probed, and the shipped one for requests with tools that it cannot serve."""

    def __init__(self, template: ChatTemplate, tokenizer: ChatTokenizer, asked: History) -> None:
        """Raises SettingError when stitching was asked for and the template is not append-only."""
        self.own = template
        self.probe: Probe = probe(template, tokenizer)
        if asked == "stitched" and not self.probe.append_only:
            raise SettingError(f"history is 'stitched', but {self.probe.reason}: use 'auto' or 'rendered'")
        self.history: Literal["stitched", "rendered"] = "stitched"
        self.reason: str | None = None  # why conversations are rendered anew
        if asked == "rendered" or not self.probe.append_only:
            self.history = "rendered"
            self.reason = "the setting says so" if asked == "rendered" else self.probe.reason
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


def _about_tools(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("tool", "function") or bool(message.get("tool_calls"))
