"""The part of a call's life that touches store and engine: admit, generate, commit, or replay."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_lightning.errors import StoreError
from agent_lightning.gateway.attempts import Attempt, admitted, read_back
from agent_lightning.gateway.running import Answered, Running
from agent_lightning.gateway.sampling import GatewayConfig, noise_key, sampling_for, used
from agent_lightning.gateway.speak import Shown, Spoken, Voice, mismatch, speak, token_logprobs
from agent_lightning.gateway.stitch import Prompt, Turn
from agent_lightning.inference.engine import Engine, GenerateRequest, Sampling
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Call, CallStatus, nats, token_ids
from agent_lightning.store.store import Access, Store
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.chat_reply import (
    Heading,
    choice,
    completion,
    message,
    thoughts_in,
    usage,
    with_token_ids,
)
from agent_lightning.wire.dialect import Dialect, StreamWriter
from agent_lightning.wire.reading import Read, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every call needs."""

    store: Store
    engine: Engine
    tokenizer: ChatTokenizer
    stop_ids: tuple[int, ...]
    config: GatewayConfig
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One choice that was said."""

    call: Call  # with tokens; its response is not made yet
    choice: Mapping[str, Any]  # as it is answered, less its token ids
    cached: int  # prompt tokens that the engine reused
    thought_tokens: int  # of the sampled ones, that are reasoning
    stored: bool = False  # committed before a crash that lost its siblings


@dataclass(slots=True, kw_only=True)
class Life:
    parts: Parts
    access: Access
    dialect: Dialect
    request: ChatRequest
    body: Mapping[str, Any]  # as it came
    running: Running
    component: str
    parent_span: str | None
    deadline_seconds: float | None
    grammar: str | None = None  # that binds the replies
    prompt: Prompt = field(default_factory=lambda: Prompt(ids=token_ids(), parent_call_id=None, offset=0))
    reading: Reading = field(default_factory=Reading)
    calls: list[Call] = field(default_factory=list)  # one a choice, as admitted
    engine_seconds: float = 0.0
    replayed: bool = False
    quarantined: int = 0  # choices that are answered and kept but not trained
    _writer: StreamWriter | None = None

    @property
    def writer(self) -> StreamWriter:
        """The one that writes this call's stream: it knows what it has begun."""
        if self._writer is None:
            self._writer = self.dialect.writer(self.running.call_id, int(self.calls[0].admitted_at), self.request)
        return self._writer

    # --- admission ----------------------------------------------------------------------------------------------
    async def admit(self, prompt: Prompt) -> Call | None:
        """Record the call as running, one row a choice. Gives the completed call when this is a retry of it."""
        self.prompt = prompt
        drafts = [self._draft(position) for position in range(self.request.n)]
        first = await self._admit(drafts[0])
        self.calls = [first]
        if first.status is CallStatus.COMPLETED:
            return first
        for draft in drafts[1:]:
            self.calls.append(await self._admit(draft))
        return None

    async def _admit(self, draft: Call) -> Call:
        admission = await admitted(self.parts.store, draft)
        if admission.kind == "replay":
            return admission.call
        return replace(
            draft,
            order=admission.call.order,
            index=admission.call.index,
            admitted_at=admission.call.admitted_at or draft.admitted_at,
        )

    def _draft(self, position: int) -> Call:
        request, parts, span = self.request, self.parts, self.parent_span
        if span is None and request.n > 1:  # choices of one request overlap in time
            span = hashlib.sha256(self.running.call_id.encode()).hexdigest()[:16]
        return Call(
            id=_choice_id(self.running.call_id, position),
            attempt_id=self.access.attempt_id,
            rollout_id=self.access.rollout.id,
            policy=parts.config.policy,
            component=self.component,
            dialect=self.dialect.name,
            order=0,  # the store counts
            index=0,
            parent_call_id=self.prompt.parent_call_id,
            prompt_offset=self.prompt.offset,
            suffix_ids=self.prompt.suffix_ids,
            sampled_ids=token_ids(),
            logprobs=nats(),
            version_from=0,
            version_to=0,
            status=CallStatus.RUNNING,
            finish_reason=None,
            request=self.body,
            response=None,
            request_hash=self.running.request_hash,
            requested_sampling=request.requested,
            used_sampling=used(self._sampling, request),
            parent_span=span,
            admitted_at=parts.clock(),
            meta={"choice": position} | ({"note": self.prompt.note} if self.prompt.note else {}),
        )

    @property
    def _sampling(self) -> Sampling:
        return sampling_for(
            self.access.rollout.mode,
            self.request,
            self.parts.config,
            prompt_tokens=len(self.prompt.ids),
            stop_ids=self.parts.stop_ids,
            grammar=self.grammar,
        )

    # --- generation ---------------------------------------------------------------------------------------------
    async def generate(self) -> list[Finished]:
        """Let the engine speak, within the deadline. Raises TimeoutError that says how long it took."""
        try:
            async with asyncio.timeout(self.deadline_seconds):
                if self.request.n == 1:
                    return [await self._say(0)]
                return await self._say_all()
        except TimeoutError as error:
            raise TimeoutError(
                f"call {self.running.call_id} took more than the {self.deadline_seconds:g} s of max_step_timeout that "
                "were left: add replicas or client instances, or raise it"
            ) from error

    async def _say_all(self) -> list[Finished]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._say(position)) for position in range(self.request.n)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _say(self, position: int) -> Finished:
        call, request, parts = self.calls[position], self.request, self.parts
        if call.status is CallStatus.COMPLETED:
            return self._said_before(position)
        voice = None
        if request.stream or request.stop or self.reading.thoughts:
            voice = Voice(parts.tokenizer, request.stop, self.reading)
        teller = _Teller(self, position) if request.stream else None
        asked = GenerateRequest(
            id=f"{call.attempt_id}/{call.id}",
            policy=call.policy,
            prompt_ids=self.prompt.ids,
            sampling=self._sampling,
            noise_key=noise_key(self.access.rollout, parts.config, request, self.calls[0].order, position),
            affinity=call.attempt_id,
        )
        spoken = await speak(parts.engine, asked, self._decode, voice, teller)
        self.engine_seconds = max(self.engine_seconds, spoken.engine_seconds)
        read = self.reading.read(spoken.text, call.id)
        finished = self._finish(call, position, spoken, read)
        if teller is not None and voice is not None:
            teller.close(spoken, read, voice)
        return finished

    def _decode(self, ids: Sequence[int]) -> str:
        return self.parts.tokenizer.decode(ids, self.reading.shown)

    def _finish(self, call: Call, position: int, spoken: Spoken, read: Read) -> Finished:
        wrong = mismatch(spoken, self._decode, self.request.stop)
        self.quarantined += wrong is not None
        logprobs = None
        if self.request.logprobs:
            logprobs = self._logprobs(spoken, 0)
        reason = "tool_calls" if read.calls else spoken.finish_reason
        assert reason is not None
        done = replace(
            call,
            sampled_ids=spoken.ids,
            logprobs=spoken.logprobs,
            legal_mass=spoken.legal_mass,
            version_from=spoken.version_from,
            version_to=spoken.version_to,
            status=CallStatus.COMPLETED,
            finish_reason=reason,
            first_token_at=spoken.first_token_at,
            finished_at=self.parts.clock(),
            trainable=wrong is None,
            error=wrong,
        )
        return Finished(
            call=done,
            choice=choice(
                position, message(read.content, read.calls, read.reasoning), reason, logprobs, spoken.stop_text
            ),
            cached=spoken.cached,
            thought_tokens=spoken.thought_tokens,
        )

    def _logprobs(self, spoken: Spoken, start: int) -> list[Mapping[str, Any]]:
        """Of the tokens from `start` on; those of the reasoning are not of the content."""
        start = max(start, spoken.thought_tokens)
        return token_logprobs(spoken, start, len(spoken.ids) - start, self.parts.tokenizer, self.parts.stop_ids)

    def _said_before(self, position: int) -> Finished:
        """A choice that was committed before a crash lost the others: said again as it was."""
        call = self.calls[position]
        assert call.response is not None
        made = call.response["choices"][0]
        if self.request.stream:
            for event in self.writer.said({**made, "token_ids": list(call.sampled_ids)}, self.prompt.ids):
                self.running.push(event)
        return Finished(
            call=call, choice=made, cached=0, thought_tokens=thoughts_in(call.response["usage"]), stored=True
        )

    # --- the end ------------------------------------------------------------------------------------------------
    async def commit(self, finished: Sequence[Finished], attempt: Attempt) -> Answered:
        """Write the answer down, then let it go. The first choice comes last: its row vouches for all of them."""
        created = int(self.calls[0].admitted_at)
        heading = Heading(call_id=self.running.call_id, created=created, model=self.request.model)
        prompt_tokens = len(self.prompt.ids)
        sampled = [done.call.sampled_ids for done in finished]
        thoughts = sum(done.thought_tokens for done in finished)
        tokens = usage(prompt_tokens, sum(map(len, sampled)), max(done.cached for done in finished), thoughts)
        answer = completion(heading, [done.choice for done in finished], tokens)
        self.running.committing = True
        for position in reversed(range(len(finished))):
            done = finished[position]
            if done.stored:
                continue
            own = usage(prompt_tokens, len(sampled[position]), done.cached, done.thought_tokens)
            response = answer if position == 0 else completion(heading, [done.choice], own)
            await self.parts.store.complete(replace(done.call, response=response))
        for done in finished:
            self._remember(attempt, done)
        body = self.dialect.body(with_token_ids(answer, self.prompt.ids, sampled), self.running.call_id, self.request)
        rest = tuple(self.writer.ending(answer)) if self.request.stream else ()
        return Answered(body=body, version=finished[0].call.version_from, rest=rest)

    def _remember(self, attempt: Attempt, done: Finished) -> None:
        turn = Turn(
            call_id=done.call.id,
            order=done.call.order,
            prompt_ids=self.prompt.ids,
            sampled_ids=done.call.sampled_ids,
            messages=len(self.request.messages),
            root=self.prompt.root or len(self.request.messages),
        )
        attempt.branches.add(turn, self.request.messages, done.choice["message"], self.request.tools)

    async def abandon(self, error: BaseException) -> None:
        """Record that the call is broken: a retry with the same id generates anew."""
        reason = "the client left" if isinstance(error, asyncio.CancelledError) else f"{type(error).__name__}: {error}"
        for call in self.calls:
            # sealed with its attempt, or committed before its siblings failed: it stays what it is
            with contextlib.suppress(StoreError):
                await self.parts.store.break_call(call.attempt_id, call.id, reason)

    async def replay(self, first: Call, attempt: Attempt) -> Answered:
        """The stored answer again, with the token ids that are kept in the calls' own arrays."""
        self.replayed = True
        calls = {first.id: first}
        turn = attempt.branches.turn(first.id)
        if turn is None or self.request.n > 1:
            stored = await self.parts.store.calls(first.rollout_id, attempt_id=first.attempt_id)
            calls = {call.id: call for call in stored}
            turn = turn or read_back(stored).branches.turn(first.id)
        assert turn is not None
        assert first.response is not None
        names = [_choice_id(first.id, position) for position in range(self.request.n)]
        sampled: list[array[int]] = [calls[name].sampled_ids for name in names]
        answer = with_token_ids(first.response, turn.prompt_ids, sampled)
        rest = tuple(self.writer.whole(answer)) if self.request.stream else ()
        body = self.dialect.body(answer, self.running.call_id, self.request)
        return Answered(body=body, version=first.version_from, rest=rest)


