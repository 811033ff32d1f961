"""When a call to the training server is tried again, and after how long. Pure but for the random numbers handed in."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

RETRIED_STATUS = frozenset({429, 502, 503, 504})
BASE_SECONDS, CAP_SECONDS, FIXED_SECONDS = 0.25, 8.0, 1.0
UNREACHABLE_PATIENCE = 30.0  # seconds; long enough for a server that is restarted


class Backoff:
    """The pauses between the sends of one logical call. Full jitter: uniform between 0 and the strategy's pause."""

    def __init__(
        self,
        *,
        strategy: str,
        deadline: float,
        patience: float = UNREACHABLE_PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`deadline` is a reading of `clock`; after `patience` seconds an unreachable server is given up."""
        self._strategy, self._deadline, self._clock, self._draw = strategy, deadline, clock, draw
        self._reachable_until = min(deadline, clock() + patience)
        self._tried = 0

    def after_status(self, status: int, headers: Mapping[str, str]) -> float | None:
        """Seconds to wait before the next send, None when this answer is final."""
        if status not in RETRIED_STATUS or headers.get("x-should-retry") == "false":
            return None
        return self._pause(at_least=retry_after(headers), until=self._deadline)

    def after_lost_connection(self) -> float | None:
        return self._pause(at_least=None, until=self._reachable_until)

    def _pause(self, *, at_least: float | None, until: float) -> float | None:
        if self._strategy == "none":
            return None
        ceiling = FIXED_SECONDS if self._strategy == "fixed" else min(CAP_SECONDS, BASE_SECONDS * 2.0**self._tried)
        self._tried += 1
        pause = self._draw() * ceiling if at_least is None else at_least + self._draw() * min(ceiling, 0.25)
        return pause if self._clock() + pause < until else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks for, None when it does not say or cannot be understood."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        from email.utils import parsedate_to_datetime  # only a rare server sends a date
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
