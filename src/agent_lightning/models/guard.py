"""What somebody typed never becomes a control token.

A rendered prompt mixes the template's own marks with texts of others. A text that holds the name of a control token is
disguised before it is rendered; the finished prompt is then read by a twin of the tokenizer in which control tokens
bear secret names. Prompts without such texts are read by the tokenizer itself, so their ids do not change.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer

from agent_lightning.errors import RequestError

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # code points that Unicode keeps for a program's own use
_HIDDEN = re.compile(f"{_OPEN}(\\d+){_CLOSE}")


class Guard:
    """The control tokens of one tokenizer: added tokens that are special or end a turn."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: Iterable[int]) -> None:
        stops = set(stop_ids)
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self._ids = {token.content: number for number, token in added.items() if token.special or number in stops}
        self._names = [_OPEN, *sorted(self._ids, key=len, reverse=True)]  # the longest that fits is meant
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._typed = re.compile("|".join(map(re.escape, self._names)))
        self._marks = re.compile("|".join(map(re.escape, self._names[1:]))) if self._ids else None
        self._twin: Tokenizer | None = None
        self._secret: dict[str, str] = {}  # name -> its name in the twin

    def disguise(self, value: Any) -> Any:
        """The value, a tree of JSON, with control tokens' names replaced in every text of it."""
        if isinstance(value, str):
            return self._typed.sub(lambda found: f"{_OPEN}{self._numbers[found[0]]}{_CLOSE}", value)
        if isinstance(value, Mapping):
            return {self.disguise(key): self.disguise(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.disguise(item) for item in value]
        return value

    def concerns(self, text: str) -> bool:
        """Whether a rendered text holds something disguised."""
        return _OPEN in text

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text: marks of the template as control tokens, what was disguised as ordinary text.

        Raises RequestError when the tokenizer cannot be made to read a name as text.
        """
        if self._twin is None:
            self._twin = self._make_twin()
        if self._marks is not None:
            text = self._marks.sub(lambda found: self._secret[found[0]], text)
        text = _HIDDEN.sub(lambda found: self._names[int(found[1])], text)
        return self._twin.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _make_twin(self) -> Tokenizer:
        nonce = secrets.token_hex(8)  # never part of a prompt's ids: two processes may differ in it
        self._secret = {name: f"{_CLOSE}{nonce}.{number}{_CLOSE}" for name, number in self._ids.items()}
        parts = json.loads(self._tokenizer.to_str())
        for token in parts["added_tokens"]:
            token["content"] = self._secret.get(token["content"], token["content"])
        model = parts["model"]
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, dict):
            model["vocab"] = {self._secret.get(name, name): number for name, number in vocabulary.items()}
        elif isinstance(vocabulary, list):
            model["vocab"] = [[self._secret.get(name, name), score] for name, score in vocabulary]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = self._secret.get(model["unk_token"], model["unk_token"])
        parts["post_processor"] = None  # it would add tokens, and names them
        twin = Tokenizer.from_str(json.dumps(parts))
        for name, number in self._ids.items():
            if number not in twin.encode(self._secret[name], add_special_tokens=False).ids:
                raise RequestError(
                    f"a message holds the name of a control token, such as {name!r}, which this policy's tokenizer "
                    "cannot read as text: take it out",
                    field="messages",
                    code="control_token",
                )
        return twin
