"""Operations on runs, batches, versions and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from sqlite3 import Connection
from typing import Any

from sqlalchemy import and_, select, update
from sqlalchemy.dialects.sqlite import insert

from agent_lightning.errors import Conflict, NotFound, RunInUse
from agent_lightning.records import PolicyVersion
from agent_lightning.store import schema
from agent_lightning.store.rows import Row, batch_of, event_of, json_text, run_of, version_of
from agent_lightning.store.statements import new_row, param, params, sql
from agent_lightning.store.store import BatchRecord

_N, _B, _V, _E = schema.runs, schema.batches, schema.versions, schema.events
_RUN = sql(select(_N).where(_N.c.id == param("id")))
_RUNS = sql(select(_N).order_by(_N.c.created_at, _N.c.id))
_NEW_RUN = sql(new_row(_N))
_TAKE = sql(
    update(_N)
    .where(_N.c.id == param("id"))
    .values(**params("settings", "holder", "held_since", "lease_until"), ended_at=None)
)
_HOLD = sql(update(_N).where(_N.c.id == param("id"), _N.c.holder == param("holder")).values(**params("lease_until")))
_RELEASE = sql(
    update(_N)
    .where(_N.c.id == param("id"), _N.c.holder == param("holder"))
    .values(**params("ended_at"), holder=None, held_since=None, lease_until=None)
)
_THIS_BATCH = (_B.c.run_id == param("run_id"), _B.c.policy == param("policy"), _B.c.version == param("version"))
_KEY = ["run_id", "policy", "version"]


def _upsert(table: Any) -> str:
    names = [column.name for column in table.c]
    statement = insert(table).values(**params(*names))
    changed = {name: statement.excluded[name] for name in names if name not in _KEY}
    return sql(statement.on_conflict_do_update(index_elements=_KEY, set_=changed))


_PUT_BATCH, _PUT_VERSION = _upsert(_B), _upsert(_V)
_APPLIED = sql(select(_B.c.applied).where(*_THIS_BATCH))
_APPLY = sql(update(_B).where(*_THIS_BATCH).values(**params("metrics"), applied=True))
_BATCHES = sql(
    select(_B)
    .where(_B.c.run_id == param("run_id"), _B.c.policy == param("policy"), _B.c.version > param("after"))
    .order_by(_B.c.version)
)
_NEW_EVENT = sql(new_row(_E))


# --- runs -----------------------------------------------------------------------------------------------------


def open_run(
    db: Connection,
    run_id: str,
    settings: str,
    *,
    holder: str,
    lease_seconds: float,
    gone: Callable[[str], bool],
    now: float,
) -> None:
    """`settings` is JSON text; those of a run that is taken up again are replaced."""
    row: Row = {"id": run_id, "settings": settings, "holder": holder, "lease_until": now + lease_seconds}
    found = db.execute(_RUN, row).fetchone()
    if found is None:
        db.execute(_NEW_RUN, {**row, "held_since": now, "created_at": now, "ended_at": None})
        return
    run = run_of(found)
    if run["holder"] not in (None, holder) and run["lease_until"] >= now and not gone(run["holder"]):
        raise RunInUse(_held_by_another(run, now))
    since = run["held_since"] if run["holder"] == holder else now
    db.execute(_TAKE, {**row, "held_since": since})


def _held_by_another(run: Mapping[str, Any], now: float) -> str:
    since = datetime.fromtimestamp(run["held_since"], UTC).isoformat(sep=" ", timespec="seconds")
    left = max(0.0, run["lease_until"] - now)
    return (
        f"run {run['id']!r} is held by {run['holder']} since {since}: stop that trainer, "
        f"or wait {left:.0f} s for its lease to run out if it is dead"
    )


def hold_run(db: Connection, run_id: str, *, holder: str, lease_until: float, now: float) -> None:
    row: Row = {"id": run_id, "holder": holder, "lease_until": lease_until}
    if db.execute(_HOLD, row).rowcount:
        return
    found = db.execute(_RUN, row).fetchone()
    if found is None:
        raise NotFound(f"no run {run_id!r} in this store: open it first")
    run = run_of(found)
    if run["holder"] is None:
        raise RunInUse(f"run {run_id!r} is not held by {holder}: it was released; open it again")
    raise RunInUse(_held_by_another(run, now))


def release_run(db: Connection, run_id: str, *, holder: str, now: float) -> None:
    """Harmless when another one holds it."""
    db.execute(_RELEASE, {"id": run_id, "holder": holder, "ended_at": now})


def runs(db: Connection) -> list[Mapping[str, Any]]:
    return [run_of(row) for row in db.execute(_RUNS)]


# --- batches and versions -------------------------------------------------------------------------------------


def commit_batch(db: Connection, row: Row) -> None:
    found = db.execute(_APPLIED, row).fetchone()
    if found is not None and found[0]:
        raise Conflict(
            f"batch {row['version']} of policy {row['policy']!r} in run {row['run_id']!r} is applied: "
            "it cannot be replaced; commit the next version"
        )
    db.execute(_PUT_BATCH, row)


def mark_applied(db: Connection, run_id: str, policy: str, version: int, metrics: Mapping[str, float]) -> None:
    row: Row = {"run_id": run_id, "policy": policy, "version": version, "metrics": json_text(metrics)}
    if db.execute(_APPLY, row).rowcount == 0:
        raise NotFound(f"no batch {version} of policy {policy!r} in run {run_id!r}: commit it first")


def batches(db: Connection, run_id: str, policy: str, after_version: int) -> list[BatchRecord]:
    rows = db.execute(_BATCHES, {"run_id": run_id, "policy": policy, "after": after_version})
    return [batch_of(row) for row in rows]


def add_version(db: Connection, row: Row) -> None:
    db.execute(_PUT_VERSION, row)


def versions(db: Connection, run_id: str, policy: str | None) -> list[PolicyVersion]:
    rows = db.execute(_versions(policy is not None), {"run_id": run_id, "policy": policy})
    return [version_of(row) for row in rows]


@cache
def _versions(by_policy: bool) -> str:
    same = and_(_V.c.run_id == _B.c.run_id, _V.c.policy == _B.c.policy, _V.c.version == _B.c.version)
    statement = select(_V, _B.c.metrics).join_from(_V, _B, same, isouter=True).where(_V.c.run_id == param("run_id"))
    if by_policy:
        statement = statement.where(_V.c.policy == param("policy"))
    return sql(statement.order_by(_V.c.policy, _V.c.version))


# --- events ---------------------------------------------------------------------------------------------------


def add_event(db: Connection, run_id: str, kind: str, *, step: int, body: str, now: float) -> None:
    db.execute(_NEW_EVENT, {"run_id": run_id, "kind": kind, "step": step, "body": body, "created_at": now})


def events(db: Connection, run_id: str, kind: str | None) -> list[Mapping[str, Any]]:
    rows = db.execute(_events(kind is not None), {"run_id": run_id, "kind": kind})
    return [event_of(row) for row in rows]


@cache
def _events(by_kind: bool) -> str:
    statement = select(_E.c.kind, _E.c.step, _E.c.body, _E.c.created_at).where(_E.c.run_id == param("run_id"))
    if by_kind:
        statement = statement.where(_E.c.kind == param("kind"))
    return sql(statement.order_by(_E.c.seq))
