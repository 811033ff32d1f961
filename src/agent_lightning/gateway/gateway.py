"""One call's life: who -> parse -> hold -> render or stitch -> admit -> generate -> capture -> reply.

The gateway owns the tokens. It renders messages, continues conversations by ids, lets the engine sample, and commits
the exact ids before the client may know that its answer is complete.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agent_lightning.errors import AccessDenied, Conflict, Fenced, NotFound, PromptTooLong, RequestError
from agent_lightning.gateway.admission import Admission
from agent_lightning.gateway.attempts import Attempt, Attempts, conversation
from agent_lightning.gateway.grammar import grammar_of
from agent_lightning.gateway.hold import Hold
from agent_lightning.gateway.latency import Counts, Latencies
from agent_lightning.gateway.life import Life, Parts
from agent_lightning.gateway.relay import Relay
from agent_lightning.gateway.running import Answered, Running
from agent_lightning.gateway.sampling import GatewayConfig
from agent_lightning.gateway.stitch import Prompt, continued, first_prompt, still_written
from agent_lightning.gateway.templates import Templates
from agent_lightning.gateway.upstreams import Upstream, Upstreams
from agent_lightning.inference.engine import Engine
from agent_lightning.models.chat_template import ChatTemplate
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Call, token_ids
from agent_lightning.store.store import Access, Store
from agent_lightning.wire import protocol
from agent_lightning.wire.chat import ChatRequest, body_hash
from agent_lightning.wire.dialect import Dialect
from agent_lightning.wire.dialects import BY_NAME, CHAT
from agent_lightning.wire.parts import unreadable
from agent_lightning.wire.protocol import ROLLOUT, VERSION

WAITING = 16  # times the engine's capacity: calls that may wait for a place in it
_LONGEST_CALL_ID = 64
_CONVERSATION = {"responses": "input", "completions": "prompt"}  # the field that holds it, where it is not "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came over the wire."""

    key: str | None
    body: bytes
    dialect: Dialect = CHAT
    call_id: str | None = None
    component: str = ""
    parent_span: str | None = None
    deadline_seconds: float | None = None  # for the engine's part
    path: str = protocol.CHAT
    headers: Mapping[str, str] = field(default_factory=dict)  # as they came


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back: a body, or the events of a stream."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    events: AsyncIterator[bytes] | None = None


