"""One sequence: engine pieces -> text, cut at the client's stop texts, with the sampled ids kept as they were sampled.

Stop texts are looked for in detokenised text, because a stop text need not begin or end where a token does. The token
in which one is completed is the last that is kept; the text ends before the stop text.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.errors import EngineBusy, EngineError
from agent_lightning.inference.engine import Engine, GenerateRequest, Piece
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import FinishReason, nats, token_ids
from agent_lightning.wire.reading import Reading
from agent_lightning.wire.tool_calls import overlap

Tops = tuple[tuple[int, float], ...]
Decode = Callable[[Sequence[int]], str]  # ids -> the text of a reply, as it is read


@dataclass(slots=True, kw_only=True)
class Spoken:
    """What one sequence has come to; complete when `finish_reason` is set."""

    ids: array[int] = field(default_factory=token_ids)
    logprobs: array[float] = field(default_factory=nats)
    legal_mass: array[float] = field(default_factory=nats)
    top: list[Tops] = field(default_factory=list)  # a token each, if asked for
    text: str = ""  # what was written up to a stop text, reasoning and tool calls included
    thought_tokens: int = 0  # first tokens that are reasoning, its tags included
    stop_text: str | None = None  # of the client's, that ended it
    finish_reason: FinishReason | None = None
    version_from: int = 0
    version_to: int = 0
    cached: int = 0  # prompt tokens whose keys and values the engine reused
    first_token_at: float | None = None  # Unix seconds
    engine_seconds: float = 0.0


class StopFilter:
    """Lets text through that can no longer be part of a stop text; ends before the first one that is completed."""

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        held = self._held + text
        found = [(at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            at, self.matched = min(found, key=lambda pair: pair[0])
            self._held = ""
            return held[:at]
        keep = max((overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def close(self) -> str:
        held, self._held = self._held, ""
        return held


Shown = tuple[str, str]  # (reasoning, content) that the client may see


class Voice:
    """Turns the tokens of one sequence into text as they come."""

    def __init__(self, tokenizer: ChatTokenizer, stops: Sequence[str], reading: Reading) -> None:
        self._stream = tokenizer.stream(reading.shown)
        self._cut = bool(stops)
        self._stops = StopFilter(stops)
        self._reading = reading.begin()
        self._thinking = 0  # tokens that came while the reply was, or could be, in its reasoning
        self.text = ""  # the reply so far, reasoning and tool calls included
        self.reasoning, self.content = "", ""  # the parts of it that may be shown already

    @property
    def stop_text(self) -> str | None:
        """The stop text that has come, if one has."""
        return self._stops.matched

    @property
    def thought_tokens(self) -> int:
        return self._thinking if self._reading.thought else 0

    def push(self, tokens: Sequence[int]) -> tuple[Shown, int]:
        """What may be shown now, and how many of the tokens are kept: those behind a completed stop text are not."""
        if not self._cut and not self._reading.thinking:
            return self._pass(self._stream.push(*tokens)), len(tokens)
        reasoning = content = ""
        for position, token in enumerate(tokens, start=1):
            self._thinking += self._reading.thinking
            more, rest = self._pass(self._stops.push(self._stream.push(token)))
            reasoning, content = reasoning + more, content + rest
            if self.stop_text is not None:
                return (reasoning, content), position
        return (reasoning, content), len(tokens)

    def close(self) -> Shown:
        """No token follows: what was held back for a stop text or an unfinished character."""
        if self.stop_text is not None:
            return "", ""
        return self._pass(self._stops.push(self._stream.close()) + self._stops.close())

    def _pass(self, text: str) -> Shown:
        self.text += text
        reasoning, content = self._reading.push(text)
        self.reasoning += reasoning
        self.content += content
        return reasoning, content


Watch = Callable[[Spoken, Shown, int], None]  # (so far, new text, number of new tokens)


async def speak(
    engine: Engine, request: GenerateRequest, decode: Decode, voice: Voice | None, watch: Watch | None
) -> Spoken:
    """Run one sequence to its end. Without a voice the text is made once, at the end.

    Raises EngineBusy when the engine gave the sequence up, and what the engine raises.
    """
    spoken = Spoken()
    pieces = engine.generate(request)
    started = time.perf_counter()
    try:
        async for piece in pieces:
            spoken.engine_seconds += time.perf_counter() - started
            _take(spoken, piece, voice, watch)
            started = time.perf_counter()
            if spoken.finish_reason is not None:
                break
    finally:
        await _close(pieces)
    if spoken.finish_reason is None:
        raise EngineError(f"the engine ended sequence {request.id} without a finish reason")
    if spoken.finish_reason == "aborted":
        raise EngineBusy(f"the engine gave up sequence {request.id}: try again")
    if voice is None:
        spoken.text = decode(spoken.ids)
    else:
        rest = voice.close()
        spoken.text, spoken.stop_text, spoken.thought_tokens = voice.text, voice.stop_text, voice.thought_tokens
        if spoken.stop_text is not None:
            spoken.finish_reason = "stop"
        if any(rest) and watch is not None:
            watch(spoken, rest, 0)
    return spoken


def _take(spoken: Spoken, piece: Piece, voice: Voice | None, watch: Watch | None) -> None:
    """Add a piece, token by token if somebody listens; behind a completed stop text nothing is kept."""
    if spoken.first_token_at is None and piece.ids:
        spoken.first_token_at = time.time()
        spoken.version_from = piece.version
        spoken.cached = piece.prompt_tokens_cached
    if piece.ids:
        spoken.version_to = piece.version
    if len(piece.logprobs) != len(piece.ids):
        raise EngineError(f"the engine gave {len(piece.ids)} tokens and {len(piece.logprobs)} log-probabilities")
    kept, shown = len(piece.ids), ("", "")
    if voice is not None:
        shown, kept = voice.push(piece.ids)
        spoken.thought_tokens = voice.thought_tokens
    spoken.ids.extend(piece.ids[:kept])
    spoken.logprobs.extend(piece.logprobs[:kept])
    spoken.legal_mass.extend(piece.legal_mass[:kept])
    spoken.top.extend(piece.top[:kept])
    stopped = voice is not None and voice.stop_text is not None
    spoken.finish_reason = "stop" if stopped else piece.finish_reason
    if watch is not None and kept:
        watch(spoken, shown, kept)


async def _close(pieces: AsyncIterator[Piece]) -> None:
    """Closing the iterator aborts a sequence that still runs."""
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


def mismatch(spoken: Spoken, decode: Decode, stops: Sequence[str]) -> str | None:
    """Why text and ids do not belong together, or None. Such a call is answered and kept, but never trained."""
    if not spoken.ids:
        return "no token was sampled"
    text = decode(spoken.ids)
    if spoken.stop_text is not None:
        rest = text[len(spoken.text) :]
        same = text.startswith(spoken.text) and rest.startswith(tuple(stops))
    else:
        same = text == spoken.text
    return None if same else "the text that was sent differs from the text of the sampled ids"


def token_logprobs(
    spoken: Spoken, start: int, count: int, tokenizer: ChatTokenizer, stop_ids: Sequence[int]
) -> list[Mapping[str, Any]]:
    """OpenAI's `logprobs.content` of tokens start to start + count; the end-of-turn token is left out."""
    entries = []
    for position in range(start, start + count):
        token = spoken.ids[position]
        if token in stop_ids:
            continue
        top = spoken.top[position] if position < len(spoken.top) else ()
        alternatives = [_entry(other, value, tokenizer) for other, value in top]
        entries.append({**_entry(token, spoken.logprobs[position], tokenizer), "top_logprobs": alternatives})
    return entries


def _entry(token: int, logprob: float, tokenizer: ChatTokenizer) -> dict[str, Any]:
    text = tokenizer.token_text(token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
