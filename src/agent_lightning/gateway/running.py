"""A logical call in flight: one piece of work, any number of listeners.

A retry that arrives while the first request still runs listens to the same work. When the last listener has left, the
work is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.errors import EngineBusy

Head = tuple[int, Mapping[str, str]]  # status and headers of a relayed answer
_CLOSING = "the gateway is closing: try again in a moment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A committed answer."""

    body: Mapping[str, Any]  # with token ids
    version: int  # of the policy, that began it
    rest: tuple[bytes, ...] = ()  # events of a stream that were held until the commit


@dataclass(slots=True, kw_only=True)
class Running:
    call_id: str
    request_hash: str
    events: list[bytes] = field(default_factory=list)  # of a stream, so far
    version: int | None = None  # known from the first token on
    head: Head | None = None  # of a relayed answer, known with its first event
    committing: bool = False  # the answer is being written down: too late to cancel
    abandoned: bool = False  # cancelled; a retry waits for its end and begins anew
    work: asyncio.Task[Answered] | None = None
    _listeners: set[asyncio.Event] = field(default_factory=set)

    def push(self, event: bytes) -> None:
        if event:
            self._tell(event)

    def begin(self, head: Head) -> None:
        """A relayed answer begins: its first event is empty and says that the head is known."""
        self.head = head
        self._tell(b"")

    async def answer(self) -> Answered:
        """The committed answer. Raises what the work raised."""
        assert self.work is not None
        listener = asyncio.Event()
        self._listeners.add(listener)
        try:
            return await asyncio.shield(self.work)
        except asyncio.CancelledError:
            if self.work.cancelled():
                raise EngineBusy(_CLOSING) from None
            raise
        finally:
            self._leave(listener)

    async def stream(self) -> AsyncIterator[bytes]:
        """All events from the first one on. Raises what the work raised, behind the events that came before."""
        assert self.work is not None
        listener = asyncio.Event()
        self._listeners.add(listener)
        wake = lambda _: listener.set()  # noqa: E731
        self.work.add_done_callback(wake)
        sent = 0
        try:
            while True:
                while sent < len(self.events):
                    sent += 1
                    yield self.events[sent - 1]
                if self.work.done():
                    break
                await listener.wait()
                listener.clear()
            if self.work.cancelled():
                raise EngineBusy(_CLOSING)
            for event in self.work.result().rest:
                if event:
                    yield event
        finally:
            self.work.remove_done_callback(wake)
            self._leave(listener)

    def _tell(self, event: bytes) -> None:
        self.events.append(event)
        for listener in self._listeners:
            listener.set()

    def _leave(self, listener: asyncio.Event) -> None:
        self._listeners.discard(listener)
        if self._listeners or self.committing or self.work is None or self.work.done():
            return
        self.abandoned = True
        self.work.cancel()
