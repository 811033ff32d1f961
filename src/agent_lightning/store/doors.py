"""What rollout keys open, remembered for the calls that follow: the gateway asks at every one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from agent_lightning.records import Attempt, AttemptStatus, Claim, Rollout
from agent_lightning.store.keys import attempt_named_in, digest, opens
from agent_lightning.store.rewards import rewards_open
from agent_lightning.store.store import Access

Door = tuple[Attempt, Rollout, str]  # and the hash of its key
_KEPT = 4096


class Doors:
    """Forgetting is part of the commit that changes an attempt; admission and rewards check the database anyway."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doors: OrderedDict[str, Door] = OrderedDict()
        self._changes = 0

    async def look(
        self,
        key: str,
        read: Callable[[str], Awaitable[Door | None]],
        clock: Callable[[], float],
        live_seconds: float,
    ) -> Access | None:
        attempt_id = attempt_named_in(key)
        if attempt_id is None:
            return None
        door = self._doors.get(attempt_id)
        if door is None:
            changes = self._changes
            door = await read(attempt_id)
            if door is not None:
                self._keep(attempt_id, door, changes)
        return _access(key, door, clock(), live_seconds)

    def _keep(self, attempt_id: str, door: Door, changes: int) -> None:
        """Unless something changed while it was read."""
        with self._lock:
            if self._changes == changes:
                self._put(attempt_id, door)

    def _put(self, attempt_id: str, door: Door) -> None:
        self._doors[attempt_id] = door
        if len(self._doors) > _KEPT:
            self._doors.popitem(last=False)

    def opened(self, claim: Claim | None) -> None:
        """A key was given out: whoever got it will be here soon."""
        if claim is not None:
            with self._lock:
                self._changes += 1
                self._put(claim.attempt.id, (claim.attempt, claim.rollout, digest(claim.key)))

    def forget(self, attempt_id: str) -> None:
        with self._lock:
            self._changes += 1
            self._doors.pop(attempt_id, None)

    def forget_all(self) -> None:
        with self._lock:
            self._changes += 1
            self._doors.clear()


def _access(key: str, door: Door | None, now: float, live_seconds: float) -> Access | None:
    if door is None or not opens(key, door[2]):
        return None
    attempt, rollout, _ = door
    return Access(
        rollout=rollout,
        attempt_id=attempt.id,
        calls_open=attempt.status is AttemptStatus.RUNNING,
        rewards_open=rewards_open(rollout.mode, attempt.ended_at, rollout.frozen_at, now, live_seconds),
    )
