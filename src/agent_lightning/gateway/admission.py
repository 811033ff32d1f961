"""Who speaks to the engine next: as many calls as it can sample at once, and no rollout before its turn.

A free place goes to the rollout with the fewest calls inside, among equals to the one that waits longest for a turn;
its own calls go in order. So an agent that asks a thousand things at once slows itself, not the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agent_lightning.errors import EngineBusy


@dataclass(slots=True)
class _Rollout:
    inside: int = 0
    served: int = 0  # number of the newest place that it got
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    @property
    def next(self) -> asyncio.Future[None] | None:
        """Whose caller was cancelled is passed over: it goes as soon as it runs."""
        return next((place for place in self.waiting if not place.done()), None)


class Admission:
    def __init__(self, places: int, waiting: int) -> None:
        """`places` calls inside at once; at most `waiting` before the door."""
        self.places, self.most_waiting = places, waiting
        self.inside = 0
        self.waiting = 0
        self._served = 0
        self._rollouts: dict[str, _Rollout] = {}

    @asynccontextmanager
    async def turn(self, rollout_id: str) -> AsyncIterator[None]:
        """One place, when its turn has come. Raises EngineBusy when too many wait already."""
        rollout = self._rollouts.setdefault(rollout_id, _Rollout())
        if self.inside < self.places:
            self._enter(rollout)
        else:
            await self._wait(rollout_id, rollout)
        try:
            yield
        finally:
            self._leave(rollout_id, rollout)

    async def _wait(self, rollout_id: str, rollout: _Rollout) -> None:
        if self.waiting >= self.most_waiting:
            self._forget(rollout_id, rollout)
            raise EngineBusy(
                f"{self.waiting} calls wait for the engine, which samples {self.places} at once: try again in a moment, "
                "and add replicas or lower the number of agents if this lasts"
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rollout.waiting.append(place)
        self.waiting += 1
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # the place came together with the end
                self._leave(rollout_id, rollout)
            else:
                rollout.waiting.remove(place)
                self.waiting -= 1
                self._forget(rollout_id, rollout)
            raise

    def _enter(self, rollout: _Rollout) -> None:
        self._served += 1
        self.inside, rollout.inside, rollout.served = self.inside + 1, rollout.inside + 1, self._served

    def _leave(self, rollout_id: str, rollout: _Rollout) -> None:
        self.inside, rollout.inside = self.inside - 1, rollout.inside - 1
        self._forget(rollout_id, rollout)
        wait = [other for other in self._rollouts.values() if other.next is not None]
        if wait:
            chosen = min(wait, key=lambda other: (other.inside, other.served))
            place = chosen.next
            assert place is not None
            chosen.waiting.remove(place)
            self.waiting -= 1
            self._enter(chosen)
            place.set_result(None)

    def _forget(self, rollout_id: str, rollout: _Rollout) -> None:
        if not rollout.inside and not rollout.waiting:
            del self._rollouts[rollout_id]
