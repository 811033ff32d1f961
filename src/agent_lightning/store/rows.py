"""Records <-> rows. A row comes as a tuple in the order of its table's columns; it goes as a dict by column name."""

from __future__ import annotations

import json
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Table

from agent_lightning.errors import StoreError
from agent_lightning.records import (
    Attempt,
    AttemptStatus,
    Call,
    CallStatus,
    Outcome,
    PolicyVersion,
    Reward,
    Rollout,
    RolloutStatus,
    Span,
    Task,
)
from agent_lightning.store import schema
from agent_lightning.store.store import BatchRecord

Row = dict[str, Any]
_MASSES = "legal_mass"

# ASCII, so that a lone surrogate in what an agent wrote survives; NaN in an opaque body is kept as it came.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def _names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.c)


_ROLLOUT, _ATTEMPT, _CALL = _names(schema.rollouts), _names(schema.attempts), _names(schema.calls)
_REWARD, _SPAN, _BATCH = _names(schema.rewards), _names(schema.spans), _names(schema.batches)
_VERSION = _names(schema.versions)


def json_text(value: Any) -> str:
    """Raises StoreError for what JSON cannot say."""
    if value == {}:
        return "{}"
    try:
        return _encode(value if not isinstance(value, Mapping) or isinstance(value, dict) else dict(value))
    except (TypeError, ValueError) as error:
        raise StoreError(f"the store keeps JSON; {type(value).__name__} cannot be written: {error}") from error


def display_text(value: Any) -> str:
    """JSON of what an agent returned; what JSON cannot say appears as its `repr`."""
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError):  # keys that are no strings, or a ring
        return _encode(repr(value))


def parsed(text: str) -> Any:
    return _decode(text)


def ids_text(ids: Iterable[str]) -> str:
    return _encode(list(ids))


