"""Moves the write-ahead log into the database file beside the writer, so that no call waits for the disk's flush.

The writer itself does so only when the log has grown to `opening.LOG_PAGES`: then little is left to move.
"""

from __future__ import annotations

import sqlite3
import threading

EVERY_CHANGES = 2_000  # rows written between two moves


class Checkpointer:
    """One thread with its own connection. It sleeps until enough rows were written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._due = threading.Event()
        self._closed = False
        self._moved_at = 0
        self.failed: str | None = None  # why the last move failed; the writer's own one will tell its callers
        self._thread = threading.Thread(target=self._work, name="store-checkpoint", daemon=True)
        self._thread.start()

    def committed(self, total_changes: int) -> None:
        """Called by the writer after each commit with the rows that it has written so far."""
        if total_changes - self._moved_at >= EVERY_CHANGES:
            self._moved_at = total_changes
            self._due.set()

    def close(self) -> None:
        self._closed = True
        self._due.set()
        self._thread.join()

    def _work(self) -> None:
        while self._due.wait() and not self._closed:
            self._due.clear()
            try:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self.failed = None
            except sqlite3.Error as error:
                self.failed = str(error)
        self._connection.close()
