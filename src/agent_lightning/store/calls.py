"""Operations on calls: admitted once per (attempt, id), completed, broken or sealed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from sqlite3 import Connection
from typing import Any, NoReturn

from sqlalchemy import select, update

from agent_lightning.errors import Conflict, Fenced, NotFound
from agent_lightning.records import Call, CallStatus
from agent_lightning.store import schema
from agent_lightning.store.rows import Row, call_of, ids_text, writable
from agent_lightning.store.statements import any_of, new_row, param, params, sql
from agent_lightning.store.store import Admission

_R, _A, _C = schema.rollouts, schema.attempts, schema.calls
_THIS = (_C.c.attempt_id == param("attempt_id"), _C.c.id == param("id"))
_DONE = (
    "parent_call_id", "prompt_offset", "suffix_ids", "sampled_ids", "logprobs", "version_from", "version_to",
    "finish_reason", "response", "requested_sampling", "used_sampling", "error", "first_token_at", "finished_at",
    "trainable", "meta", "component", "policy",
)  # fmt: skip
_KEPT = ("order", "index", "attempt_id", "id")  # of a broken call that is made again

_ATTEMPT = sql(
    select(_A.c.status, _A.c.rollout_id, _A.c.next_order, _A.c.next_index).where(_A.c.id == param("attempt_id"))
)
_OVERLAPPED = sql(
    select(_C.c.index)
    .where(_C.c.attempt_id == param("attempt_id"), _C.c.parent_span == param("parent_span"))
    .where(_C.c.status == "running")
    .order_by(_C.c.order.desc())
    .limit(1)
)
_NEW = sql(new_row(_C).on_conflict_do_nothing(index_elements=["attempt_id", "id"]))
_COUNT = sql(update(_A).where(_A.c.id == param("attempt_id")).values(**params("next_order", "next_index")))
_ONE = sql(select(_C).where(*_THIS))
_STATUS = sql(select(_C.c.status, _C.c.sampled_ids, _C.c.response).where(*_THIS))
_AGAIN = sql(update(_C).where(*_THIS).values(**params(*(c.name for c in _C.c if c.name not in ("seq", *_KEPT)))))
_COMPLETE = sql(update(_C).where(*_THIS, _C.c.status == "running").values(**params(*_DONE), status="completed"))
_BREAK = sql(
    update(_C).where(*_THIS, _C.c.status == "running").values(**params("error", "finished_at"), status="broken")
)
_BREAK_ALL = sql(update(_C).where(_C.c.status == "running").values(**params("error", "finished_at"), status="broken"))
_OF_ATTEMPT = sql(
    select(_C)
    .where(_C.c.attempt_id == param("attempt_id"), _C.c.rollout_id == param("rollout_id"))
    .order_by(_C.c.order)
)
_OF_NEWEST = sql(
    select(_C)
    .join_from(_R, _C, _C.c.attempt_id == _R.c.attempt_id)
    .where(_R.c.id.in_(any_of("ids")))
    .order_by(_C.c.rollout_id, _C.c.order)
)


def admit(db: Connection, call: Call, row: Row) -> Admission:
    """`row` is the call's own; its order and index are set here."""
    found = db.execute(_ATTEMPT, row).fetchone()
    if found is None:
        raise NotFound(f"no attempt {call.attempt_id!r} in this store")
    status, rollout_id, order, index = found
    if status != "running":
        raise Fenced(f"attempt {call.attempt_id!r} has ended: call {call.id!r} came too late")
    if rollout_id != call.rollout_id:
        raise Conflict(f"attempt {call.attempt_id!r} belongs to rollout {rollout_id!r}, not to {call.rollout_id!r}")
    shared = db.execute(_OVERLAPPED, row).fetchone() if call.parent_span is not None else None
    row["order"], row["index"] = order, index if shared is None else shared[0]
    if db.execute(_NEW, row).rowcount == 0:
        return _seen(db, call, row)
    next_index = index + 1 if shared is None else index
    counted = {"attempt_id": call.attempt_id, "next_order": order + 1, "next_index": next_index}
    db.execute(_COUNT, counted)
    return Admission(kind="new", call=_running(call, row))


def _running(call: Call, row: Row) -> Call:
    return replace(
        call, order=row["order"], index=row["index"], status=CallStatus.RUNNING, admitted_at=row["admitted_at"]
    )


def _seen(db: Connection, call: Call, row: Row) -> Admission:
    """A call with this id was admitted before."""
    first = call_of(db.execute(_ONE, row).fetchone())
    if first.request_hash != call.request_hash:
        raise Conflict(
            f"call {call.id!r} of attempt {call.attempt_id!r} came again with another body: "
            "a retry repeats the body, a new call needs a new id"
        )
    if first.status is CallStatus.RUNNING:
        return Admission(kind="joined", call=first)
    if first.status is CallStatus.COMPLETED:
        return Admission(kind="replay", call=first)
    row["order"], row["index"] = first.order, first.index
    db.execute(_AGAIN, row)
    return Admission(kind="new", call=_running(call, row))


def complete(db: Connection, row: Row) -> None:
    if db.execute(_COMPLETE, row).rowcount == 0:
        _refuse_completion(db, row)


def _refuse_completion(db: Connection, row: Row) -> None:
    """The same completion again is harmless."""
    found = db.execute(_STATUS, row).fetchone()
    if found is None:
        _unknown(row)
    status, sampled_ids, response = found
    if status == "sealed":
        raise Fenced(f"attempt {row['attempt_id']!r} ended before call {row['id']!r} was finished: it is sealed")
    if (status, sampled_ids, response) == ("completed", row["sampled_ids"], row["response"]):
        return
    raise Conflict(f"call {row['id']!r} of attempt {row['attempt_id']!r} is {status} and cannot be completed")


def _unknown(row: Row) -> NoReturn:
    raise NotFound(f"no call {row['id']!r} in attempt {row['attempt_id']!r}: admit it first")


def break_one(db: Connection, attempt_id: str, call_id: str, error: str, now: float) -> None:
    """A call that is sealed or broken already stays as it is; a completed one cannot be broken."""
    this: Row = {"attempt_id": attempt_id, "id": call_id}
    if db.execute(_BREAK, {**this, "error": writable(error), "finished_at": now}).rowcount == 0:
        found = db.execute(_STATUS, this).fetchone()
        if found is None:
            _unknown(this)
        if found[0] == "completed":
            raise Conflict(f"call {call_id!r} of attempt {attempt_id!r} is completed and cannot be broken")


def break_running(db: Connection, error: str, now: float) -> int:
    return db.execute(_BREAK_ALL, {"error": writable(error), "finished_at": now}).rowcount


def of_attempt(db: Connection, rollout_id: str, attempt_id: str) -> list[Call]:
    rows = db.execute(_OF_ATTEMPT, {"rollout_id": rollout_id, "attempt_id": attempt_id})
    return [call_of(row) for row in rows]


def of_newest(db: Connection, rollout_ids: Sequence[str]) -> dict[str, list[Call]]:
    """Every rollout that was asked for has its entry."""
    return grouped(db.execute(_OF_NEWEST, {"ids": ids_text(rollout_ids)}), call_of, rollout_ids)


def grouped(rows: Any, record: Callable[[Any], Any], rollout_ids: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        made = record(row)
        found[made.rollout_id].append(made)
    return {rollout_id: found[rollout_id] for rollout_id in rollout_ids}
