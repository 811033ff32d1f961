"""Operations that delete what was said in rollouts, and keep what was counted.

A cleared rollout keeps its row, its attempts, its rewards and one row a call with times, versions and numbers of tokens.
Its task's input and meta, its result, the reasons of its failures, its calls' bodies, ids and log-probabilities and its
spans are gone. A forgotten one has lost the names and sources of its rewards and its key too, and is quoted nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

from sqlalchemy import case, delete, func, select, true, update

from agent_lightning.store import schema
from agent_lightning.store.quotes import Quotes
from agent_lightning.store.rows import ids_text, json_text, parsed
from agent_lightning.store.statements import any_of, param, params, sql

_R, _A, _C, _W, _S, _B, _V, _E = (
    schema.rollouts, schema.attempts, schema.calls, schema.rewards, schema.spans, schema.batches, schema.versions,
    schema.events,
)  # fmt: skip
_OVER = _R.c.status.in_(["finished", "cancelled"])
_THESE = any_of("ids")
FORGOTTEN = "(forgotten)"

_OLD = sql(
    select(_R.c.id, _R.c.run_id, _R.c.mode, _R.c.step)
    .where(_OVER, _R.c.finished_at < param("before"), _R.c.cleared_at.is_(None))
    .order_by(_R.c.seq)
)
_MEMBERS = func.json_each(_B.c.rollout_ids).table_valued("value")
_TRAINED = sql(select(_MEMBERS.c.value).distinct().select_from(_B).join(_MEMBERS, true()))
_TASKS = sql(select(_R.c.id, _R.c.task).where(_R.c.id.in_(_THESE)))
_EMPTY_ROLLOUT = sql(
    update(_R).where(_R.c.id == param("id")).values(**params("task", "cleared_at"), result=None, detail=None)
)
_EMPTY_ATTEMPTS = sql(update(_A).where(_A.c.rollout_id.in_(_THESE)).values(detail=None))
_NUMBERS = func.json_object(
    "suffix_tokens", func.length(_C.c.suffix_ids).op("/")(4), "sampled_tokens", func.length(_C.c.sampled_ids).op("/")(4)
)
_SHORTER = func.json_remove(_C.c.used_sampling, "$.stop", "$.logit_bias")
_EMPTY_CALLS = sql(
    update(_C)
    .where(_C.c.rollout_id.in_(_THESE), _C.c.request_hash != "")  # an empty hash: was cleared before
    .values(
        request="{}",
        response=None,
        suffix_ids=func.zeroblob(0),
        sampled_ids=func.zeroblob(0),
        logprobs=func.zeroblob(0),
        request_hash="",
        requested_sampling="{}",
        used_sampling=case((func.json_valid(_C.c.used_sampling) == 1, _SHORTER), else_="{}"),
        error=None,
        meta=_NUMBERS,
    )
)
_NO_SPANS = sql(delete(_S).where(_S.c.rollout_id.in_(_THESE)))
_OF_CALLS = sql(
    select(
        func.count(),
        func.sum(
            func.length(_C.c.request)
            + func.coalesce(func.length(_C.c.response), 0)
            + func.length(_C.c.suffix_ids)
            + func.length(_C.c.sampled_ids)
            + func.length(_C.c.logprobs)
        ),
    ).where(_C.c.rollout_id.in_(_THESE), _C.c.request_hash != "")
)
_OF_SPANS = sql(
    select(func.count(), func.sum(func.length(_S.c.attributes) + func.length(_S.c.name))).where(
        _S.c.rollout_id.in_(_THESE)
    )
)
_PAYLOADS = (
    _B.c.run_id == param("run_id"),
    _B.c.version <= param("version"),
    _B.c.created_at < param("before"),
    _B.c.applied.is_(True),
    func.length(_B.c.payload) > 0,
)
_OF_PAYLOADS = sql(select(func.count(), func.sum(func.length(_B.c.payload))).where(*_PAYLOADS))
_NO_PAYLOADS = sql(update(_B).where(*_PAYLOADS).values(payload=func.zeroblob(0)))

# --- forgetting -----------------------------------------------------------------------------------------------------
_IN_BATCH = (
    select(_B.c.run_id, _B.c.policy, _B.c.version, _B.c.step, _B.c.applied, _B.c.payload, _V.c.checkpoint)
    .select_from(_B)
    .join(
        _V, (_V.c.run_id == _B.c.run_id) & (_V.c.policy == _B.c.policy) & (_V.c.version == _B.c.version), isouter=True
    )
    .where(select(_MEMBERS.c.value).where(_MEMBERS.c.value.in_(_THESE)).exists())
    .order_by(_B.c.run_id, _B.c.policy, _B.c.version)
)
_BATCHES = sql(_IN_BATCH)
_PUT_PAYLOAD = sql(
    update(_B)
    .where(_B.c.run_id == param("run_id"), _B.c.policy == param("policy"), _B.c.version == param("version"))
    .values(**params("payload"))
)
_EMPTY_REWARDS = sql(update(_W).where(_W.c.rollout_id.in_(_THESE)).values(name="", target_id="", source=""))
_NO_KEYS = sql(update(_A).where(_A.c.rollout_id.in_(_THESE)).values(key_hash="forgotten/" + _A.c.id))  # no hash is so
_OWN_ATTEMPTS = select(_A.c.id).where(_A.c.rollout_id.in_(_THESE))
_NO_SPANS_AT_ALL = sql(delete(_S).where(_S.c.rollout_id.in_(_THESE) | _S.c.attempt_id.in_(_OWN_ATTEMPTS)))
_SAID = (
    sql(select(_R.c.task, _R.c.result, _R.c.detail).where(_R.c.id.in_(_THESE))),
    sql(select(_C.c.request, _C.c.response, _C.c.error).where(_C.c.rollout_id.in_(_THESE))),
    sql(select(_A.c.detail).where(_A.c.rollout_id.in_(_THESE))),
)
_EVENTS = sql(select(_E.c.seq, _E.c.body))
_PUT_BODY = sql(update(_E).where(_E.c.seq == param("seq")).values(**params("body")))
_UNAPPLIED = sql(select(_B.c.run_id, _B.c.step, _B.c.rollout_ids).where(_B.c.applied.is_(False)))
_SAME_TASK = sql(
    select(_R.c.id)
    .where(_R.c.run_id == param("run_id"), _R.c.task_id == param("task_id"), _R.c.cleared_at.is_(None))
    .order_by(_R.c.seq)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """A rollout that ended before the limit and still has its text."""

    id: str
    run_id: str
    mode: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What was deleted, or would be."""

    rollouts: int = 0
    calls: int = 0
    spans: int = 0
    batches: int = 0  # whose samples were deleted
    bytes: int = 0  # of text, ids, log-probabilities and attributes, as the store holds them

    def __add__(self, other: Freed) -> Freed:
        return Freed(
            rollouts=self.rollouts + other.rollouts,
            calls=self.calls + other.calls,
            spans=self.spans + other.spans,
            batches=self.batches + other.batches,
            bytes=self.bytes + other.bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOn:
    """A batch that read the rollout."""

    run_id: str
    policy: str
    version: int  # that the batch made
    step: int
    applied: bool
    checkpoint: str | None


def old(db: Connection, before: float) -> list[Old]:
    rows = db.execute(_OLD, {"before": before})
    return [Old(id=id, run_id=run_id, mode=mode, step=step) for id, run_id, mode, step in rows]


def trained(db: Connection) -> set[str]:
    """Ids of all rollouts that some batch read."""
    return {row[0] for row in db.execute(_TRAINED)}


def unapplied(db: Connection) -> list[tuple[str, int, frozenset[str]]]:
    """(run, trainer step, rollouts) of batches that were committed and whose update is not known to be made."""
    return [(run_id, step, frozenset(parsed(ids))) for run_id, step, ids in db.execute(_UNAPPLIED)]


def weigh(db: Connection, ids: Sequence[str]) -> Freed:
    """What clearing these would delete."""
    these = {"ids": ids_text(ids)}
    calls, call_bytes = db.execute(_OF_CALLS, these).fetchone()
    spans, span_bytes = db.execute(_OF_SPANS, these).fetchone()
    return Freed(rollouts=len(ids), calls=calls, spans=spans, bytes=(call_bytes or 0) + (span_bytes or 0))


def clear(db: Connection, ids: Sequence[str], now: float) -> Freed:
    """Harmless for rollouts that were cleared before."""
    freed, these = weigh(db, ids), {"ids": ids_text(ids)}
    for rollout_id, text in db.execute(_TASKS, these).fetchall():
        task = {**parsed(text), "input": None, "meta": {}}
        db.execute(_EMPTY_ROLLOUT, {"id": rollout_id, "task": json_text(task), "cleared_at": now})
    for statement in (_EMPTY_ATTEMPTS, _EMPTY_CALLS, _NO_SPANS):
        db.execute(statement, these)
    return freed


def weigh_payloads(db: Connection, run_id: str, version: int, before: float) -> Freed:
    count, size = db.execute(_OF_PAYLOADS, {"run_id": run_id, "version": version, "before": before}).fetchone()
    return Freed(batches=count, bytes=size or 0)


def clear_payloads(db: Connection, run_id: str, version: int, before: float) -> Freed:
    """The samples of applied batches up to this version: what no checkpoint will ask for again."""
    freed = weigh_payloads(db, run_id, version, before)
    db.execute(_NO_PAYLOADS, {"run_id": run_id, "version": version, "before": before})
    return freed


def same_task(db: Connection, run_id: str, task_id: str) -> list[str]:
    """Rollouts of one task that still have their text."""
    return [row[0] for row in db.execute(_SAME_TASK, {"run_id": run_id, "task_id": task_id})]


def trained_on(db: Connection, ids: Iterable[str]) -> list[TrainedOn]:
    rows = db.execute(_BATCHES, {"ids": ids_text(ids)})
    return [
        TrainedOn(run_id=run, policy=policy, version=version, step=step, applied=bool(applied), checkpoint=checkpoint)
        for run, policy, version, step, applied, _, checkpoint in rows
    ]


def forget(db: Connection, ids: Sequence[str], now: float, without: Callable[[bytes], bytes]) -> Freed:
    """Clear these, and cut out what quotes them. `without` gives a batch's payload without their samples."""
    these = {"ids": ids_text(ids)}
    quotes = Quotes(_said(db, these))
    batches = 0
    for run_id, policy, version, _, _, payload, _ in db.execute(_BATCHES, these).fetchall():
        if payload:
            place = {"run_id": run_id, "policy": policy, "version": version}
            db.execute(_PUT_PAYLOAD, {**place, "payload": without(payload)})
            batches += 1
    freed = clear(db, ids, now)
    for statement in (_EMPTY_REWARDS, _NO_SPANS_AT_ALL, _NO_KEYS):
        db.execute(statement, these)
    for seq, body in db.execute(_EVENTS).fetchall():
        cut = quotes.cut_from(parsed(body), FORGOTTEN)
        if cut is not None:
            db.execute(_PUT_BODY, {"seq": seq, "body": json_text(cut)})
    return freed + Freed(batches=batches)


def _said(db: Connection, these: Mapping[str, Any]) -> Iterable[str]:
    """Every text of these rollouts, JSON or not."""
    for statement in _SAID:
        for row in db.execute(statement, these):
            yield from (text for text in row if text is not None)
