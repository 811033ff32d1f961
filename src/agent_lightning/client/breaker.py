"""Keeps live traffic away from a training server that fails, and finds out by itself when it is well again.

Queued rollouts know no breaker: they have no other model to go to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FAILURES = 3  # in a row, until the breaker opens
OPEN_SECONDS = 30.0  # then one call or rollout is let through, and decides


class Breaker:
    """Of one server. Closed at first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._failures = 0
        self._closed_again_at: float | None = None  # None: closed

    def allows(self) -> bool:
        """Whether the server may be asked. While open, True once every OPEN_SECONDS."""
        if self._closed_again_at is None:
            return True
        with self._lock:
            if self._closed_again_at is None:
                return True
            now = self._clock()
            if now < self._closed_again_at:
                return False
            self._closed_again_at = now + OPEN_SECONDS  # the others wait for what this one finds
            return True

    def rests(self) -> bool:
        """Whether `allows` would say no."""
        until = self._closed_again_at
        return until is not None and self._clock() < until

    def succeeded(self) -> None:
        if self._failures or self._closed_again_at is not None:
            with self._lock:
                self._failures, self._closed_again_at = 0, None

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES:
                self._closed_again_at = self._clock() + OPEN_SECONDS

    def open(self) -> bool:
        """Open at once, after something that says enough; False when it was open already."""
        with self._lock:
            before, self._closed_again_at = self._closed_again_at, self._clock() + OPEN_SECONDS
            self._failures = FAILURES
            return before is None


_breakers: dict[tuple[str, str], Breaker] = {}


def breaker_of(endpoint: str, what: str) -> Breaker:
    """One a server and a thing it does: begin a rollout ("rollouts"), or serve a call ("calls")."""
    key = (endpoint, what)
    found = _breakers.get(key)
    return _breakers.setdefault(key, Breaker()) if found is None else found


def forget_all() -> None:
    """Every server is taken for well again."""
    _breakers.clear()
