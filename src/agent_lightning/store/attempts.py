"""Operations on attempts: claimed under a lease, ended exactly once, fenced from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from sqlite3 import Connection

from sqlalchemy import delete, exists, func, select, update

from agent_lightning.errors import Conflict, Fenced, NotFound
from agent_lightning.records import (
    RETRIED,
    Attempt,
    AttemptStatus,
    Claim,
    Outcome,
    Rollout,
    RolloutStatus,
)
from agent_lightning.store import rollouts, schema, turns
from agent_lightning.store.keys import digest, make_key
from agent_lightning.store.rows import (
    Row,
    attempt_of,
    display_text,
    ids_text,
    parsed,
    rollout_of,
    rollout_row,
    writable,
)
from agent_lightning.store.statements import any_of, new_row, param, params, sql
from agent_lightning.store.store import RETRIES_PER_ATTEMPT

_R, _A, _C = schema.rollouts, schema.attempts, schema.calls
_ATTEMPT_COLUMNS = len(_A.c)

_BEST = sql(
    select(_R)
    .where(_R.c.status == "queued", _R.c.run_id == param("run_id"))
    .order_by(_R.c.priority.desc(), _R.c.seq)
    .limit(1)
)
_START = sql(update(_R).where(_R.c.id == param("id")).values(**params("attempts", "attempt_id"), status="running"))
_NEW_ATTEMPT = sql(new_row(_A))
_BOTH = sql(select(_A, _R).join_from(_A, _R, _A.c.rollout_id == _R.c.id).where(_A.c.id == param("id")))
_NEWEST = sql(select(_A).join_from(_A, _R, _A.c.id == _R.c.attempt_id).where(_R.c.id == param("id")))
_MOVE_LEASE = sql(update(_A).where(_A.c.id == param("id"), _A.c.status == "running").values(**params("lease_until")))
_NEW_KEY = sql(update(_A).where(_A.c.id == param("id")).values(**params("key_hash", "lease_until")))
_END = sql(update(_A).where(_A.c.id == param("id")).values(**params("ended_at", "outcome", "detail"), status="ended"))
_SEAL = sql(
    update(_C)
    .where(_C.c.attempt_id == param("attempt_id"), _C.c.status == "running")
    .values(**params("finished_at"), status="sealed")
)
_TRAINED = sql(
    select(exists().where(_C.c.attempt_id == param("attempt_id"), _C.c.status == "completed", _C.c.trainable.is_(True)))
)
_CLOSE = (
    update(_R)
    .where(_R.c.id == param("id"))
    .values(**params("status", "outcome", "detail", "finished_at"), result=func.coalesce(param("result"), _R.c.result))
)
_BEFORE = _R.alias("before")
_NUMBER = select(func.coalesce(func.max(_BEFORE.c.finish_order), 0) + 1).where(
    _BEFORE.c.run_id == _R.c.run_id, _BEFORE.c.finish_order.is_not(None)
)
_FINISH = sql(_CLOSE.values(finish_order=_NUMBER.scalar_subquery()))
_QUEUE_AGAIN = sql(_CLOSE)
_FORGET = sql(delete(_A).where(_A.c.id == param("attempt_id"), _A.c.status == "running"))
_PREVIOUS = select(_A.c.id).where(_A.c.rollout_id == _R.c.id, _A.c.number == _R.c.attempts - 1).scalar_subquery()
_UNSTART = sql(
    update(_R)
    .where(_R.c.attempt_id == param("attempt_id"), _R.c.status == "running")
    .values(status="queued", attempts=_R.c.attempts - 1, attempt_id=_PREVIOUS)
)
_LAPSED = sql(select(_A.c.id).where(_A.c.status == "running", _A.c.lease_until < param("now")))
_AT_WORK = sql(
    select(_A.c.id).join_from(_A, _R, _A.c.rollout_id == _R.c.id).where(_A.c.status == "running", _R.c.mode != "live")
)
_ENDINGS = sql(select(_A.c.outcome).where(_A.c.rollout_id == param("id"), _A.c.outcome.is_not(None)))
_OPEN = sql(
    select(_R.c.id, _R.c.attempt_id, _R.c.status).where(
        _R.c.id.in_(any_of("ids")), _R.c.status.in_(["queued", "running"])
    )
)


def claim(
    db: Connection, worker: str, run_id: str | None, *, lease_seconds: float, now: float, new_id: Callable[[], str]
) -> Claim | None:
    if run_id is None:
        run_id = turns.next_run(db)
    row = db.execute(_BEST, {"run_id": run_id}).fetchone()
    if row is None:
        return None
    rollout = rollout_of(row)
    turns.serve(db, rollout.run_id)
    return _start(db, rollout, worker, new_id(), lease_seconds=lease_seconds, now=now)


def start_live(
    db: Connection,
    row: Row,
    rollout: Rollout,
    worker: str,
    *,
    lease_seconds: float,
    now: float,
    new_id: Callable[[], str],
) -> Claim:
    """Repeated by the same worker while the attempt runs: the same attempt under a new key."""
    if rollouts.insert(db, row):
        return _start(db, rollout, worker, new_id(), lease_seconds=lease_seconds, now=now)
    attempt = _newest(db, rollout.id)
    if attempt.worker != worker or attempt.status is not AttemptStatus.RUNNING:
        raise Conflict(
            f"rollout {rollout.id!r} exists already (worker {attempt.worker!r}, {attempt.status}): "
            "start a live rollout under a new id"
        )
    key = make_key(attempt.id)
    until = now + lease_seconds
    db.execute(_NEW_KEY, {"id": attempt.id, "key_hash": digest(key), "lease_until": until})
    return Claim(
        rollout=rollouts.find(db, rollout.id),
        attempt=replace(attempt, lease_until=until),
        key=key,
        lease_seconds=lease_seconds,
    )


def _newest(db: Connection, rollout_id: str) -> Attempt:
    row = db.execute(_NEWEST, {"id": rollout_id}).fetchone()
    if row is None:
        raise Conflict(f"rollout {rollout_id!r} is queued: claim it, or start a live rollout under a new id")
    return attempt_of(row)


def _start(
    db: Connection, rollout: Rollout, worker: str, attempt_id: str, *, lease_seconds: float, now: float
) -> Claim:
    rollout = replace(rollout, status=RolloutStatus.RUNNING, attempts=rollout.attempts + 1)
    key = make_key(attempt_id)
    attempt = Attempt(
        id=attempt_id,
        rollout_id=rollout.id,
        number=rollout.attempts,
        worker=worker,
        status=AttemptStatus.RUNNING,
        lease_until=now + lease_seconds,
        started_at=now,
    )
    db.execute(_START, {"id": rollout.id, "attempts": rollout.attempts, "attempt_id": attempt_id})
    db.execute(_NEW_ATTEMPT, _new_row(attempt, digest(key)))
    return Claim(rollout=rollout, attempt=attempt, key=key, lease_seconds=lease_seconds)


def _new_row(attempt: Attempt, key_hash: str) -> Row:
    return {
        "id": attempt.id,
        "rollout_id": attempt.rollout_id,
        "number": attempt.number,
        "worker": writable(attempt.worker),
        "status": "running",
        "lease_until": attempt.lease_until,
        "started_at": attempt.started_at,
        "ended_at": None,
        "outcome": None,
        "detail": None,
        "key_hash": key_hash,
        "next_order": 0,
        "next_index": 0,
    }


def unclaim(db: Connection, attempt_id: str) -> None:
    """Give back a claim that its asker never saw: the rollout is queued again as if nobody had claimed it."""
    if db.execute(_FORGET, {"attempt_id": attempt_id}).rowcount:
        db.execute(_UNSTART, {"attempt_id": attempt_id})


def live_row(rollout: Rollout, now: float) -> tuple[Row, Rollout]:
    fresh = replace(
        rollout,
        mode="live",
        status=RolloutStatus.RUNNING,
        outcome=None,
        attempts=0,
        max_attempts=1,
        created_at=rollout.created_at or now,
    )
    return rollout_row(fresh), fresh


def with_key_hash(db: Connection, attempt_id: str) -> tuple[Attempt, Rollout, str] | None:
    row = db.execute(_BOTH, {"id": attempt_id}).fetchone()
    if row is None:
        return None
    key_hash = row[_KEY_HASH]
    return attempt_of(row[:_ATTEMPT_COLUMNS]), rollout_of(row[_ATTEMPT_COLUMNS:]), key_hash


_KEY_HASH = [column.name for column in _A.c].index("key_hash")


def _both(db: Connection, attempt_id: str) -> tuple[Attempt, Rollout, str]:
    found = with_key_hash(db, attempt_id)
    if found is None:
        raise NotFound(f"no attempt {attempt_id!r} in this store")
    return found


def heartbeat(db: Connection, attempt_id: str, lease_until: float) -> float:
    """A lease that has run out is prolonged too, as long as nobody has ended the attempt for it."""
    if db.execute(_MOVE_LEASE, {"id": attempt_id, "lease_until": lease_until}).rowcount == 0:
        attempt, rollout, _ = _both(db, attempt_id)
        raise Fenced(why_fenced(attempt, rollout))
    return lease_until


def why_fenced(attempt: Attempt, rollout: Rollout) -> str:
    if attempt.outcome is None and rollout.status is RolloutStatus.CANCELLED:
        cause = "its rollout was cancelled"
    elif attempt.outcome is Outcome.LOST_WORKER:
        cause = "its lease ran out"
    elif attempt.outcome is None:
        cause = "it was given back, because its worker was found dead"
    else:
        cause = f"it ended as {attempt.outcome}"
    return f"attempt {attempt.id!r} of rollout {rollout.id!r} is over: {cause}; stop working on it"


def end(
    db: Connection, attempt_id: str, outcome: Outcome, *, detail: str | None, result: str | None, now: float
) -> Rollout:
    """`result` is JSON text."""
    attempt, rollout, _ = _both(db, attempt_id)
    if attempt.status is AttemptStatus.ENDED:
        if attempt.outcome is outcome:
            return rollout
        if attempt.outcome in (None, Outcome.LOST_WORKER):
            raise Fenced(why_fenced(attempt, rollout))
        raise Conflict(f"attempt {attempt_id!r} ended as {attempt.outcome} already and cannot end as {outcome} too")
    return _end(db, attempt, rollout, outcome, detail=detail, result=result, now=now)


def _end(
    db: Connection,
    attempt: Attempt,
    rollout: Rollout,
    outcome: Outcome,
    *,
    detail: str | None,
    result: str | None,
    now: float,
) -> Rollout:
    _finish_attempt(db, attempt, outcome, detail, now)
    if _goes_again(db, attempt, rollout, outcome):
        after = replace(rollout, status=RolloutStatus.QUEUED, detail=detail)
        return _close(db, after, None)
    after = replace(rollout, status=RolloutStatus.FINISHED, outcome=outcome, detail=detail, finished_at=now)
    return _close(db, after, result)


def _goes_again(db: Connection, attempt: Attempt, rollout: Rollout, outcome: Outcome) -> bool:
    """Asked after the attempt has ended, so that its own outcome is among the endings."""
    if rollout.mode == "live" or (outcome not in RETRIED and outcome is not Outcome.AGENT_ERROR):
        return False
    endings = [Outcome(row[0]) for row in db.execute(_ENDINGS, {"id": rollout.id})]
    retried = sum(ending in RETRIED for ending in endings)
    if outcome in RETRIED:
        return retried < RETRIES_PER_ATTEMPT * rollout.max_attempts
    if len(endings) - retried >= rollout.max_attempts:
        return False
    # trying again after a trained call would be rejection sampling
    return not db.execute(_TRAINED, {"attempt_id": attempt.id}).fetchone()[0]


def _finish_attempt(db: Connection, attempt: Attempt, outcome: Outcome | None, detail: str | None, now: float) -> None:
    ended = {"id": attempt.id, "ended_at": now, "outcome": outcome and outcome.value, "detail": writable(detail)}
    db.execute(_SEAL, {"attempt_id": attempt.id, "finished_at": now})
    db.execute(_END, ended)


def _close(db: Connection, rollout: Rollout, result: str | None) -> Rollout:
    changed = {
        "id": rollout.id,
        "status": rollout.status.value,
        "outcome": rollout.outcome and rollout.outcome.value,
        "detail": writable(rollout.detail),
        "finished_at": rollout.finished_at,
        "result": result,
    }
    db.execute(_QUEUE_AGAIN if rollout.finished_at is None else _FINISH, changed)
    return rollout if result is None else replace(rollout, result=parsed(result))


def expire(db: Connection, now: float) -> list[str]:
    lapsed = [row[0] for row in db.execute(_LAPSED, {"now": now}).fetchall()]
    for attempt_id in lapsed:
        attempt, rollout, _ = _both(db, attempt_id)
        late = now - attempt.lease_until
        detail = f"worker {attempt.worker!r} was not heard of: its lease ran out {late:.1f} s ago"
        _end(db, attempt, rollout, Outcome.LOST_WORKER, detail=detail, result=None, now=now)
    return lapsed


def give_back(db: Connection, gone: Callable[[str], bool], now: float) -> list[str]:
    found = [_both(db, row[0]) for row in db.execute(_AT_WORK).fetchall()]
    dead = [(attempt, rollout) for attempt, rollout, _ in found if gone(attempt.worker)]
    for attempt, rollout in dead:
        detail = f"worker {attempt.worker!r} was found dead: its attempt was given back"
        _finish_attempt(db, attempt, None, detail, now)
        _close(db, replace(rollout, status=RolloutStatus.QUEUED, detail=detail), None)
    return [attempt.id for attempt, _ in dead]


def cancel(db: Connection, rollout_ids: Iterable[str], now: float) -> int:
    """How many were cancelled."""
    found = db.execute(_OPEN, {"ids": ids_text(rollout_ids)}).fetchall()
    for rollout_id, attempt_id, status in found:
        if status == "running":
            attempt, _, _ = _both(db, attempt_id)
            _finish_attempt(db, attempt, None, "cancelled", now)
        rollout = rollouts.find(db, rollout_id)
        _close(db, replace(rollout, status=RolloutStatus.CANCELLED, detail="cancelled", finished_at=now), None)
    return len(found)


def cancel_one(db: Connection, rollout_id: str, now: float) -> Rollout:
    rollout = rollouts.find(db, rollout_id)
    if rollout.status is RolloutStatus.FINISHED:
        raise Conflict(f"rollout {rollout_id!r} has finished as {rollout.outcome} and cannot be cancelled")
    cancel(db, [rollout_id], now)
    return rollouts.find(db, rollout_id)


def result_text(result: object) -> str | None:
    return None if result is None else display_text(result)
