"""Token ids of recorded calls back to text that a person reads. Never tokenises: the ids are the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agent_lightning.errors import ModelError
from agent_lightning.models.source import resolve
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Call


@dataclass(frozen=True, slots=True)
class Wording:
    """`tokenizer` is None when the model is not on this machine: then the bodies of the calls are shown."""

    tokenizer: ChatTokenizer | None

    @classmethod
    def of(cls, model: str) -> Wording:
        try:
            return cls(ChatTokenizer.load(resolve(model)))
        except ModelError:
            return cls(None)

    def asked(self, call: Call) -> str:
        """The new part of the prompt, special tokens by their names."""
        if self.tokenizer is not None and len(call.suffix_ids):
            return spelled(self.tokenizer, call.suffix_ids)
        messages = call.request.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        return _content(last)

    def written(self, call: Call) -> str:
        """What the model wrote, special tokens by their names."""
        if self.tokenizer is not None and len(call.sampled_ids):
            return spelled(self.tokenizer, call.sampled_ids)
        answered = call.response or {}
        if "relayed" in answered:  # by a provider of its own: as it came
            return str(answered["relayed"].get("text", ""))
        choices = answered.get("choices")
        return _content(choices[0].get("message")) if isinstance(choices, list) and choices else ""


def spelled(tokenizer: ChatTokenizer, ids: Sequence[int]) -> str:
    """All of the text: runs of ordinary tokens are decoded together, special ones stand by their names."""
    parts = []
    for special, run in groupby(ids, key=lambda token: tokenizer.decode([token]) == ""):
        tokens = list(run)
        parts += [tokenizer.token_text(token) for token in tokens] if special else [tokenizer.decode(tokens)]
    return "".join(parts)


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else "" if content is None else str(content)
