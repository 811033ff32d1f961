"""Continuous batching in one thread: requests join and leave between decode steps.

`step` admits what waits, computes one token for every running sequence and gives the new tokens. Siblings with one
prompt share its prefill; a sequence starts from the longest prefix that a slot of its own policy version still holds.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from agent_lightning.errors import EngineError, PromptTooLong, RequestError
from agent_lightning.inference.choose import choose_forward
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.inference.forward import Forward, Row, is_base
from agent_lightning.inference.grammar import Grammars, Matcher
from agent_lightning.inference.sampling import Draw, Drawn, draw
from agent_lightning.inference.slots import Key, Lane, Slot, SlotTable, common
from agent_lightning.inference.versions import Versions
from agent_lightning.models.adapter import Adapter
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import FinishReason, nats, token_ids

Arrival: TypeAlias = "Piece | EngineError"

WORTH_WAITING = 16  # shared prompt tokens for which a prefill waits for another one of the same step
RATE_WINDOW = 10.0  # seconds over which tokens_per_second is taken


@dataclass(slots=True, eq=False)
class _Sequence:
    request: GenerateRequest
    lane: Lane
    slot: Slot | None = None
    cached: int = 0  # prompt tokens that were not computed
    sampled: array[int] = field(default_factory=token_ids)
    matcher: Matcher | None = None  # where it stands in its grammar
    legal: torch.Tensor | None = None  # (V,) what may come next

    @property
    def key(self) -> Key:
        return self.lane[0]


class TorchCore:
    """`model` is a transformers causal LM, in eval mode; its weights are used in place. Beside those that float16 holds
    lies a packed copy of half their size (packed.py)."""

    def __init__(
        self,
        model: Any,
        *,
        max_sequences: int = 32,
        context_length: int | None = None,
        dtype: torch.dtype | None = None,
        retained: int | None = None,
        share_prefixes: bool = True,
        forward: Forward | None = None,
        tokenizer: ChatTokenizer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`retained` slots, by default as many as rows, keep finished sequences besides those that still lie in rows.

        Without `share_prefixes` a request goes on from cached tokens of its own affinity alone: what a sequence is
        computed from, and so every bit of its log-probabilities, then hangs on nothing that ran before it.
        `dtype`, if given, must be the model's: it is here so that a mistake is seen. `tokenizer` is for grammars alone:
        without it requests with one are refused. Raises EngineError.
        """
        held = next(model.parameters()).dtype
        if dtype is not None and dtype != held:
            raise EngineError(f"dtype {dtype} was asked for and the model is in {held}: load it in the wanted type")
        self.model, self.max_sequences = model, max_sequences
        self.context_length = context_length or min(int(model.config.max_position_embeddings), 4096)
        shelf = max_sequences if retained is None else retained
        self.forward, self.forward_reason = (
            (forward, "given")
            if forward is not None
            else choose_forward(model, slots=max_sequences + shelf, context_length=self.context_length)
        )
        self.slots = SlotTable(rows=max_sequences, shelf=shelf, copy=self.forward.copy, crops=self.forward.crops)
        self.versions = Versions(self.forward.prepare)
        self._grammars = None if tokenizer is None else Grammars(tokenizer, self.forward.vocabulary)
        self._share = share_prefixes
        self._clock = clock
        self._waiting: deque[GenerateRequest] = deque()
        self._running: list[_Sequence] = []
        self._last_words: list[tuple[str, Arrival]] = []  # of aborted requests, given by the next step
        self._held: Adapter | None = None  # full weights that wait until nothing runs
        self._tokens, self._busy = 0, 0.0
        self._recent: deque[tuple[float, int]] = deque()

    # -- what others call between steps

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing to do."""
        return not (self._waiting or self._running or self._last_words)

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. Raises PromptTooLong, RequestError, EngineError."""
        if not request.prompt_ids:
            raise RequestError("the prompt has no tokens: at least one is wanted", field="prompt")
        if len(request.prompt_ids) >= self.context_length:
            raise PromptTooLong(
                f"the prompt has {len(request.prompt_ids)} tokens and the context is {self.context_length}: shorten it",
                code="context_length_exceeded",
            )
        low, high = min(request.prompt_ids), max(request.prompt_ids)
        if low < 0 or high >= self.forward.vocabulary:
            raise RequestError(f"token ids {low} to {high} came; 0 to {self.forward.vocabulary - 1} are known")
        bias = request.sampling.logit_bias
        if bias and not all(0 <= token < self.forward.vocabulary for token in bias):
            raise RequestError(f"logit_bias names a token beyond {self.forward.vocabulary - 1}", field="logit_bias")
        if any(request.id == other for other in self._ids()):
            raise EngineError(f"request {request.id} is already running")
        self.versions.resolve(request.policy, request.version)
        self._matcher(request)
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """End a request: the next step gives its last piece. Unknown ids are ignored."""
        for request in self._waiting:
            if request.id == request_id:
                self._waiting.remove(request)
                self._last_words.append((request_id, Piece(finish_reason="aborted")))
                return
        for sequence in self._running:
            if sequence.request.id == request_id:
                self._end(sequence)
                piece = Piece(version=sequence.key[1], finish_reason="aborted")
                self._last_words.append((request_id, piece))
                return

    def publish(self, adapter: Adapter) -> None:
        """Serve this version to sequences that start from now on.

        Full weights (`adapter.weights`) replace the model's own: nothing starts until what runs has ended.
        """
        if adapter.weights is not None:
            self._held = adapter
            self._swap_when_drained()
            return
        self.versions.add(adapter)
        self._prune()

    def reset(self) -> None:
        """Forget every request and every cached token; published versions stay."""
        self._waiting.clear()
        self._running.clear()
        self._last_words.clear()
        self.slots.clear()

    def load(self) -> EngineLoad:
        now = self._clock()
        self._drop_old(now)
        recent = sum(tokens for _, tokens in self._recent)
        span = max(now - self._recent[0][0], 1e-3) if self._recent else 1.0
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            capacity=self.max_sequences,
            tokens_per_second=recent / span,
            busy_seconds=self._busy,
            tokens=self._tokens,
            context_length=self.context_length,
        )

    # -- one step

    def step(self) -> list[tuple[str, Arrival]]:
        """Admit, compute one token for every running sequence, give the pieces. A sequence whose grammar led where no
        token can go on ends with an EngineError instead.

        Raises EngineError when the weights give non-finite logits; `reset` then makes the core usable again.
        """
        begin = self._clock()
        self._swap_when_drained()
        pieces, self._last_words = self._last_words, []
        going = self._running[:]
        fresh = self._admit()
        if sequences := fresh + going:
            logits_RV = self._compute(fresh, going)
            rows = [
                Draw(sampling=s.request.sampling, noise_key=s.request.noise_key, sampled=s.sampled, legal=s.legal)
                for s in sequences
            ]
            drawn = draw(logits_RV, rows)
            pieces.extend(self._append(sequence, token) for sequence, token in zip(sequences, drawn, strict=True))
            self._count(begin, len(sequences))
        return pieces

    def _compute(self, fresh: list[_Sequence], going: list[_Sequence]) -> torch.Tensor:
        """Logits for the next token of each, in this order: prompts and running sequences share their passes."""
        leaders: dict[tuple[Lane, bytes], _Sequence] = {}
        for sequence in fresh:
            leaders.setdefault((sequence.lane, sequence.request.prompt_ids.tobytes()), sequence)
        logits_of = self._pass(list(leaders.values()), going)
        rows = []
        for sequence in fresh:
            leader = leaders[sequence.lane, sequence.request.prompt_ids.tobytes()]
            if leader is not sequence:
                assert leader.slot is not None
                sequence.cached = len(leader.request.prompt_ids)
                sequence.slot = self.slots.take(sequence.lane, leader.slot, sequence.cached)
            rows.append(logits_of[leader])
        return torch.stack(rows + [logits_of[sequence] for sequence in going])

    def _next_row(self, sequence: _Sequence) -> Row:
        slot = sequence.slot
        assert slot is not None
        token = sequence.sampled[-1]
        slot.tokens.append(token)
        adapter = self.versions.prepared(sequence.key)
        return Row(slot=slot.number, tokens=(token,), start=len(slot.tokens) - 1, adapter=adapter)

    def _append(self, sequence: _Sequence, drawn: Drawn) -> tuple[str, Arrival]:
        first = not sequence.sampled
        sequence.sampled.append(drawn.token)
        reason = self._finish_reason(sequence, drawn.token)
        if reason is None and sequence.matcher is not None:
            try:
                reason = self._follow(sequence, sequence.matcher, drawn.token)
            except EngineError as error:
                self._end(sequence)
                return sequence.request.id, error
        if reason is not None:
            self._end(sequence)
        piece = Piece(
            ids=token_ids((drawn.token,)),
            logprobs=nats((drawn.logprob,)),
            version=sequence.key[1],
            finish_reason=reason,
            top=(drawn.top,) if drawn.top else (),
            prompt_tokens_cached=sequence.cached if first else 0,
            legal_mass=nats(() if sequence.matcher is None else (drawn.legal_mass,)),
        )
        return sequence.request.id, piece

    def _follow(self, sequence: _Sequence, matcher: Matcher, token: int) -> FinishReason | None:
        """What may come behind this token; "stop" when that is nothing, and the end has no token. Raises EngineError."""
        matcher.take(token)
        legal_V = matcher.legal()
        if not legal_V.any():
            if matcher.may_end:
                return "stop"
            raise EngineError(
                f"the grammar of request {sequence.request.id} wants what the policy's vocabulary cannot spell"
            )
        sequence.legal = self._on_device(legal_V)
        return None

    def _matcher(self, request: GenerateRequest) -> Matcher | None:
        """At the beginning of the request's grammar. Raises RequestError."""
        if request.sampling.grammar is None:
            return None
        if self._grammars is None:
            raise RequestError("a grammar came, and this engine was given no tokenizer to follow it with")
        return self._grammars.start(request.sampling.grammar, request.sampling.stop_ids)

    def _on_device(self, legal_V: NDArray[np.bool_]) -> torch.Tensor:
        return torch.from_numpy(legal_V).to(self.model.device)

    def _finish_reason(self, sequence: _Sequence, token: int) -> FinishReason | None:
        request, count = sequence.request, len(sequence.sampled)
        if token in request.sampling.stop_ids:
            return "stop"
        if count >= request.sampling.max_new_tokens or len(request.prompt_ids) + count >= self.context_length:
            return "length"
        return None

    def _end(self, sequence: _Sequence) -> None:
        assert sequence.slot is not None
        self._running.remove(sequence)
        self.slots.rest(sequence.slot)

    # -- admission

    def _admit(self) -> list[_Sequence]:
        """Start what waits and fits."""
        fresh: list[_Sequence] = []
        while self._waiting and self._held is None and len(self._running) < self.max_sequences:
            request = self._waiting.popleft()
            key = self.versions.resolve(request.policy, request.version)
            sequence = _Sequence(request=request, lane=(key, "" if self._share else request.affinity or request.id))
            if (matcher := self._matcher(request)) is not None:
                sequence.matcher, sequence.legal = matcher, self._on_device(matcher.legal())
            fresh.append(sequence)
            self._running.append(sequence)
        return fresh

    def _pass(self, fresh: list[_Sequence], going: list[_Sequence]) -> dict[_Sequence, torch.Tensor]:
        """Compute prompts in rounds, running sequences in the first: a prompt that shares much with another of its
        round waits for it."""
        logits_of: dict[_Sequence, torch.Tensor] = {}
        while fresh or going:
            starting: list[_Sequence] = []
            later: list[_Sequence] = []
            for sequence in fresh:
                source, held = self.slots.find(sequence.lane, sequence.request.prompt_ids)
                if self._shared_with(starting, sequence) >= held + WORTH_WAITING:
                    later.append(sequence)
                    continue
                sequence.cached = held
                sequence.slot = self.slots.take(sequence.lane, source, held)
                starting.append(sequence)
            # Only now: a slot must not claim a token that is not in the cache while others look for prefixes.
            row_of = {sequence: self._prompt_row(sequence) for sequence in starting}
            row_of |= {sequence: self._next_row(sequence) for sequence in going}
            now = sorted(row_of, key=_order)
            logits_RV = self.forward.extend([row_of[sequence] for sequence in now])
            logits_of.update(zip(now, logits_RV, strict=True))
            fresh, going = later, []
        return logits_of

    def _shared_with(self, others: list[_Sequence], sequence: _Sequence) -> int:
        if not self.forward.crops:
            return 0
        prompt = sequence.request.prompt_ids
        return max((common(o.request.prompt_ids, prompt) for o in others if o.lane == sequence.lane), default=0)

    def _prompt_row(self, sequence: _Sequence) -> Row:
        slot = sequence.slot
        assert slot is not None
        prompt = sequence.request.prompt_ids
        slot.tokens = prompt[:]
        adapter = self.versions.prepared(sequence.key)
        return Row(slot=slot.number, tokens=prompt[sequence.cached :], start=sequence.cached, adapter=adapter)

    # -- versions and figures

    def _swap_when_drained(self) -> None:
        if self._held is None or self._running:
            return
        adapter, self._held = self._held, None
        assert adapter.weights is not None and is_base(adapter)
        self.forward.replace(adapter.weights)
        self.slots.clear()
        self.versions.only(adapter)
        for request in list(self._waiting):
            if request.policy != adapter.policy or request.version not in (None, adapter.version):
                self.abort(request.id)

    def _prune(self) -> None:
        used = {sequence.key for sequence in self._running}
        pinned = [request for request in self._waiting if request.version is not None]
        used |= {self.versions.resolve(request.policy, request.version) for request in pinned}
        left = self.versions.prune(used)
        self.slots.forget(lambda lane: lane[0] in left)

    def _ids(self) -> list[str]:
        return [r.id for r in self._waiting] + [s.request.id for s in self._running]

    def _count(self, begin: float, tokens: int) -> None:
        now = self._clock()
        self._tokens += tokens
        self._busy += now - begin
        self._recent.append((begin, tokens))
        self._drop_old(now)

    def _drop_old(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] > RATE_WINDOW:
            self._recent.popleft()


def _order(sequence: _Sequence) -> tuple[Key, int]:
    """Rows of one version together, then by slot: the layout that the forward reads fastest."""
    assert sequence.slot is not None
    return sequence.key, sequence.slot.number
