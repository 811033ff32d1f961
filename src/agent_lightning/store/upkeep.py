"""Looking after a store from another process than the one that serves it: one connection that writes now and then."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from agent_lightning.errors import RunInUse, StoreError
from agent_lightning.store import opening, training

T = TypeVar("T")
PAGES = 256  # given back at once beside a server that writes
PAUSE = 0.01  # seconds between two writes beside a server


class Upkeep:
    """Close it, or use it in `with`. `gone` knows holders that are dead before their lease has run out.

    `held` tells who works with the store; while somebody does, an older schema is not touched. Raises StoreError when
    the file is missing, foreign or newer, RunInUse for an older one that is held.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        gone: Callable[[str], bool] = lambda holder: False,
    ) -> None:
        if not path.is_file():
            raise StoreError(f"{path} does not exist: the run has no store yet")
        self.path, self._clock, self._gone = path, clock, gone
        self._db = opening.connect(str(path), "process")
        try:
            if opening.is_older(str(path), self._db):
                self.refuse_if_held("its schema is older than this version's")
                opening.bring_forward(str(path), self._db)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def held(self) -> Mapping[str, Any] | None:
        """The run that a living process holds, None when there is none."""
        now = self._clock()
        for run in self.read(training.runs):
            if run["holder"] is not None and run["lease_until"] >= now and not self._gone(run["holder"]):
                return run
        return None

    def refuse_if_held(self, why: str) -> None:
        """Raises RunInUse."""
        run = self.held()
        if run is not None:
            until = datetime.fromtimestamp(run["lease_until"], UTC).isoformat(sep=" ", timespec="seconds")
            raise RunInUse(
                f"run {run['id']!r} is held by {run['holder']} until {until}, and {why}: stop it (it goes on with "
                "--resume), then do this again"
            )

    def zero_what_is_deleted(self) -> None:
        self.read(lambda db: db.execute("PRAGMA secure_delete = ON").fetchall())

    def read(self, operation: Callable[..., T], *given: Any) -> T:
        try:
            return operation(self._db, *given)
        except sqlite3.Error as error:
            raise opening.explain(str(self.path), error) from error

    def write(self, operation: Callable[..., T], *given: Any) -> T:
        """In a transaction of its own."""
        with self._transaction():
            return operation(self._db, *given)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise opening.explain(str(self.path), error) from error

    @property
    def size(self) -> int:
        """Bytes of the file and its log."""
        return sum(
            place.stat().st_size
            for place in (self.path, self.path.with_name(self.path.name + "-wal"))
            if place.exists()
        )

    def gives_back(self) -> bool:
        """Whether free pages can be given back without writing the whole file anew."""
        return self.read(lambda db: db.execute("PRAGMA auto_vacuum").fetchone()[0]) == 2

    # `executescript`, because this pragma gives a page back at each step, and `execute` takes one step.

    def give_back_beside(self) -> None:
        """Give free pages back in pieces, so that a server beside it never waits for long."""
        free = self.read(lambda db: db.execute("PRAGMA freelist_count").fetchone()[0])
        for _ in range(0, free, PAGES):
            self.read(lambda db: db.executescript(f"PRAGMA incremental_vacuum({PAGES})"))
            time.sleep(PAUSE)
        self.read(lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    def give_back(self) -> None:
        """Give free pages back, nobody else being there; the log is emptied."""
        if self.gives_back():
            self.read(lambda db: db.executescript("PRAGMA incremental_vacuum"))
            self._empty_log()
        else:
            self.rewrite()

    def rewrite(self) -> None:
        """Write the whole file anew from what is remembered, so that no byte of what was deleted is left in it or in
        its log. Needs the file's size in free space, in the folder and in SQLite's temporary folder."""
        self.read(_rewrite)
        self._empty_log()

    def _empty_log(self) -> None:
        busy = self.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
        if busy:
            raise StoreError(
                f"{self.path}: another process reads the store, so its log could not be emptied: end it and do this again"
            )


def _rewrite(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA temp_store = FILE")  # the copy may be larger than the memory
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("VACUUM")
