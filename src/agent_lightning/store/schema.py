"""Every column once. Times are Unix seconds, JSON is text, token ids and log-probabilities are little-endian BLOBs.

`seq` is the order in which rows were made. There are no foreign keys: every row is written by the operations of this
room, which check what they refer to.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

REVISION = "0002"  # newest revision in migrations/versions

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _seq() -> Column[int]:
    return Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean(create_constraint=False), nullable=False)


def _time(name: str) -> Column[float]:
    return Column(name, Float, nullable=False)


runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    _text("settings"),  # JSON
    Column("holder", Text),  # who trains it now; None: nobody
    Column("held_since", Float),
    Column("lease_until", Float),
    _time("created_at"),
    Column("ended_at", Float),
)

rollouts = Table(
    "rollouts",
    metadata,
    _seq(),
    _text("id"),
    _text("run_id"),
    _text("task_id"),
    _text("task"),  # JSON of the whole Task
    _text("mode"),
    _text("group_id"),
    _number("sibling"),
    _number("seed"),
    _number("step"),
    _number("priority"),
    _text("status"),
    Column("outcome", Text),
    Column("detail", Text),
    _number("attempts"),
    _number("max_attempts"),
    Column("attempt_id", Text),  # the newest attempt
    _time("deadline_seconds"),
    Column("result", Text),  # JSON; SQL null while there is none
    _time("created_at"),
    Column("finished_at", Float),
    Column("frozen_at", Float),
    Column("finish_order", BigInteger),  # 1, 2, 3 ... within the run, in the order of the commits that ended them
    Column("cleared_at", Float),  # its text and tokens were deleted
    UniqueConstraint("id"),
)
_QUEUED = text("status = 'queued'")
Index(
    "ix_rollouts_claim",
    rollouts.c.priority.desc(),
    rollouts.c.seq,
    sqlite_where=_QUEUED,
    postgresql_where=_QUEUED,
)
Index(
    "ix_rollouts_claim_of_run",
    rollouts.c.run_id,
    rollouts.c.priority.desc(),
    rollouts.c.seq,
    sqlite_where=_QUEUED,
    postgresql_where=_QUEUED,
)
Index("ix_rollouts_order", rollouts.c.run_id, rollouts.c.step, rollouts.c.group_id, rollouts.c.sibling)
Index("ix_rollouts_finished", rollouts.c.id, rollouts.c.status)
_ENDED = text("finish_order IS NOT NULL")
Index(
    "ix_rollouts_finish_order",
    rollouts.c.run_id,
    rollouts.c.finish_order,
    unique=True,
    sqlite_where=_ENDED,
    postgresql_where=_ENDED,
)
_AT_WORK = text("status = 'running'")
Index(
    "ix_rollouts_at_work",
    rollouts.c.run_id,
    rollouts.c.mode,
    rollouts.c.status,  # the same in every entry; with it the index alone answers
    sqlite_where=_AT_WORK,
    postgresql_where=_AT_WORK,
)

turns = Table(
    "turns",
    metadata,
    Column("run_id", Text, primary_key=True),
    _number("served"),  # number of the run's newest claim among all claims
)

attempts = Table(
    "attempts",
    metadata,
    _seq(),
    _text("id"),
    _text("rollout_id"),
    _number("number"),
    _text("worker"),
    _text("status"),
    _time("lease_until"),
    _time("started_at"),
    Column("ended_at", Float),
    Column("outcome", Text),  # None on an ended attempt: cancelled, or given back
    Column("detail", Text),
    _text("key_hash"),  # SHA-256 of the rollout key, hexadecimal
    _number("next_order"),  # order of the next call that is admitted
    _number("next_index"),  # step index of the next call that overlaps with none
    UniqueConstraint("id"),
    UniqueConstraint("key_hash"),
    UniqueConstraint("rollout_id", "number"),
)
_RUNNING = text("status = 'running'")
Index("ix_attempts_lease", attempts.c.lease_until, sqlite_where=_RUNNING, postgresql_where=_RUNNING)

calls = Table(
    "calls",
    metadata,
    _seq(),
    _text("id"),
    _text("attempt_id"),
    _text("rollout_id"),
    _text("policy"),
    _text("component"),
    _text("dialect"),
    _number("order"),
    _number("index"),
    Column("parent_call_id", Text),
    _number("prompt_offset"),
    Column("suffix_ids", LargeBinary, nullable=False),  # int32
    Column("sampled_ids", LargeBinary, nullable=False),  # int32
    Column("logprobs", LargeBinary, nullable=False),  # float32
    _number("version_from"),
    _number("version_to"),
    _text("status"),
    Column("finish_reason", Text),
    _text("request"),  # JSON
    Column("response", Text),  # JSON
    _text("request_hash"),
    _text("requested_sampling"),  # JSON
    _text("used_sampling"),  # JSON
    Column("parent_span", Text),
    Column("error", Text),
    _time("admitted_at"),
    Column("first_token_at", Float),
    Column("finished_at", Float),
    _flag("trainable"),
    _text("meta"),  # JSON
    UniqueConstraint("attempt_id", "id"),
)
Index("ix_calls_rollout_id_order", calls.c.rollout_id, calls.c.order)

rewards = Table(
    "rewards",
    metadata,
    _seq(),
    _text("id"),
    _text("rollout_id"),
    _text("attempt_id"),
    _text("name"),
    _time("value"),
    _text("target"),
    _text("target_id"),
    _text("source"),
    _time("created_at"),
    _flag("stale"),
    UniqueConstraint("id"),
)
Index("ix_rewards_rollout_id_attempt_id", rewards.c.rollout_id, rewards.c.attempt_id)

spans = Table(
    "spans",
    metadata,
    _seq(),
    _text("trace_id"),
    _text("span_id"),
    Column("parent_span_id", Text),
    Column("rollout_id", Text),
    Column("attempt_id", Text),
    _text("name"),
    _text("kind"),
    _number("start_ns"),
    _number("end_ns"),
    Column("call_id", Text),
    _text("component"),
    _text("status"),
    _text("attributes"),  # JSON
    UniqueConstraint("trace_id", "span_id"),
)
Index("ix_spans_rollout_id_start_ns", spans.c.rollout_id, spans.c.start_ns)

batches = Table(
    "batches",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    _number("step"),
    _text("rollout_ids"),  # JSON list
    Column("payload", LargeBinary, nullable=False),
    _time("rate"),
    _text("state"),  # JSON
    _flag("applied"),
    _text("metrics"),  # JSON, of the update once it was applied
    _time("created_at"),
)

versions = Table(
    "versions",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("parent", BigInteger),
    Column("checkpoint", Text),
    _text("metrics"),  # JSON
    _time("created_at"),
)

events = Table(
    "events",
    metadata,
    _seq(),
    _text("run_id"),
    _text("kind"),
    _number("step"),
    _text("body"),  # JSON
    _time("created_at"),
)
Index("ix_events_run_id_kind_seq", events.c.run_id, events.c.kind, events.c.seq)
