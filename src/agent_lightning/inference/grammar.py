"""Grammars in the engine: which tokens may come next, so that a reply is JSON under a schema or a call of a tool.

llguidance parses and computes the masks (a trie of the vocabulary walked by the grammar's own automaton: Willard and
Louf 2023, arXiv:2307.09702, with the grammar read as the sequence grows). Text that is forced comes as the tokens
that the tokenizer itself would write. V is the vocabulary of the logits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agent_lightning.errors import EngineError, RequestError
from agent_lightning.models.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

KEPT = 64  # compiled grammars
_SPELLED_BY_NONE = "NoExtensionBias"  # the library's word where no token begins what would have to come


class Matcher:
    """Where one sequence stands in its grammar."""

    def __init__(self, state: Any, vocabulary: int, *, end: int, stop_ids: Sequence[int]) -> None:
        self._state = state  # an LLMatcher of its own
        self._vocabulary = vocabulary
        self._end = end  # the token that the library takes for the end
        self._stop_ids = list(stop_ids)

    @property
    def may_end(self) -> bool:
        """Whether what was taken so far is a whole text of the grammar."""
        return self._state.is_accepting()

    def legal(self) -> NDArray[np.bool_]:
        """(V,): the tokens that may come next; all false when none can. Raises EngineError."""
        legal_V = np.zeros(self._vocabulary, dtype=np.bool_)
        packed = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
        if _first_line(self._state.get_error()) == _SPELLED_BY_NONE:
            return legal_V
        self._check()
        bits = np.unpackbits(packed, bitorder="little")[: self._vocabulary]
        legal_V[: len(bits)] = bits
        legal_V[self._end] = False
        legal_V[self._stop_ids] = self.may_end
        return legal_V

    def take(self, token: int) -> None:
        """A legal token, none of the stop ids, was sampled. Raises EngineError."""
        self._state.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._state.is_error():
            raise EngineError(f"the grammar of this call cannot be followed: {_first_line(self._state.get_error())}")


class Grammars:
    """The grammars that one vocabulary was asked for, compiled once each."""

    def __init__(self, tokenizer: ChatTokenizer, vocabulary: int) -> None:
        """`vocabulary` is the number of logits: at least the tokenizer's own."""
        self._chat_tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._known: OrderedDict[str, Any] = OrderedDict()
        self._tokenizer: LLTokenizer | None = None

    def start(self, grammar: str, stop_ids: Sequence[int]) -> Matcher:
        """Raises RequestError for a grammar that cannot be compiled or that this vocabulary cannot begin to spell."""
        state = self._compiled(grammar).deep_copy()
        assert self._tokenizer is not None
        matcher = Matcher(state, self._vocabulary, end=self._tokenizer.eos_token, stop_ids=stop_ids)
        if not matcher.legal().any():
            raise RequestError("the grammar of this call begins with what the policy's vocabulary cannot spell")
        return matcher

    def _compiled(self, grammar: str) -> Any:
        if grammar in self._known:
            self._known.move_to_end(grammar)
            return self._known[grammar]
        from llguidance import LLMatcher, LLParserLimits

        if self._tokenizer is None:  # a quarter of a second for 50,000 tokens: only where a grammar comes
            self._tokenizer = _trie(self._chat_tokenizer)
        made = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if made.is_error():
            raise RequestError(f"the grammar of this call cannot be compiled: {_first_line(made.get_error())}")
        self._known[grammar] = made
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return made


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _trie(tokenizer: ChatTokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer(_Vocabulary(tokenizer))  # type: ignore[arg-type] - it looks at the attributes alone


class _Vocabulary:
    """A tokenizer as llguidance asks for it. Special is what the decoder leaves out; a mark such as <tool_call> that it
    writes is text, whatever its place in the tokenizer's file."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens = _spellings(tokenizer)
        self.special_token_ids = [token for token in range(len(self.tokens)) if not tokenizer.decode([token])]
        self.eos_token_id = next(iter((*tokenizer.stop_ids, *self.special_token_ids)), 0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids that spell the text, else none: what an unknown token stands for is not this text."""
        plain = text.decode(errors="replace") if isinstance(text, bytes) else text
        ids = self._tokenizer.encode(plain).tolist()
        return ids if self._tokenizer.decode(ids) == plain else []


def _spellings(tokenizer: ChatTokenizer) -> list[bytes]:
    """The bytes of every token. llguidance knows those of byte-level and byte-fallback vocabularies, also where a token
    is a part of a character; in others a token is what it is decoded to."""
    from llguidance import LLTokenizer

    texts = [tokenizer.token_text(token).encode() for token in range(tokenizer.vocabulary)]
    try:
        known = LLTokenizer(tokenizer.as_json(), slices=[])
    except ValueError:
        return texts
    spelled = [known.decode_bytes([token]) for token in range(min(known.vocab_size, len(texts)))]
    marked = b"\xff"  # before what it takes for special
    return [text if piece.startswith(marked) else piece for piece, text in zip(spelled, texts, strict=True)]
