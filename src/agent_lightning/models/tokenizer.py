"""Text <-> token ids of one model, without torch or transformers.

A `ChatTokenizer` wraps a `tokenizer.json`. Special tokens inside a text are parsed as such and none is added: the chat
template writes them all. What others typed into a prompt is `disguise`d before it is rendered and the prompt read by
`encode_rendered` (guard.py). `decode` leaves special tokens out; `TextStream` gives the same text piece by piece.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agent_lightning.errors import ModelError
from agent_lightning.models.guard import Guard
from agent_lightning.records import token_ids

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time: threads would only get in the way
_CACHED_TEXTS = 512  # siblings of a group ask for the same first prompt
_CACHED_CHARACTERS = 65_536
_INCOMPLETE = "\ufffd"


class TextStream:
    """Detokenises a growing sequence. Bytes of an unfinished character are held back until it is whole."""

    __slots__ = ("_ids", "_known", "_read", "_shown", "_start", "_tokenizer")

    def __init__(self, tokenizer: ChatTokenizer, shown: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._ids: list[int] = []
        self._start = 0  # decoding begins here: one chunk before the unread one, for tokenizers that look back
        self._read = 0  # ids whose text was given
        self._known = ""  # text of ids[start:read]

    def push(self, *tokens: int) -> str:
        """The text that became certain with these tokens; "" while a character is unfinished."""
        self._ids.extend(tokens)
        text = self._tokenizer.decode(self._ids[self._start :], self._shown)
        if len(text) <= len(self._known) or text.endswith(_INCOMPLETE):
            return ""
        new = text[len(self._known) :]
        self._start, self._read = self._read, len(self._ids)
        self._known = self._tokenizer.decode(self._ids[self._start : self._read], self._shown)
        return new

    def close(self) -> str:
        """What was held back, unfinished bytes as U+FFFD."""
        return self._tokenizer.decode(self._ids[self._start :], self._shown)[len(self._known) :]


class ChatTokenizer:
    """Vocabulary, special tokens and end-of-turn ids of one model.

    `stop_ids` are all ids that end a turn; `special_tokens` maps "bos_token", "eos_token"... to their text, as chat
    templates expect them; `chat_template` is the model's own source or None; `context_length` is None when unknown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_ids: Iterable[int] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        context_length: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.stop_ids = tuple(sorted(set(stop_ids)))
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.context_length = context_length
        self._guard = Guard(tokenizer, self.stop_ids)
        self._cache: OrderedDict[str, array[int]] = OrderedDict()

    @classmethod
    def load(cls, folder: Path | str) -> ChatTokenizer:
        """Read a model folder in Hugging Face layout. Raises ModelError when it has no readable tokenizer.json."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder} has no tokenizer.json: a folder with a fast tokenizer is wanted")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception on a file that it cannot read
            raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
        settings = _read_json(folder / "tokenizer_config.json")
        model = _read_json(folder / "config.json")
        special = _special_tokens(settings)
        stops = [
            *_ids(_read_json(folder / "generation_config.json").get("eos_token_id")),
            *_ids(model.get("eos_token_id")),
        ]
        eos = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
        if eos is not None:
            stops.append(eos)
        return cls(
            tokenizer,
            stop_ids=stops,
            special_tokens=special,
            chat_template=_template(folder, settings),
            context_length=model.get("max_position_embeddings"),
        )

    def as_json(self) -> str:
        """The content of its tokenizer.json."""
        return self._tokenizer.to_str()

    @property
    def vocabulary(self) -> int:
        """Number of ids, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> array[int]:
        """Ids of the text. Special tokens written in it are parsed; none is added. The result is the caller's own."""
        known = self._cache.get(text)
        if known is not None:
            self._cache.move_to_end(text)
            return known[:]
        ids = token_ids(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)  # spares offsets
        if len(text) <= _CACHED_CHARACTERS:
            self._cache[text] = ids[:]
            if len(self._cache) > _CACHED_TEXTS:
                self._cache.popitem(last=False)
        return ids

    def disguise(self, value: Any) -> Any:
        """What others typed, a tree of JSON, in the form in which it is rendered into a prompt."""
        return self._guard.disguise(value)

    def encode_rendered(self, text: str) -> array[int]:
        """Ids of a rendered prompt. Without a disguised text in it they are those of `encode`. Raises RequestError."""
        return token_ids(self._guard.encode(text)) if self._guard.concerns(text) else self.encode(text)

    def decode(self, ids: Sequence[int], shown: Set[int] = frozenset()) -> str:
        """Text of the ids without special tokens, but for those of `shown`, which stand by their names; unfinished
        bytes become U+FFFD."""
        listed = ids if isinstance(ids, list) else list(ids)
        if not shown or shown.isdisjoint(listed):
            return self._tokenizer.decode(listed, skip_special_tokens=True)
        runs = groupby(listed, key=lambda token: token in shown)
        return "".join(self._tokenizer.decode(list(run), skip_special_tokens=not named) for named, run in runs)

    def token_text(self, token: int) -> str:
        """One token as text, special tokens by their name."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def token_id(self, text: str) -> int | None:
        """The id of a token by its exact name in the vocabulary."""
        return self._tokenizer.token_to_id(text)

    def stream(self, shown: Set[int] = frozenset()) -> TextStream:
        """The same as `decode`, piece by piece."""
        return TextStream(self, shown)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _ids(value: Any) -> list[int]:
    """eos_token_id is an int, a list of them, or absent."""
    if isinstance(value, int):
        return [value]
    return [int(item) for item in value] if isinstance(value, list) else []


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """A file of its own wins over the key; of several named templates the default one is taken."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default") or next(iter(named.values()), None)
    return value if isinstance(value, str) else None
