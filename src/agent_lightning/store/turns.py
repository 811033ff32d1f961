"""Whose turn it is when several runs share a database: a run with ten thousand queued rollouts starves none with three."""

from __future__ import annotations

from sqlite3 import Connection

from sqlalchemy import func, select
from sqlalchemy.dialects.sqlite import insert

from agent_lightning.store import schema
from agent_lightning.store.statements import param, sql

_R, _T = schema.rollouts, schema.turns
_QUEUED = _R.c.status == "queued"

# From one run to the next by the index, however many rollouts each has: never a scan of the queue.
_FIRST = select(func.min(_R.c.run_id).label("run_id")).where(_QUEUED).cte("waiting", recursive=True)
_NEXT = select(func.min(_R.c.run_id)).where(_QUEUED, _R.c.run_id > _FIRST.c.run_id).scalar_subquery()
_WAITING = _FIRST.union_all(select(_NEXT).where(_FIRST.c.run_id.is_not(None)))
_TOP = (
    select(_R.c.priority)
    .where(_QUEUED, _R.c.run_id == _WAITING.c.run_id)
    .order_by(_R.c.priority.desc())
    .limit(1)
    .scalar_subquery()
)
_RUNS = sql(select(_WAITING.c.run_id, _TOP).where(_WAITING.c.run_id.is_not(None)))

_AT_WORK = sql(
    select(func.count())
    .where(_R.c.run_id == param("run_id"), _R.c.mode.in_(["train", "val", "test"]))
    .where(_R.c.status == "running")
)
_SERVED = sql(select(_T.c.served).where(_T.c.run_id == param("run_id")))
_NUMBER = select(func.coalesce(func.max(_T.c.served), 0) + 1).scalar_subquery()
_SERVE = insert(_T).values(run_id=param("run_id"), served=_NUMBER).inline()
_PUT = sql(_SERVE.on_conflict_do_update(index_elements=["run_id"], set_={"served": _SERVE.excluded.served}))


def next_run(db: Connection) -> str | None:
    """Of the runs that wait with the highest priority: the one with the fewest attempts at work, then the one that was
    served longest ago. None when nothing is queued."""
    waiting = db.execute(_RUNS).fetchall()
    highest = max((priority for _, priority in waiting), default=0)
    first = [run_id for run_id, priority in waiting if priority == highest]
    return first[0] if len(first) == 1 else min(first, key=lambda run_id: _share(db, run_id), default=None)


def _share(db: Connection, run_id: str) -> tuple[int, int]:
    """What the run has had so far: attempts at work now, and the number of its newest claim."""
    at_work = db.execute(_AT_WORK, {"run_id": run_id}).fetchone()[0]
    served = db.execute(_SERVED, {"run_id": run_id}).fetchone()
    return at_work, 0 if served is None else served[0]


def serve(db: Connection, run_id: str) -> None:
    """The run got a claim just now."""
    db.execute(_PUT, {"run_id": run_id})
