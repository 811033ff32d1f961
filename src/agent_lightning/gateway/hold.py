"""The gate between agents and weights: closed while weights change, with a limit on every wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agent_lightning.errors import EngineBusy, EngineError


class Hold:
    """Requests pass; a change closes the gate, waits for those in flight, and opens it again.

    `wait_seconds` bounds how long a request waits at a closed gate; after that it is told to come back (503).
    """

    def __init__(self, clock: Callable[[], float], *, wait_seconds: float = 60.0) -> None:
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._inside: dict[object, tuple[str, float]] = {}  # ticket -> (who, since)
        self._why: str | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._turn = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        return len(self._inside)

    @property
    def why(self) -> str | None:
        """Why the gate is closed; None while it is open."""
        return self._why

    @asynccontextmanager
    async def passing(self, who: str) -> AsyncIterator[None]:
        """Go through the gate as `who`. Raises EngineBusy when it stays closed for too long."""
        if not self._open.is_set():
            await self._wait(who)
        ticket = object()
        self._inside[ticket] = (who, self._clock())
        self._empty.clear()
        try:
            yield
        finally:
            del self._inside[ticket]
            if not self._inside:
                self._empty.set()

    async def _wait(self, who: str) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                while not self._open.is_set():
                    await self._open.wait()
        except TimeoutError as error:
            raise EngineBusy(
                f"{who} waited {self._wait_seconds:g} s because {self._why}: try again in a moment"
            ) from error

    @asynccontextmanager
    async def changing(self, why: str, *, drain_seconds: float) -> AsyncIterator[None]:
        """Close the gate, wait until everyone inside has left, and open it when the block ends.

        Raises EngineError that names the oldest call if the drain takes longer than `drain_seconds`.
        """
        async with self._turn:
            self._why = why
            self._open.clear()
            try:
                await self._drain(why, drain_seconds)
                yield
            finally:
                self._why = None
                self._open.set()

    async def _drain(self, why: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError as error:
            who, since = min(self._inside.values(), key=lambda entry: entry[1])
            raise EngineError(
                f"{why} waited {seconds:g} s for {len(self._inside)} calls in flight; the oldest is {who}, "
                f"running for {self._clock() - since:.1f} s"
            ) from error
