"""A lane: one thread with one connection, which runs operations in the order they came, many to a transaction.

An operation is a function of the connection. Its future is resolved after the commit, in the loop that asked. While
the lane works on one transaction the next operations gather behind it, so the harder the load the larger the groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from agent_lightning.errors import LightningError, StoreError

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], Any]
GROUP = 256  # operations in one transaction at most: bounds how long the first one waits
LOOK_SECONDS = 0.05  # an idle lane looks this often for what other processes have written


class _Job:
    __slots__ = ("after", "error", "future", "loop", "operation", "result")

    def __init__(
        self, operation: Operation, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], after: Any
    ) -> None:
        self.operation = operation
        self.loop = loop
        self.future = future
        self.after = after
        self.result: Any = None
        self.error: BaseException | None = None


class Lane:
    """`begin` opens a group ("BEGIN IMMEDIATE" to write, "BEGIN" to read one consistent state).

    `explain` makes a StoreError of the database's errors; `committed` hears how many rows were written so far, and
    `foreign` that another connection than this one has written.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        begin: str,
        name: str,
        explain: Callable[[Exception], StoreError],
        committed: Callable[[int], None] | None = None,
        foreign: Callable[[], None] | None = None,
    ) -> None:
        self._connection = connection
        self._begin = begin
        self._explain = explain
        self._committed = committed
        self._foreign = foreign
        self._seen_version: int | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, operation: Callable[[sqlite3.Connection], T], *, after: Callable[[T], None] | None = None) -> T:
        """Run it in a transaction; returns once that is committed. `after` gets the result in the lane, before the answer.

        An operation that raises is rolled back alone. Raises what it raised; StoreError if the database failed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._closing:
            if self._closed:
                raise StoreError("the store is closed; open it again before it is used")
            self._jobs.put(_Job(operation, loop, future, after))
        return await future

    async def close(self) -> None:
        """Finish what was asked before, then close the connection."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        last = False
        self._look()
        while not last:
            group, last = self._gather()
            if group:
                self._transact(group)
                _answer(group)
            self._look()
        self._connection.close()

    def _look(self) -> None:
        """SQLite counts the commits of other connections; what it cannot count now, the next operation will tell."""
        if self._foreign is None:
            return
        with contextlib.suppress(sqlite3.Error):
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            if self._seen_version not in (None, version):
                self._foreign()
            self._seen_version = version

    def _gather(self) -> tuple[list[_Job], bool]:
        """Everything that waits; nothing when it is time to look around; True with it when the lane closes."""
        group: list[_Job] = []
        try:
            job = self._jobs.get(timeout=None if self._foreign is None else LOOK_SECONDS)
        except queue.Empty:
            return group, False
        while job is not None:
            if not job.future.cancelled():
                group.append(job)
            if len(group) == GROUP:
                return group, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _transact(self, group: list[_Job]) -> None:
        """One transaction for all; if one of them fails halfway, each runs again in its own."""
        if not self._together(group):
            for job in group:
                job.error = None
                self._together([job])
        for job in group:
            if job.after is not None and job.error is None:
                job.after(job.result)

    def _together(self, group: list[_Job]) -> bool:
        """False when nothing was kept because one of several had written before it failed."""
        connection = self._connection
        try:
            connection.execute(self._begin)
            for job in group:
                before = connection.total_changes
                self._try(job)
                if job.error is not None and (connection.total_changes != before or not connection.in_transaction):
                    self._roll_back()
                    return len(group) == 1
            connection.execute("COMMIT")
            if self._committed is not None:
                self._committed(connection.total_changes)
        except sqlite3.Error as error:
            self._give_up(group, error)
        return True

    def _try(self, job: _Job) -> None:
        try:
            job.result = job.operation(self._connection)
        except LightningError as error:
            job.error = error
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            job.error = self._explain(error)
            job.error.__cause__ = error
        except Exception as error:  # a mistake of ours: the one who asked sees it, the lane goes on
            job.error = error

    def _give_up(self, group: list[_Job], error: sqlite3.Error) -> None:
        """The transaction could not be opened or committed: nothing of this group was kept."""
        for job in group:
            if job.error is None:
                job.error = self._explain(error)
                job.error.__cause__ = error
        self._roll_back()

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back itself, or the next BEGIN fails and says so
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _answer(group: list[_Job]) -> None:
    """Wake each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in group:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, jobs)
        except RuntimeError:  # that loop has closed: nobody waits there
            continue


def _resolve(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


class Signal:
    """Wakes waiters of any loop or thread. Take `seen` before looking, wait with it after: no wake-up is lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self.seen = 0

    def notify(self) -> None:
        with self._lock:
            self.seen += 1
            waiters, self._waiters = self._waiters, set()
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # that loop has closed
                continue

    async def wait(self, seen: int, seconds: float) -> bool:
        """True as soon as it was notified after `seen`; False when the time is up."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        entry = (loop, future)
        with self._lock:
            if self.seen != seen:
                return True
            self._waiters.add(entry)
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await future
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.discard(entry)
        return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
