"""The async `Engine` over a `TorchCore` that computes in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from agent_lightning.errors import EngineBusy, EngineError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.models.adapter import Adapter

T = TypeVar("T")


class TorchEngine:
    """The core is touched by the engine's thread alone; everything else reaches it between two steps."""

    def __init__(self, core: TorchCore) -> None:
        self._core = core
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._open: dict[str, _Mailbox] = {}  # read by the thread, changed by it alone
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        mailbox = _Mailbox()
        ended = False
        try:
            await self.between_steps(lambda: self._admit(request, mailbox))
            while not ended:
                piece = await mailbox.take()
                ended = piece.finish_reason is not None
                yield piece
        finally:
            if not ended:
                self._post(lambda: self._drop(request.id, mailbox))

    async def abort(self, request_id: str) -> None:
        await self.between_steps(lambda: self._core.abort(request_id))

    async def publish(self, adapter: Adapter) -> None:
        await self.between_steps(lambda: self._core.publish(adapter))

    async def load(self) -> EngineLoad:
        return await self.between_steps(self._core.load)

    async def between_steps(self, job: Callable[[], T]) -> T:
        """Run `job` in the engine's thread, where it may use the core and its model; gives or raises what it does."""
        return await asyncio.wrap_future(self._post(job))

    async def close(self) -> None:
        """End every running request with an EngineError and stop the thread. Closing again does nothing."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _post(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._wake:
            if self._closed:
                future.set_exception(EngineError("the engine is closed"))
                return future
            self._jobs.append((job, future))
            self._wake.notify()
        return future

    # -- what runs in the thread

    def _run(self) -> None:
        """Take jobs between steps, step while there is work, sleep otherwise; ends when the engine is closed."""
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs or self._closed or not self._core.idle)
                jobs, closed = list(self._jobs), self._closed
                self._jobs.clear()
            for job, future in jobs:
                _fulfil(job, future)
            if closed:
                self._fail(EngineError("the engine was closed while the request ran"))
                return
            if not self._core.idle:
                self._step()

    def _step(self) -> None:
        try:
            pieces = self._core.step()
        except Exception as error:  # a model's own code: whatever it raises ends the requests, not the engine
            self._core.reset()
            self._fail(error if isinstance(error, EngineError) else EngineError(f"a decode step failed: {error!r}"))
            return
        for request_id, piece in pieces:
            mailbox = self._open.get(request_id)
            if mailbox is not None:
                mailbox.put(piece)
            if isinstance(piece, EngineError) or piece.finish_reason is not None:
                self._open.pop(request_id, None)

    def _admit(self, request: GenerateRequest, mailbox: _Mailbox) -> None:
        if request.id in self._open:
            raise EngineBusy(f"request {request.id} is still running: abort it or use another id")
        self._core.submit(request)
        self._open[request.id] = mailbox

    def _drop(self, request_id: str, mailbox: _Mailbox) -> None:
        """The reader went away; a later request of the same id is not its business."""
        if self._open.get(request_id) is mailbox:
            self._core.abort(request_id)

    def _fail(self, error: EngineError) -> None:
        for mailbox in self._open.values():
            mailbox.put(error)
        self._open.clear()


class _Mailbox:
    """One request's way from the engine's thread to its event loop. Created on that loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece | EngineError] = asyncio.Queue()

    def put(self, item: Piece | EngineError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            return

    async def take(self) -> Piece:
        item = await self._queue.get()
        if isinstance(item, EngineError):
            raise item
        return item


def _fulfil(job: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except Exception as error:  # handed to whoever posted the job
        future.set_exception(error)
