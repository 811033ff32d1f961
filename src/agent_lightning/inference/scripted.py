"""An engine that answers from a script: for tests, load tests and dry runs of everything around the model."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeAlias

from agent_lightning.errors import EngineError, PromptTooLong, RequestError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import FinishReason, nats, token_ids

Script: TypeAlias = "Callable[[array[int], GenerateRequest], Iterable[int]] | Sequence[Sequence[int]]"


class ScriptedEngine:
    """Answers one token a piece.

    `script` is a callable (prompt ids, request) -> ids, or a list of answers that requests get in order of arrival.
    An answer that ends without a stop id ends with "stop" all the same: the script is the model, and a grammar its
    business.
    """

    def __init__(
        self,
        script: Script,
        *,
        logprob: float = -0.5,  # nats of every token
        token_seconds: float = 0.0,  # wait before each token
        capacity: int = 32,
        context_length: int = 4096,
        policies: Iterable[str] = (),  # served at version 0 without a `publish`
    ) -> None:
        self._script = script
        self._logprob, self._token_seconds = logprob, token_seconds
        self._context_length, self._capacity = context_length, capacity
        self._slots = asyncio.Semaphore(capacity)
        self._newest: dict[str, int] = dict.fromkeys(policies, 0)
        self._published: set[tuple[str, int]] = {(policy, 0) for policy in self._newest}
        self._aborts: dict[str, asyncio.Event] = {}
        self._closed = False
        self._started = self._tokens = self._running = 0
        self._began = time.monotonic()
        self.requests: list[GenerateRequest] = []  # all that came, in order
        self.published: list[Adapter] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        self._check(request)
        answer = array("i", self._answer(request))
        aborted = self._aborts[request.id] = asyncio.Event()
        try:
            async with self._slots:
                self._running += 1
                try:
                    async for piece in self._speak(request, answer, aborted):
                        yield piece
                finally:
                    self._running -= 1
        finally:
            del self._aborts[request.id]

    async def _speak(
        self, request: GenerateRequest, answer: array[int], aborted: asyncio.Event
    ) -> AsyncIterator[Piece]:
        version = self._newest[request.policy] if request.version is None else request.version
        room = min(request.sampling.max_new_tokens, self._context_length - len(request.prompt_ids))
        if not answer:
            yield Piece(version=version, finish_reason="stop")
            return
        for index, token in enumerate(answer, start=1):
            await self._wait(aborted)
            if aborted.is_set() or self._closed:
                yield Piece(version=version, finish_reason="aborted")
                return
            reason: FinishReason | None = None
            if token in request.sampling.stop_ids or index == len(answer):
                reason = "stop"
            if reason is None and index >= room:
                reason = "length"
            self._tokens += 1
            alternatives = (((token, self._logprob),),) if request.sampling.top_logprobs else ()
            yield Piece(
                ids=token_ids((token,)), logprobs=nats((self._logprob,)), version=version, finish_reason=reason,
                top=alternatives,
            )  # fmt: skip
            if reason is not None:
                return

    async def abort(self, request_id: str) -> None:
        if event := self._aborts.get(request_id):
            event.set()

    async def publish(self, adapter: Adapter) -> None:
        self.published.append(adapter)
        self._published.add((adapter.policy, adapter.version))
        self._newest[adapter.policy] = adapter.version

    async def load(self) -> EngineLoad:
        passed = time.monotonic() - self._began
        return EngineLoad(
            running=self._running,
            waiting=len(self._aborts) - self._running,
            capacity=self._capacity,
            tokens_per_second=self._tokens / max(passed, 1e-3),
            busy_seconds=passed if self._running else 0.0,
            tokens=self._tokens,
            context_length=self._context_length,
        )

    async def close(self) -> None:
        self._closed = True
        for event in self._aborts.values():
            event.set()

    async def _wait(self, aborted: asyncio.Event) -> None:
        """The token's time passes, or the request is aborted."""
        if not self._token_seconds:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(self._token_seconds):
                await aborted.wait()
        except TimeoutError:
            return

    def _check(self, request: GenerateRequest) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
        if request.id in self._aborts:
            raise EngineError(f"request {request.id} is already running")
        if not request.prompt_ids:
            raise RequestError("the prompt has no tokens: at least one is wanted", field="prompt")
        if len(request.prompt_ids) >= self._context_length:
            raise PromptTooLong(
                f"the prompt has {len(request.prompt_ids)} tokens and the context is {self._context_length}: shorten it",
                code="context_length_exceeded",
            )
        version = self._newest.get(request.policy) if request.version is None else request.version
        if (request.policy, version) not in self._published:
            raise EngineError(
                f"policy {request.policy!r} version {request.version} was asked for; published are "
                f"{sorted(self._published)}"
            )

    def _answer(self, request: GenerateRequest) -> Iterable[int]:
        self.requests.append(request)
        if callable(self._script):
            return self._script(request.prompt_ids, request)
        if self._started >= len(self._script):
            raise EngineError(f"the script has {len(self._script)} answers and request {request.id} wants one more")
        self._started += 1
        return self._script[self._started - 1]
