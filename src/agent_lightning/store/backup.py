"""A copy of a store as it was at one moment, taken while another process goes on writing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_lightning.errors import StoreError
from agent_lightning.store import opening
from agent_lightning.store.view import StoreView, read_only

PAGES = 2_048  # copied between two words of progress: 8 MiB
COUNTED = ("runs", "rollouts", "attempts", "calls", "rewards", "spans", "batches", "versions", "events")

Progress = Callable[[int, int], None]  # pages copied, pages in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    path: Path
    bytes: int
    rows: dict[str, int]  # by table
    older: bool  # its schema is older than this version's


def backup(source: Path, out: Path, progress: Progress = lambda done, total: None) -> Copied:
    """Copy, check every page, open the copy, and only then give it its name. Raises StoreError; never overwrites."""
    if not source.is_file():
        raise StoreError(f"{source} does not exist: there is nothing to back up")
    if out.exists():
        raise _taken(out)
    draft = out.with_name(f".{out.name}.{os.getpid()}.draft")
    try:
        _copy(source, draft, progress)
        made = _checked(draft, out)
        _name(draft, out)
    except sqlite3.Error as error:
        raise opening.explain(str(source), error) from error
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror or error}; choose another place") from error
    finally:
        draft.unlink(missing_ok=True)
    return made


def _taken(out: Path) -> StoreError:
    return StoreError(f"{out} exists already: a backup overwrites nothing, choose a new name")


def _copy(source: Path, draft: Path, progress: Progress) -> None:
    live = read_only(source)
    copy = sqlite3.connect(draft)
    try:
        # A transaction of our own holds the moment: without one, each commit of the server would begin the copy anew.
        live.execute("BEGIN")
        live.execute("SELECT count(*) FROM sqlite_master").fetchone()
        live.backup(copy, pages=PAGES, progress=lambda _, left, total: progress(total - left, total))
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    finally:
        copy.close()
        live.close()


def _checked(draft: Path, out: Path) -> Copied:
    copy = opening.read_file(draft)
    try:
        damage = copy.execute("PRAGMA integrity_check(3)").fetchall()
        if damage != [("ok",)]:
            raise StoreError(f"the copy of the store is damaged ({damage[0][0]}): check the disk; {out} was not made")
        older = opening.is_older(str(draft), copy)
        rows = {table: copy.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in COUNTED}
    finally:
        copy.close()
    if not older:
        with StoreView(draft) as view:
            for run in view.runs():
                view.events(run["id"])
    return Copied(path=out, bytes=draft.stat().st_size, rows=rows, older=older)


def _name(draft: Path, out: Path) -> None:
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    try:
        os.link(draft, out)  # unlike a rename, it never takes the place of a file
    except FileExistsError:
        raise _taken(out) from None
    except OSError:  # a file system without links
        if out.exists():
            raise _taken(out) from None
        draft.rename(out)
