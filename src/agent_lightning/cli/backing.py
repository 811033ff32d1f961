"""`backup`: a copy of a run's store, also while the run trains."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn

from agent_lightning.cli.runs import run_folder
from agent_lightning.cli.words import console
from agent_lightning.store.backup import Copied
from agent_lightning.store.backup import backup as copy

PAGE_BYTES = 4096


def backup(run: str, out: Path) -> None:
    store = run_folder(run).store
    with Progress("copying", BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console()) as bar:
        shown = _Bar(bar)
        done = copy(store, out, shown.moved)
    typer.echo(_told(done))


class _Bar:
    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID = bar.add_task("copying", total=None)

    def moved(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done * PAGE_BYTES, total=total * PAGE_BYTES)


def _told(done: Copied) -> str:
    rows = ", ".join(f"{count:,} {table}" for table, count in done.rows.items() if count)
    older = (
        "; its schema is older than this version's: `agent-lightning upgrade` brings it forward" if done.older else ""
    )
    return f"{done.path}: {done.bytes / 1e6:,.1f} MB, every page checked; {rows or 'empty'}{older}"
