"""The near end of a line to a host: running requests and open questions, whatever carries the messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from itertools import count
from typing import Any

from agent_lightning.errors import EngineBusy, EngineError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.replica.frames import Message
from agent_lightning.replica.replica import ReplicaLost


class Line:
    """Lives in the event loop. `send` takes a message to the host without blocking; `hear` takes what comes back."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._streams: dict[str, asyncio.Queue[Piece | Exception]] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count(1)
        self._cut: str | None = None
        self.load: EngineLoad | None = None  # as last heard
        self.heard_at = asyncio.get_running_loop().time()  # loop seconds
        self.waiting = False  # the host waits for its peers inside a collective

    @property
    def in_flight(self) -> int:
        return len(self._streams)

    def runs(self, request_id: str) -> bool:
        return request_id in self._streams

    def hear(self, message: Message) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        kind = message["kind"]
        self.waiting = kind == "waiting"
        if kind == "pieces":
            for request_id, piece in message["pieces"]:
                self._hand_over(request_id, piece)
        elif kind == "fault":
            self._hand_over(message["id"], message["error"])
        elif kind in ("answer", "refusal"):
            self._settle(message)
        elif kind == "beat" and message.get("load") is not None:
            self.load = message["load"]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece, None]:
        """See Engine.generate. EngineBusy when the line is cut meanwhile."""
        if self._cut is not None:
            raise EngineBusy(self._cut)
        if request.id in self._streams:
            raise EngineError(
                f"request {request.id!r} is running already: every running request needs an id of its own"
            )
        stream = self._streams[request.id] = asyncio.Queue()
        self._send({"kind": "generate", "request": request})
        ended = False
        try:
            while not ended:
                arrival = await stream.get()
                ended = isinstance(arrival, Exception) or arrival.finish_reason is not None
                if isinstance(arrival, Exception):
                    raise arrival
                yield arrival
        finally:
            del self._streams[request.id]
            if not ended:
                self.abort(request.id)

    def abort(self, request_id: str) -> None:
        if self._cut is None:
            self._send({"kind": "abort", "id": request_id})

    async def ask(self, kind: str, **fields: Any) -> Any:
        """Send a question and wait for its answer. Raises what the host refused with, ReplicaLost when cut."""
        if self._cut is not None:
            raise ReplicaLost(self._cut)
        number = next(self._numbers)
        future = self._questions[number] = asyncio.get_running_loop().create_future()
        self._send({"kind": kind, "number": number, **fields})
        try:
            return await future
        finally:
            self._questions.pop(number, None)

    async def fresh_load(self, seconds: float) -> EngineLoad | None:
        """The host's load now, or as last heard when it is too busy to answer in time."""
        with contextlib.suppress(TimeoutError, ReplicaLost):
            async with asyncio.timeout(seconds):
                self.load = await self.ask("load")
        return self.load

    def cut(self, reason: str) -> None:
        """The host is gone: requests fail and may be tried again, questions fail with ReplicaLost."""
        if self._cut is not None:
            return
        self._cut = reason
        for stream in self._streams.values():
            stream.put_nowait(EngineBusy(reason))
        for future in self._questions.values():
            if not future.done():
                future.set_exception(ReplicaLost(reason))

    def _hand_over(self, request_id: str, arrival: Piece | Exception) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:  # else the reader left and the abort is on its way
            stream.put_nowait(arrival)

    def _settle(self, message: Message) -> None:
        future = self._questions.get(message["number"])
        if future is None or future.done():
            return
        if message["kind"] == "answer":
            future.set_result(message["value"])
        else:
            future.set_exception(message["error"])