class _Teller:
    """Writes the events of one choice as its tokens come; ids travel with the next text that can be shown."""

    def __init__(self, life: Life, position: int) -> None:
        self._life = life
        self._position = position
        self._writer = life.writer
        self._opened = False
        self._told = 0  # tokens whose ids were sent

    def __call__(self, spoken: Spoken, shown: Shown, tokens: int) -> None:
        if not self._opened:
            self._open(spoken)
        reasoning, content = shown
        if reasoning:
            self._reason(spoken, reasoning)
        if content:
            self._tell(spoken, content)

    def close(self, spoken: Spoken, read: Read, voice: Voice) -> None:
        """What was held back for tags and tool calls, the calls themselves, and the ids that are left."""
        if not self._opened:
            self._open(spoken)
        reasoning, content = read.reasoning[len(voice.reasoning) :], read.content[len(voice.content) :]
        if reasoning:
            self._reason(spoken, reasoning)
        if content or self._told < len(spoken.ids):
            self._tell(spoken, content)
        if read.calls:
            self._life.running.push(self._writer.calls(self._position, read.calls))

    def _open(self, spoken: Spoken) -> None:
        self._opened = True
        running = self._life.running
        if running.version is None:
            running.version = spoken.version_from
        running.push(self._writer.opening(self._position, self._life.prompt.ids))

    def _reason(self, spoken: Spoken, text: str) -> None:
        start, self._told = self._told, len(spoken.ids)
        self._life.running.push(self._writer.reasoning(self._position, text, spoken.ids[start:]))

    def _tell(self, spoken: Spoken, text: str) -> None:
        start, self._told = self._told, len(spoken.ids)
        logprobs = self._life._logprobs(spoken, start) if self._life.request.logprobs else None
        event = self._writer.text(self._position, text, spoken.ids[start:], logprobs)
        self._life.running.push(event)


def _choice_id(call_id: str, position: int) -> str:
    return call_id if position == 0 else f"{call_id}.{position}"
