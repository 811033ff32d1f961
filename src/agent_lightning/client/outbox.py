"""The background thread that delivers: spans in batches, lossy and counted; messages one by one, until acknowledged.

Putting something in never blocks and never raises. The thread starts with the first item, ends with the process, and
is begun anew in a forked child, which does not send what its parent had queued.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent_lightning import errors
from agent_lightning.client import profiling, semconv
from agent_lightning.client.link import Link
from agent_lightning.client.scope import Scope

CAPACITY = 10_000  # items; a span that finds the outbox full is lost
BATCH = 512  # spans of one upload
LINGER_SECONDS = 0.2  # how long a batch waits for company
SOON_SECONDS = 0.05  # how long the thread stays up after an upload that was no batch: waking it costs the agent more
FAST, SLOW = 150.0, 100.0  # spans a second above which "auto" batches, and below which it stops
MESSAGE_PATIENCE = 60.0  # seconds for which a message is tried
EXIT_SECONDS = 5.0  # given to what is still queued when the process ends
_log = logging.getLogger("agent_lightning")

_Queued = tuple[Scope, Callable[[], dict[str, Any]]]


@dataclass(slots=True, kw_only=True)
class Message:
    """Something that the server must acknowledge: a reward, the end of a live attempt."""

    kind: str  # names it in the count of what was lost
    endpoint: str
    api_key: str | None
    send: Callable[[Link], None]
    born: float = field(default_factory=time.monotonic)


class Tempo:
    """Whether uploads are batched: as told, or by the rate of spans, with hysteresis."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since, self._arrived = clock, clock(), 0
        self.batching = False

    def arrived(self, mode: bool | str) -> None:
        if isinstance(mode, bool):
            self.batching = mode
            return
        self._arrived += 1
        passed = self._clock() - self._since
        if passed < 1.0:
            return
        rate = self._arrived / passed
        self.batching = rate > FAST or (self.batching and rate >= SLOW)
        self._since, self._arrived = self._clock(), 0


class Outbox:
    def __init__(self) -> None:
        self._lost: dict[str, int] = {}
        self._reset()

    def put_span(self, scope: Scope, make: Callable[[], dict[str, Any]]) -> None:
        """Queue what `make` will say; it is called in the background, or here where text is to be redacted first."""
        if scope.config.redact is not None:
            span = make()
            make = lambda: span  # noqa: E731
        with self._changed:
            if len(self._spans) >= CAPACITY:
                self._lost["span"] = self._lost.get("span", 0) + 1
                scope.record.lose("span")
                return
            self._tempo.arrived(scope.config.async_data_upload)
            self._spans.append((scope, make))
            waiting = len(self._spans)
            # Waking a thread costs more than all the rest of this: one that lingers looks by itself.
            if waiting == BATCH or (waiting == 1 and not self._lingers):
                self._wake()

    def put_message(self, message: Message) -> None:
        with self._changed:
            if len(self._messages) >= CAPACITY:
                self._lost[message.kind] = self._lost.get(message.kind, 0) + 1
                return
            self._messages.append(message)
            self._wake()

    def lose(self, kind: str, by: int = 1) -> None:
        with self._changed:
            self._lost[kind] = self._lost.get(kind, 0) + by

    def lost(self) -> dict[str, int]:
        """What could not be delivered since the process began, by kind."""
        with self._changed:
            return dict(self._lost)

    def flush(self, timeout: float = EXIT_SECONDS) -> bool:
        """Wait until everything is delivered or given up; False when the time ran out first."""
        until = time.monotonic() + timeout
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            while self._messages or self._spans or self._busy:
                if (left := until - time.monotonic()) <= 0:
                    return False
                self._changed.wait(min(left, 0.05))
            self._hurry = False
        return True

    def close(self) -> None:
        """Close idle connections; the next item opens its own."""
        for link in tuple(self._links.values()):
            link.close()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._links: dict[tuple[str, str | None], Link] = {}
        self._spans: deque[_Queued] = deque()
        self._messages: deque[Message] = deque()
        self._tempo = Tempo()
        self._busy = False
        self._hurry = False
        self._lingers = False  # the thread looks again by itself, and soon
        self._thread: threading.Thread | None = None

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            from agent_lightning.client.propagation import OwnThread

            thread = OwnThread(target=self._run, name="agent-lightning-outbox", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending; the exit flush says what is lost
                return
            self._thread = thread
        self._changed.notify_all()

    def _run(self) -> None:
        """Take what is queued, deliver it, wait for more. Ends with the process."""
        while True:
            with self._changed:
                self._await_items()
                message = self._messages[0] if self._messages else None
                spans = [self._spans.popleft() for _ in range(min(BATCH, len(self._spans)))] if not message else []
                self._busy = True
            if message is not None:
                pause = self._deliver(message)
            else:
                pause = 0.0
                self._upload(spans)
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if pause:
                    self._changed.wait(pause)

    def _await_items(self) -> None:
        """Wait for company, and if there is nothing at all, to be woken. Called under the lock."""
        if not self._hurry and not self._messages and len(self._spans) < BATCH:
            self._lingers = True
            self._changed.wait(LINGER_SECONDS if self._tempo.batching else SOON_SECONDS)
            self._lingers = False
        while not self._messages and not self._spans:
            self._changed.wait()

    def _deliver(self, message: Message) -> float:
        """Send the first message; it leaves the queue when it is acknowledged, refused or too old."""
        try:
            message.send(self._link(message.endpoint, message.api_key))
        except errors.ServerUnreachable as error:
            if time.monotonic() - message.born < MESSAGE_PATIENCE:
                return 0.5
            self._give_up(error, message.kind)
        except Exception as error:  # refused by the server, or a value of the agent's that cannot be written
            self._give_up(error, message.kind)
        with self._changed:
            self._messages.popleft()
        return 0.0

    def _upload(self, spans: list[_Queued]) -> None:
        doors: dict[tuple[str, str | None], list[_Queued]] = {}
        for scope, make in spans:
            # The client's own key, where there is one: a rollout's may end before its last span has left.
            doors.setdefault((scope.config.endpoint, scope.config.api_key or scope.key), []).append((scope, make))
        for (endpoint, key), group in doors.items():
            began = time.perf_counter()
            try:
                body = semconv.export([make() for _, make in group], self.lost())
                profiling.spent("serialising", time.perf_counter() - began)
                self._link(endpoint, None).traces(body, key=key)
            except Exception as error:  # the thread outlives whatever one upload meets
                self._give_up(error, "span", len(group))
                for scope, _ in group:
                    scope.record.lose("span")
            profiling.spent("upload", time.perf_counter() - began)

    def _give_up(self, error: Exception, kind: str, by: int = 1) -> None:
        """Count what is lost; log the first reason of each kind."""
        with self._changed:
            first = kind not in self._lost
            self._lost[kind] = self._lost.get(kind, 0) + by
        if first:
            _log.warning("agent-lightning could not deliver a %s, it is counted as lost: %s", kind, error)

    def _link(self, endpoint: str, api_key: str | None) -> Link:
        if (endpoint, api_key) not in self._links:
            self._links[endpoint, api_key] = Link(endpoint, api_key)
        return self._links[endpoint, api_key]


OUTBOX = Outbox()


def _at_exit() -> None:
    OUTBOX.flush(EXIT_SECONDS)
    OUTBOX.close()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=OUTBOX._reset)
