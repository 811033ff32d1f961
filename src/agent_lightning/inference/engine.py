"""The engine's contract: token ids in, token ids out, under a named policy version.

An engine never sees text, messages or rollouts' meaning. The gateway owns the tokens (rendering, stitching,
detokenising, stop strings); the engine continues ids and reports the log-probability of each token that it chose.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agent_lightning.errors import SettingError
from agent_lightning.records import FinishReason, token_ids

if TYPE_CHECKING:
    from agent_lightning.models.adapter import Adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy; log-probs are then those of temperature 1."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps all
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_new_tokens: int = 512
    stop_ids: tuple[int, ...] = ()  # a sampled one of these ends the sequence and is kept as its last token
    top_logprobs: int = 0  # alternatives reported a token
    grammar: str | None = None  # what the text may be, in llguidance's JSON form; a stop id is legal where it may end

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("max_new_tokens", self.max_new_tokens, 1, 1_000_000),
            ("top_logprobs", self.top_logprobs, 0, 20),
        ):
            if not low <= value <= high:
                raise SettingError(f"sampling.{name} is {value}: wanted {low} to {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    id: str  # unique among running requests; `abort` takes it
    policy: str
    prompt_ids: array[int]  # at least one
    sampling: Sampling
    noise_key: str  # with the token index it determines every draw: "run seed/task/sibling/call index/choice"
    affinity: str = ""  # requests of one attempt share it: they go to one replica and reuse each other's KV cache
    version: int | None = None  # None: the newest published; a sequence keeps its version to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens that one or more decode steps added to a sequence. The last piece has a finish reason."""

    ids: array[int] = field(default_factory=token_ids)
    logprobs: array[float] = field(default_factory=lambda: array("f"))  # nats of log_softmax(logits / temperature)
    version: int = 0  # of the weights that sampled these tokens
    finish_reason: FinishReason | None = None  # "stop": a stop id, "length": max_new_tokens or context, "aborted"
    top: tuple[tuple[tuple[int, float], ...], ...] = ()  # per token: (id, nats) of the best alternatives
    # Under a grammar one a token, else empty: the share of softmax(logits / temperature) that was legal; 0.0 where a
    # single token was, so that nothing was chosen. What it is for: trajectory/branches.py.
    legal_mass: array[float] = field(default_factory=lambda: array("f"))
    prompt_tokens_cached: int = 0  # prompt tokens whose KV was reused; in the first piece


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    running: int  # sequences being decoded
    waiting: int  # sequences admitted and not yet started
    capacity: int  # sequences that can be decoded at once
    tokens_per_second: float  # sampled, over the last seconds
    busy_seconds: float  # time spent computing since the start
    tokens: int  # sampled since the start
    context_length: int  # prompt + new tokens that fit


class Engine(Protocol):
    """Implementations: torch_engine (through a replica), scripted, vllm."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Continue `prompt_ids`; yields as tokens come. Closing the iterator early aborts the sequence.

        Raises EngineError (EngineBusy when a retry can help) and RequestError for what cannot be honoured, a grammar
        that the vocabulary cannot begin to spell among it.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a running request: its iterator gives a last piece "aborted". Unknown ids are ignored."""
        ...

    async def publish(self, adapter: Adapter) -> None:
        """Serve this version to requests that start from now on."""
        ...

    async def load(self) -> EngineLoad: ...

    async def close(self) -> None: ...
