"""Operations on rollouts that no worker holds: queue, look up, freeze."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from sqlite3 import Connection

from sqlalchemy import select, update

from agent_lightning.errors import NotFound
from agent_lightning.records import Rollout, RolloutStatus
from agent_lightning.store import schema
from agent_lightning.store.rows import Row, ids_text, rollout_of, rollout_row
from agent_lightning.store.statements import any_of, new_row, param, params, sql

_R = schema.rollouts
_NEW = sql(new_row(_R).on_conflict_do_nothing(index_elements=["id"]))
_ONE = sql(select(_R).where(_R.c.id == param("id")))
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
    return db.total_changes - before


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


def over(db: Connection, ids: str) -> set[str]:
    """Which of these (a JSON list) have finished or were cancelled."""
    return {row[0] for row in db.execute(_OVER, {"ids": ids})}


def freeze(db: Connection, rollout_ids: Iterable[str], now: float) -> None:
    db.execute(_FREEZE, {"ids": ids_text(rollout_ids), "frozen_at": now})
