"""Operations on rewards and spans."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert

from agent_lightning.errors import Conflict, NotFound
from agent_lightning.records import Reward, Span
from agent_lightning.store import schema
from agent_lightning.store.calls import grouped
from agent_lightning.store.rows import Row, ids_text, reward_of, span_of
from agent_lightning.store.statements import any_of, new_row, param, sql

_R, _A, _W, _S = schema.rollouts, schema.attempts, schema.rewards, schema.spans
_STATE = sql(
    select(_A.c.rollout_id, _A.c.ended_at, _R.c.mode, _R.c.frozen_at)
    .join_from(_A, _R, _A.c.rollout_id == _R.c.id)
    .where(_A.c.id == param("attempt_id"))
)
_NEW = sql(new_row(_W).on_conflict_do_nothing(index_elements=["id"]))
_ONE = sql(select(_W).where(_W.c.id == param("id")))
_OF_NEWEST = sql(
    select(_W)
    .join_from(_R, _W, (_W.c.rollout_id == _R.c.id) & (_W.c.attempt_id == _R.c.attempt_id))
    .where(_R.c.id.in_(any_of("ids")), _W.c.stale.is_(False))
    .order_by(_W.c.rollout_id, _W.c.created_at, _W.c.seq)
)
_SPAN_COLUMNS = [column.name for column in _S.c if column.name != "seq"]
_SPAN = insert(_S).values({name: param(name) for name in _SPAN_COLUMNS})
_PUT_SPAN = sql(
    _SPAN.on_conflict_do_update(
        index_elements=["trace_id", "span_id"],
        set_={name: _SPAN.excluded[name] for name in _SPAN_COLUMNS if name not in ("trace_id", "span_id")},
        where=_S.c.rollout_id.is_not_distinct_from(_SPAN.excluded.rollout_id),
    )
)
_CLEARED = sql(select(_R.c.id).where(_R.c.id.in_(any_of("ids")), _R.c.cleared_at.is_not(None)))
_SPANS = sql(select(_S).where(_S.c.rollout_id == param("rollout_id")).order_by(_S.c.start_ns, _S.c.seq))


def rewards_open(mode: str, ended_at: float | None, frozen_at: float | None, now: float, live_deadline: float) -> bool:
    """May a reward for this attempt still count? `live_deadline`: seconds after a live attempt's end."""
    if frozen_at is not None:
        return False
    if ended_at is None:
        return True
    return mode == "live" and now <= ended_at + live_deadline


def add(db: Connection, row: Row, now: float, live_deadline: float) -> Reward:
    found = db.execute(_STATE, row).fetchone()
    if found is None:
        raise NotFound(f"no attempt {row['attempt_id']!r} in this store: reward {row['id']!r} has nowhere to go")
    rollout_id, ended_at, mode, frozen_at = found
    if rollout_id != row["rollout_id"]:
        raise Conflict(f"attempt {row['attempt_id']!r} belongs to rollout {rollout_id!r}, not to {row['rollout_id']!r}")
    row["stale"] = int(not rewards_open(mode, ended_at, frozen_at, now, live_deadline))
    db.execute(_NEW, row)
    return reward_of(db.execute(_ONE, row).fetchone())


def of_newest(db: Connection, rollout_ids: Sequence[str]) -> dict[str, list[Reward]]:
    return grouped(db.execute(_OF_NEWEST, {"ids": ids_text(rollout_ids)}), reward_of, rollout_ids)


def add_spans(db: Connection, rows: Sequence[Row]) -> int:
    """The same span again replaces the first: it may be sent when it starts and when it ends. One rollout's never
    replaces another's, and those of a cleared rollout are left out. Gives how many were kept."""
    named = {row["rollout_id"] for row in rows if row["rollout_id"] is not None}
    cleared = {row[0] for row in db.execute(_CLEARED, {"ids": ids_text(named)})}
    before = db.total_changes
    db.executemany(_PUT_SPAN, [row for row in rows if row["rollout_id"] not in cleared])
    return db.total_changes - before


def spans(db: Connection, rollout_id: str) -> list[Span]:
    return [span_of(row) for row in db.execute(_SPANS, {"rollout_id": rollout_id})]