def writable(text: str | None) -> str | None:
    """Text that UTF-8 can hold; a lone surrogate becomes a question mark."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def blob(values: Sequence[Any], typecode: str) -> bytes:
    """Little-endian int32 ("i") or float32 ("f")."""
    packed = values if isinstance(values, array) and values.typecode == typecode else array(typecode, values)
    if sys.byteorder == "big":
        packed = packed[:]
        packed.byteswap()
    return packed.tobytes()


def unpacked(data: bytes, typecode: str) -> array[Any]:
    values = array(typecode)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


# --- rollouts and attempts ------------------------------------------------------------------------------------


def rollout_row(rollout: Rollout) -> Row:
    task = rollout.task
    return {
        "id": rollout.id,
        "run_id": rollout.run_id,
        "task_id": task.id,
        "task": json_text({"id": task.id, "input": task.input, "split": task.split, "meta": dict(task.meta)}),
        "mode": rollout.mode,
        "group_id": rollout.group_id,
        "sibling": rollout.sibling,
        "seed": rollout.seed,
        "step": rollout.step,
        "priority": rollout.priority,
        "status": rollout.status.value,
        "outcome": None if rollout.outcome is None else rollout.outcome.value,
        "detail": writable(rollout.detail),
        "attempts": rollout.attempts,
        "max_attempts": rollout.max_attempts,
        "attempt_id": None,
        "deadline_seconds": rollout.deadline_seconds,
        "result": None if rollout.result is None else display_text(rollout.result),
        "created_at": rollout.created_at,
        "finished_at": rollout.finished_at,
        "frozen_at": rollout.frozen_at,
        "finish_order": None,
        "cleared_at": rollout.cleared_at,
    }


def rollout_of(row: Sequence[Any]) -> Rollout:
    fields = dict(zip(_ROLLOUT, row, strict=True))
    del fields["seq"], fields["task_id"], fields["attempt_id"], fields["finish_order"]
    fields["task"] = Task(**_decode(fields["task"]))
    fields["status"] = RolloutStatus(fields["status"])
    fields["outcome"] = _outcome(fields["outcome"])
    fields["result"] = _maybe(fields["result"])
    return Rollout(**fields)


def attempt_of(row: Sequence[Any]) -> Attempt:
    fields = dict(zip(_ATTEMPT, row, strict=True))
    del fields["seq"], fields["key_hash"], fields["next_order"], fields["next_index"]
    fields["status"] = AttemptStatus(fields["status"])
    fields["outcome"] = _outcome(fields["outcome"])
    return Attempt(**fields)


def _outcome(value: str | None) -> Outcome | None:
    return None if value is None else Outcome(value)


def _maybe(text: str | None) -> Any:
    return None if text is None else _decode(text)


# --- calls ----------------------------------------------------------------------------------------------------


def call_row(call: Call) -> Row:
    return {
        **completion_row(call),
        "rollout_id": call.rollout_id,
        "dialect": call.dialect,
        "order": call.order,
        "index": call.index,
        "status": call.status.value,
        "request": json_text(call.request),
        "request_hash": call.request_hash,
        "parent_span": call.parent_span,
        "admitted_at": call.admitted_at,
    }


def completion_row(call: Call) -> Row:
    """What is known once a call is done; what came with its admission stays."""
    return {
        "id": call.id,
        "attempt_id": call.attempt_id,
        "policy": call.policy,
        "component": writable(call.component),
        "parent_call_id": call.parent_call_id,
        "prompt_offset": call.prompt_offset,
        "suffix_ids": blob(call.suffix_ids, "i"),
        "sampled_ids": blob(call.sampled_ids, "i"),
        "logprobs": blob(call.logprobs, "f"),
        "version_from": call.version_from,
        "version_to": call.version_to,
        "finish_reason": call.finish_reason,
        "response": None if call.response is None else json_text(call.response),
        "requested_sampling": json_text(call.requested_sampling),
        "used_sampling": json_text(call.used_sampling),
        "error": writable(call.error),
        "first_token_at": call.first_token_at,
        "finished_at": call.finished_at,
        "trainable": int(call.trainable),
        "meta": json_text({**call.meta, **_masses_row(call.legal_mass)}),
    }


def call_of(row: Sequence[Any]) -> Call:
    fields = dict(zip(_CALL, row, strict=True))
    del fields["seq"]
    fields["suffix_ids"] = unpacked(fields["suffix_ids"], "i")
    fields["sampled_ids"] = unpacked(fields["sampled_ids"], "i")
    fields["logprobs"] = unpacked(fields["logprobs"], "f")
    fields["status"] = CallStatus(fields["status"])
    fields["request"] = _decode(fields["request"])
    fields["response"] = _maybe(fields["response"])
    fields["requested_sampling"] = _decode(fields["requested_sampling"])
    fields["used_sampling"] = _decode(fields["used_sampling"])
    fields["trainable"] = bool(fields["trainable"])
    fields["meta"] = _decode(fields["meta"])
    masses = fields["meta"].pop(_MASSES, "")
    return Call(**fields, legal_mass=unpacked(b64decode(masses), "f"))


def _masses_row(masses: Sequence[float]) -> Row:
    """Of the few calls that a grammar constrained: float32 in base64, among the meta."""
    return {_MASSES: b64encode(blob(masses, "f")).decode("ascii")} if masses else {}


# --- rewards and spans ----------------------------------------------------------------------------------------


def reward_row(reward: Reward) -> Row:
    return {
        "id": reward.id,
        "rollout_id": reward.rollout_id,
        "attempt_id": reward.attempt_id,
        "name": writable(reward.name),
        "value": float(reward.value),
        "target": reward.target,
        "target_id": writable(reward.target_id),
        "source": writable(reward.source),
        "created_at": reward.created_at,
        "stale": int(reward.stale),
    }


def reward_of(row: Sequence[Any]) -> Reward:
    fields = dict(zip(_REWARD, row, strict=True))
    del fields["seq"]
    fields["stale"] = bool(fields["stale"])
    return Reward(**fields)


def span_row(span: Span) -> Row:
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_span_id": span.parent_span_id,
        "rollout_id": span.rollout_id,
        "attempt_id": span.attempt_id,
        "name": writable(span.name),
        "kind": writable(span.kind),
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "call_id": span.call_id,
        "component": writable(span.component),
        "status": span.status,
        "attributes": json_text(span.attributes),
    }


def span_of(row: Sequence[Any]) -> Span:
    fields = dict(zip(_SPAN, row, strict=True))
    del fields["seq"]
    fields["attributes"] = _decode(fields["attributes"])
    return Span(**fields)


# --- training -------------------------------------------------------------------------------------------------


def batch_row(record: BatchRecord) -> Row:
    return {
        "run_id": record.run_id,
        "policy": record.policy,
        "version": record.version,
        "step": record.step,
        "rollout_ids": ids_text(record.rollout_ids),
        "payload": record.payload,
        "rate": record.rate,
        "state": json_text(record.state),
        "applied": int(record.applied),
        "metrics": "{}",
        "created_at": record.created_at,
    }


def batch_of(row: Sequence[Any]) -> BatchRecord:
    fields = dict(zip(_BATCH, row, strict=True))
    del fields["metrics"]
    fields["rollout_ids"] = tuple(_decode(fields["rollout_ids"]))
    fields["state"] = _decode(fields["state"])
    fields["applied"] = bool(fields["applied"])
    return BatchRecord(**fields)


def version_row(version: PolicyVersion) -> Row:
    return {
        "run_id": version.run_id,
        "policy": version.policy,
        "version": version.version,
        "parent": version.parent,
        "checkpoint": version.checkpoint,
        "metrics": json_text(version.metrics),
        "created_at": version.created_at,
    }


def version_of(row: Sequence[Any]) -> PolicyVersion:
    """A row of `versions` with the metrics of the batch that made it as one more column at the end."""
    fields = dict(zip(_VERSION, row[:-1], strict=True))
    fields["metrics"] = {**(_maybe(row[-1]) or {}), **_decode(fields["metrics"])}
    return PolicyVersion(**fields)


def event_of(row: Sequence[Any]) -> Mapping[str, Any]:
    kind, step, body, created_at = row
    return {"kind": kind, "step": step, "body": _decode(body), "created_at": created_at}


def run_of(row: Sequence[Any]) -> Mapping[str, Any]:
    fields = dict(zip(_names(schema.runs), row, strict=True))
    fields["settings"] = _decode(fields["settings"])
    return fields