class Gateway:
    """Serves one policy to the rollouts of one store."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        tokenizer: ChatTokenizer,
        template: ChatTemplate,
        config: GatewayConfig,
        *,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        upstreams: Upstreams | None = None,
        capacity: int = 4096,
    ) -> None:
        """`clock` gives Unix seconds; `new_id` mints ids for calls that bring none; `upstreams` serve the components
        that are theirs, and are closed with the gateway; `capacity` is how many calls the engine samples at once. Raises
        SettingError."""
        self.config = config
        self.templates = Templates(template, tokenizer, config.history, config.tool_parser)
        self.hold = Hold(clock, wait_seconds=config.hold_seconds)
        self.latencies = Latencies()
        self.counts = Counts()
        self._parts = Parts(
            store=store,
            engine=engine,
            tokenizer=tokenizer,
            stop_ids=self.templates.stop_ids,
            config=config,
            clock=clock,
        )
        self._store = store
        self._tokenizer = tokenizer
        self._new_id = new_id
        self._clock = clock
        self._upstreams = upstreams
        self.admission = Admission(capacity, WAITING * capacity)
        self._attempts = Attempts(store, config.attempts_kept)
        self._running: dict[tuple[str, str], Running] = {}  # (attempt, call id)

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def answer(self, asked: Asked) -> Answer:
        """Answer one call. Raises the errors of errors.py, and TimeoutError past the deadline."""
        arrived = time.perf_counter()
        access = await self.who(asked.key)
        upstream = None if self._upstreams is None else self._upstreams.of(asked.component)
        if upstream is not None:
            return await self._relayed(access, upstream, asked)
        body, request = await self._read(access, asked)
        grammar = None
        if request.form.binds(request.tools):  # a large schema takes a while to check
            grammar = await asyncio.to_thread(self._grammar, request)
        call_id = self._call_id(asked)
        running = await self._running_call((access.attempt_id, call_id), body_hash(body))
        if running.work is None:
            life = Life(
                parts=self._parts,
                access=access,
                dialect=asked.dialect,
                request=request,
                body=body,
                running=running,
                component=asked.component,
                parent_span=asked.parent_span,
                deadline_seconds=asked.deadline_seconds,
                grammar=grammar,
            )
            self._set_going(running, access, self._work(life, arrived))
        assert running.work is not None
        headers = {ROLLOUT: access.rollout.id}
        if not request.stream:
            answered = await running.answer()
            return Answer(headers={**headers, VERSION: str(answered.version)}, body=answered.body)
        events = running.stream()
        first = await anext(events)  # what fails before the first token still gets a status of its own
        version = running.work.result().version if running.version is None else running.version
        return Answer(headers={**headers, VERSION: str(version)}, events=_with_first(first, events))

    async def _relayed(self, access: Access, upstream: Upstream, asked: Asked) -> Answer:
        """A call of a component that is not trained, from its own provider."""
        body = _json(asked.body)
        if not isinstance(body, dict):
            raise RequestError(f"the body is {type(body).__name__}: a JSON object is wanted")
        running = await self._running_call((access.attempt_id, self._call_id(asked)), body_hash(body))
        if running.work is None:
            relay = Relay(
                store=self._store,
                access=access,
                upstream=upstream,
                dialect=asked.dialect,
                path=asked.path,
                headers=asked.headers,
                body=body,
                running=running,
                component=asked.component,
                parent_span=asked.parent_span,
                deadline_seconds=asked.deadline_seconds,
                clock=self._clock,
            )
            self._set_going(running, access, relay.work())
        events = running.stream()
        first = await anext(events)
        assert running.head is not None
        status, headers = running.head
        answer_headers = {**headers, ROLLOUT: access.rollout.id}
        return Answer(status=status, headers=answer_headers, events=_with_first(first, events))

    def _call_id(self, asked: Asked) -> str:
        call_id = asked.call_id or self._new_id()
        if len(call_id) > _LONGEST_CALL_ID:
            raise RequestError(f"the call id has {len(call_id)} characters: at most {_LONGEST_CALL_ID} are wanted")
        return call_id

    def _set_going(self, running: Running, access: Access, work: Coroutine[Any, Any, Answered]) -> None:
        running.work = asyncio.create_task(work, name=f"call {running.call_id}")
        # not in the work's own `finally`: a task that is cancelled before its first step never gets there
        running.work.add_done_callback(partial(self._ended, (access.attempt_id, running.call_id), running))

    async def count(self, asked: Asked) -> int:
        """Tokens of the prompt that this call would have; nothing is recorded. Raises as `answer`."""
        access = await self.who(asked.key)
        _, request = await self._read(access, asked)
        attempt = await self._attempts.of(access)
        return len(self._prompt(attempt, request).ids)

    async def stored(self, key: str | None, call_id: str, dialect: Dialect) -> Mapping[str, Any]:
        """The answer of a completed call of the key's attempt once more. Raises NotFound, and as `who`."""
        access = await self.who(key)
        calls = await self._completed(access)
        if call_id not in calls:
            raise NotFound(f"this rollout has completed no call {call_id!r}")
        call = calls[call_id]
        request = BY_NAME[call.dialect].parse(call.request)
        assert call.response is not None
        return dialect.body(call.response, call_id, request)

    async def _completed(self, access: Access) -> dict[str, Call]:
        """Calls of the attempt that the policy completed, by id."""
        calls = await self._store.calls(access.rollout.id, attempt_id=access.attempt_id)
        return {call.id: call for call in calls if call.spoken}

    async def _read(self, access: Access, asked: Asked) -> tuple[Mapping[str, Any], ChatRequest]:
        """The body, and the request with its whole conversation."""
        body = _json(asked.body)
        request = asked.dialect.parse(body)
        if request.previous is not None:
            request = conversation(request, await self._completed(access))
        return body, request

    async def who(self, key: str | None) -> Access:
        """Whose calls these are. Raises AccessDenied, and Fenced when the attempt has ended."""
        if not key:
            raise AccessDenied("no key came: send the rollout's key as `Authorization: Bearer KEY`")
        access = await self._store.access(key)
        if access is None:
            raise AccessDenied("the key is unknown: the key of a running rollout is wanted")
        if not access.calls_open:
            self.counts.fenced += 1
            raise Fenced(f"attempt {access.attempt_id} has ended: its key opens no more calls")
        return access

    def forget(self, attempt_id: str) -> None:
        """An attempt has ended: drop what is kept of it."""
        self._attempts.forget(attempt_id)

    async def close(self) -> None:
        """Abort what runs, and wait until it is recorded as broken."""
        works = [running.work for running in self._running.values() if running.work is not None]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        if self._upstreams is not None:
            await self._upstreams.close()

    async def _running_call(self, name: tuple[str, str], digest: str) -> Running:
        """The call in flight under this name, or a new one that has no work yet. Raises Conflict."""
        while (running := self._running.get(name)) is not None and running.abandoned:
            assert running.work is not None
            await asyncio.wait({running.work})
            self._ended(name, running, running.work)
        if running is None:
            running = self._running[name] = Running(call_id=name[1], request_hash=digest)
            self.counts.asked += 1
            return running
        if running.request_hash != digest:
            raise Conflict(f"call {name[1]!r} is running with another body: a retry repeats the body")
        self.counts.joined += 1
        return running

    def _ended(self, name: tuple[str, str], running: Running, work: asyncio.Task[Answered]) -> None:
        if self._running.get(name) is running:
            del self._running[name]
        if not work.cancelled():
            work.exception()  # seen: a failure whose listeners have all left is no news to anyone

    async def _work(self, life: Life, arrived: float) -> Answered:
        """Do it once, whoever listens."""
        attempt: Attempt | None = None
        call_id, attempt_id = life.running.call_id, life.access.attempt_id
        try:
            attempt = await self._attempts.of(life.access)
            attempt.users += 1
            async with self.hold.passing(f"call {call_id} of rollout {life.access.rollout.id}"):
                answered = await self._perform(life, attempt)
        except BaseException as error:
            self._count_failure(error)
            if isinstance(error, Fenced):
                self.forget(attempt_id)
            raise
        finally:
            if attempt is not None:
                attempt.users -= 1
        if life.replayed:
            self.counts.replayed += 1
        else:
            self.counts.completed += 1
            self.counts.quarantined += life.quarantined
            self.latencies.add(time.perf_counter() - arrived - life.engine_seconds)
        return answered

    async def _perform(self, life: Life, attempt: Attempt) -> Answered:
        prompt = self._prompt(attempt, life.request)
        life.reading = self.templates.reading(life.request, prompt.ids)
        seen = await life.admit(prompt)
        if seen is not None:
            return await life.replay(seen, attempt)
        try:
            self._check_length(prompt, life)
            async with self.admission.turn(life.access.rollout.id):
                finished = await life.generate()
            return await life.commit(finished, attempt)
        except BaseException as error:
            await life.abandon(error)
            raise

    def _grammar(self, request: ChatRequest) -> str | None:
        family, thinks = self.templates.parser(request).name, self.templates.thinks
        return grammar_of(request, self._tokenizer, family=family, thinks=thinks)

    def _prompt(self, attempt: Attempt, request: ChatRequest) -> Prompt:
        if request.prompt is not None:
            return self._given_prompt(attempt, request.prompt)
        if request.opaque is not None:  # no policy here reads anything but text
            raise unreadable(request.opaque)
        template = self.templates.of(request.messages, request.tools)
        turn = None
        if self.templates.history != "rendered":
            turn = attempt.branches.find(request.messages, request.tools)
        if turn is not None and self.templates.history == "checked":
            kept = still_written(turn, template, self._tokenizer, request.messages, request.tools)
            turn = turn if kept else None
        if turn is None:
            return first_prompt(template, self._tokenizer, request.messages, request.tools)
        return continued(
            turn,
            template,
            self._tokenizer,
            request.messages,
            tools=request.tools,
            stop_ids=self.templates.stop_ids,
        )

    def _given_prompt(self, attempt: Attempt, given: str | tuple[int, ...]) -> Prompt:
        """A prompt that the agent made itself: its own text is tokenised, its own ids are taken."""
        ids = self._tokenizer.encode(given) if isinstance(given, str) else token_ids(given)
        if not isinstance(given, str) and max(given) >= self._tokenizer.vocabulary:
            raise RequestError(
                f"`prompt` has token {max(given)}: the policy knows 0 to {self._tokenizer.vocabulary - 1}",
                field="prompt",
            )
        turn = attempt.branches.find_ids(ids) if self.templates.history != "rendered" else None
        if turn is None:
            return Prompt(ids=ids, parent_call_id=None, offset=0)
        offset = len(turn.prompt_ids) + len(turn.sampled_ids)
        return Prompt(ids=ids, parent_call_id=turn.call_id, offset=offset, root=turn.root)

    def _check_length(self, prompt: Prompt, life: Life) -> None:
        longest = min(self.config.longest_prompt, self.config.context_length - 1)
        if not 1 <= len(prompt.ids) <= longest:
            auto = life.body.get("truncation") == "auto"
            raise PromptTooLong(
                f"prompt is too long: {len(prompt.ids)} tokens > {longest} maximum, which is this policy's maximum "
                "context length less its answer: shorten the messages or raise max_prompt_tokens"
                + ("; `truncation`: 'auto' cannot be honoured, nothing is cut in silence" if auto else ""),
                field=_CONVERSATION.get(life.dialect.name, "messages"),
                code="context_length_exceeded",
            )

    def _count_failure(self, error: BaseException) -> None:
        if isinstance(error, Fenced):
            self.counts.fenced += 1
        elif isinstance(error, RequestError | Conflict):
            self.counts.refused += 1
        elif isinstance(error, TimeoutError):
            self.counts.timeouts += 1
        else:
            self.counts.broken += 1


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error


async def _with_first(first: bytes, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
