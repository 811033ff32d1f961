"""Operations on rollouts that no worker holds: queue, look up, freeze."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from sqlite3 import Connection

from sqlalchemy import select, update

from agent_lightning.errors import Conflict, NotFound
from agent_lightning.records import Rollout, RolloutStatus
from agent_lightning.store import schema
from agent_lightning.store.rows import Row, ids_text, rollout_of, rollout_row
from agent_lightning.store.statements import any_of, new_row, param, params, sql
from agent_lightning.store.store import Page

_R = schema.rollouts
_NEW = sql(new_row(_R).on_conflict_do_nothing(index_elements=["id"]))
_ONE = sql(select(_R).where(_R.c.id == param("id")))
_TAKEN = sql(select(_R.c.id, _R.c.run_id, _R.c.task_id, _R.c.mode).where(_R.c.id.in_(any_of("ids"))))
_OVER = sql(select(_R.c.id).where(_R.c.id.in_(any_of("ids")), _R.c.status.in_(["finished", "cancelled"])))
_FREEZE = sql(update(_R).where(_R.c.id.in_(any_of("ids")), _R.c.frozen_at.is_(None)).values(**params("frozen_at")))


def queued_row(rollout: Rollout, now: float) -> Row:
    fresh = replace(
        rollout, status=RolloutStatus.QUEUED, outcome=None, attempts=0, created_at=rollout.created_at or now
    )
    return rollout_row(fresh)


def enqueue(db: Connection, rows: Sequence[Row]) -> int:
    before = db.total_changes
    db.executemany(_NEW, rows)
    made = db.total_changes - before
    if made < len(rows):
        _same(db, {row["id"]: row for row in rows})
    return made


def _same(db: Connection, rows: Mapping[str, Row]) -> None:
    """Raises Conflict for an id that was taken before by something else."""
    for rollout_id, *there in db.execute(_TAKEN, {"ids": ids_text(rows)}):
        row = rows[rollout_id]
        wanted = [row["run_id"], row["task_id"], row["mode"]]
        if there != wanted:
            raise Conflict(
                f"rollout {rollout_id!r} exists already with (run, task, mode) {tuple(there)}, and came again with "
                f"{tuple(wanted)}: queue it under a new id"
            )


def insert(db: Connection, row: Row) -> bool:
    """False when its id is taken."""
    return db.execute(_NEW, row).rowcount == 1


def find(db: Connection, rollout_id: str) -> Rollout:
    row = db.execute(_ONE, {"id": rollout_id}).fetchone()
    if row is None:
        raise NotFound(f"no rollout {rollout_id!r} in this store: check the id, and that the store is the run's")
    return rollout_of(row)


def listed(db: Connection, run_id: str, step: int | None, mode: str | None, ids: Sequence[str] | None) -> list[Rollout]:
    statement = _list(step is not None, mode is not None, ids is not None)
    wanted = {"run_id": run_id, "step": step, "mode": mode, "ids": ids_text(ids or ())}
    return [rollout_of(row) for row in db.execute(statement, wanted)]


@cache
def _list(by_step: bool, by_mode: bool, by_ids: bool) -> str:
    statement = select(_R).where(_R.c.run_id == param("run_id"))
    if by_step:
        statement = statement.where(_R.c.step == param("step"))
    if by_mode:
        statement = statement.where(_R.c.mode == param("mode"))
    if by_ids:
        statement = statement.where(_R.c.id.in_(any_of("ids")))
    return sql(statement.order_by(_R.c.step, _R.c.group_id, _R.c.sibling, _R.c.seq))


def page(db: Connection, run_id: str, after: int, limit: int, status: RolloutStatus | None, mode: str | None) -> Page:
    wanted = {"run_id": run_id, "after": after, "limit": limit, "status": status and status.value, "mode": mode}
    rows = db.execute(_page(status is not None, mode is not None), wanted).fetchall()
    return Page(
        rollouts=tuple(rollout_of(row) for row in rows),
        next=rows[-1][_FINISH_ORDER] if rows else after,
    )


_FINISH_ORDER = [column.name for column in _R.c].index("finish_order")


@cache
def _page(by_status: bool, by_mode: bool) -> str:
    statement = select(_R).where(_R.c.run_id == param("run_id"), _R.c.finish_order > param("after"))
    if by_status:
        statement = statement.where(_R.c.status == param("status"))
    if by_mode:
        statement = statement.where(_R.c.mode == param("mode"))
    return sql(statement.order_by(_R.c.finish_order).limit(param("limit")))


def over(db: Connection, ids: str) -> set[str]:
    """Which of these (a JSON list) have finished or were cancelled."""
    return {row[0] for row in db.execute(_OVER, {"ids": ids})}


def freeze(db: Connection, rollout_ids: Iterable[str], now: float) -> None:
    db.execute(_FREEZE, {"ids": ids_text(rollout_ids), "frozen_at": now})
