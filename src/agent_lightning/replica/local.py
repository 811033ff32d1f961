"""Engine and learner in this process, on one thread of their own: for tests and tiny models."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import import_module
from pathlib import Path

from agent_lightning.errors import EngineError, LearnerError, LightningError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import Batch, UpdateReport
from agent_lightning.replica.frames import Message
from agent_lightning.replica.line import Line
from agent_lightning.replica.pool import LOAD_SECONDS, TORCH_HOST, log
from agent_lightning.replica.replica import ReplicaConfig
from agent_lightning.replica.work import work

STOP_SECONDS = 10.0


class LocalReplica:
    """Implements Replicas. There is nothing to restart: if the thread fails, every later call says why."""

    def __init__(
        self, config: ReplicaConfig, *, host: str = TORCH_HOST, says: Callable[[str], None] = log.info
    ) -> None:
        self._config = config
        self._host = host
        self._says = says
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._line: Line | None = None
        self._ready: asyncio.Future[None] | None = None
        self.version = 0  # of the learner's weights

    async def start(self) -> None:
        """Load the model. Raises ModelError and what else hinders it."""
        assert self._thread is None, "start is called once"
        loop = asyncio.get_running_loop()
        self._line = Line(self._inbox.put)
        self._ready = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="replica", daemon=True)
        self._thread.start()
        await self._ready

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        async with contextlib.aclosing(self._open_line().generate(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def abort(self, request_id: str) -> None:
        if self._open_line().runs(request_id):
            self._open_line().abort(request_id)

    async def publish(self, adapter: Adapter) -> None:
        await self._open_line().ask("publish", adapter=adapter)

    async def load(self) -> EngineLoad:
        load = await self._open_line().fresh_load(LOAD_SECONDS)
        return load if load is not None else await self._open_line().ask("load")

    async def update(self, batch: Batch, *, rate: float, version: int) -> UpdateReport:
        if version != self.version + 1:
            raise LearnerError(
                f"update {version} came while the weights are at {self.version}: {self.version + 1} is next"
            )
        report, _ = await self._open_line().ask("update", batch=batch, rate=rate, version=version)
        self.version = report.version
        return report

    async def serve(self) -> int:
        return await self._open_line().ask("serve")

    async def save(self, folder: Path) -> None:
        await self._open_line().ask("save", folder=str(folder))

    async def restore(self, folder: Path) -> int:
        self.version = await self._open_line().ask("restore", folder=str(folder))
        return self.version

    async def close(self) -> None:
        """End the thread. May be called again."""
        if self._thread is None or self._line is None:
            return
        self._line.cut("the replica is closed")
        self._inbox.put({"kind": "stop"})
        await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    def _open_line(self) -> Line:
        assert self._line is not None, "start was not called"
        return self._line

    # What follows runs on the replica's thread.

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        def tell(message: Message) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody listens any more
                loop.call_soon_threadsafe(self._hear, message)

        try:
            module, name = self._host.split(":")
            kind = getattr(import_module(module), name)
            shared = kind.prepare(self._config, tell)
            host = kind(self._config, shared, rank=0, count=1, meeting=None, tell=tell, beat=lambda: None)
            tell({"kind": "ready"})
            work(host, self._receive, tell)
        except Exception as error:  # of a model's code: nothing can be computed on this thread any more
            log.exception("The replica's thread ended")
            known = error if isinstance(error, LightningError) else EngineError(f"{type(error).__name__}: {error}")
            tell({"kind": "unable", "error": known})

    def _receive(self, seconds: float) -> Sequence[Message]:
        messages: list[Message] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._inbox.get(block=seconds > 0, timeout=seconds or None))
            while True:
                messages.append(self._inbox.get_nowait())
        return messages

    def _hear(self, message: Message) -> None:
        """Back in the event loop."""
        assert self._line is not None and self._ready is not None
        if message["kind"] == "says":
            self._says(message["text"])
        elif message["kind"] == "ready" and not self._ready.done():
            self._ready.set_result(None)
        elif message["kind"] == "unable":
            self._line.cut(f"the replica ended: {message['error']}")
            if not self._ready.done():
                self._ready.set_exception(message["error"])
        self._line.hear(message)
