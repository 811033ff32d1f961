"""The tasks of a run, out of its rollouts: a task is written down with each rollout of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from sqlite3 import Connection
from typing import Any

from sqlalchemy import func, select

from agent_lightning.store import schema
from agent_lightning.store.rows import parsed
from agent_lightning.store.statements import param, sql

_R = schema.rollouts


def tasks(db: Connection, run_id: str, after: str, mode: str | None, limit: int) -> list[Mapping[str, Any]]:
    """Each with its id, mode, input, meta, and how many rollouts of it there are and have finished; by id, those behind
    `after`."""
    given = {"run_id": run_id, "after": after, "mode": mode, "limit": limit}
    return [_task(*row) for row in db.execute(_tasks(mode is not None), given)]


@cache
def _tasks(by_mode: bool) -> str:
    finished = func.sum(_R.c.status == "finished")
    statement = (
        select(_R.c.task_id, func.min(_R.c.mode), func.min(_R.c.task), func.count(), finished)
        .where(_R.c.run_id == param("run_id"), _R.c.task_id > param("after"))
        .group_by(_R.c.task_id)
    )
    if by_mode:
        statement = statement.where(_R.c.mode == param("mode"))
    return sql(statement.order_by(_R.c.task_id).limit(param("limit")))


def _task(task_id: str, mode: str, text: str, rollouts: int, finished: int) -> Mapping[str, Any]:
    task = parsed(text)
    return {
        "id": task_id,
        "mode": mode,
        "input": task.get("input"),
        "meta": task.get("meta") or {},
        "rollouts": rollouts,
        "finished": finished,
    }
