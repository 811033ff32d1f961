"""Everything that a store remembers: runs, rollouts, attempts, calls, rewards, spans, batches, versions, events."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SEQ = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: Any, **given: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **given)


def _maybe(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def _attempts() -> None:
    op.create_table(
        "attempts",
        _column("seq", _SEQ, autoincrement=True),
        _column("id", sa.Text()),
        _column("rollout_id", sa.Text()),
        _column("number", sa.BigInteger()),
        _column("worker", sa.Text()),
        _column("status", sa.Text()),
        _column("lease_until", sa.Float()),
        _column("started_at", sa.Float()),
        _maybe("ended_at", sa.Float()),
        _maybe("outcome", sa.Text()),
        _maybe("detail", sa.Text()),
        _column("key_hash", sa.Text()),
        _column("next_order", sa.BigInteger()),
        _column("next_index", sa.BigInteger()),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_attempts")),
        sa.UniqueConstraint("id", name=op.f("uq_attempts_id")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_attempts_key_hash")),
        sa.UniqueConstraint("rollout_id", "number", name=op.f("uq_attempts_rollout_id_number")),
    )
    op.create_index(
        "ix_attempts_lease",
        "attempts",
        ["lease_until"],
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )


def _batches() -> None:
    op.create_table(
        "batches",
        _column("run_id", sa.Text()),
        _column("policy", sa.Text()),
        _column("version", sa.BigInteger(), autoincrement=False),
        _column("step", sa.BigInteger()),
        _column("rollout_ids", sa.Text()),
        _column("payload", sa.LargeBinary()),
        _column("rate", sa.Float()),
        _column("state", sa.Text()),
        _column("applied", sa.Boolean()),
        _column("metrics", sa.Text()),
        _column("created_at", sa.Float()),
        sa.PrimaryKeyConstraint("run_id", "policy", "version", name=op.f("pk_batches")),
    )


def _calls() -> None:
    op.create_table(
        "calls",
        _column("seq", _SEQ, autoincrement=True),
        _column("id", sa.Text()),
        _column("attempt_id", sa.Text()),
        _column("rollout_id", sa.Text()),
        _column("policy", sa.Text()),
        _column("component", sa.Text()),
        _column("dialect", sa.Text()),
        _column("order", sa.BigInteger()),
        _column("index", sa.BigInteger()),
        _maybe("parent_call_id", sa.Text()),
        _column("prompt_offset", sa.BigInteger()),
        _column("suffix_ids", sa.LargeBinary()),
        _column("sampled_ids", sa.LargeBinary()),
        _column("logprobs", sa.LargeBinary()),
        _column("version_from", sa.BigInteger()),
        _column("version_to", sa.BigInteger()),
        _column("status", sa.Text()),
        _maybe("finish_reason", sa.Text()),
        _column("request", sa.Text()),
        _maybe("response", sa.Text()),
        _column("request_hash", sa.Text()),
        _column("requested_sampling", sa.Text()),
        _column("used_sampling", sa.Text()),
        _maybe("parent_span", sa.Text()),
        _maybe("error", sa.Text()),
        _column("admitted_at", sa.Float()),
        _maybe("first_token_at", sa.Float()),
        _maybe("finished_at", sa.Float()),
        _column("trainable", sa.Boolean()),
        _column("meta", sa.Text()),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_calls")),
        sa.UniqueConstraint("attempt_id", "id", name=op.f("uq_calls_attempt_id_id")),
    )
    op.create_index("ix_calls_rollout_id_order", "calls", ["rollout_id", "order"])


def _events() -> None:
    op.create_table(
        "events",
        _column("seq", _SEQ, autoincrement=True),
        _column("run_id", sa.Text()),
        _column("kind", sa.Text()),
        _column("step", sa.BigInteger()),
        _column("body", sa.Text()),
        _column("created_at", sa.Float()),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
    )
    op.create_index("ix_events_run_id_kind_seq", "events", ["run_id", "kind", "seq"])


def _rewards() -> None:
    op.create_table(
        "rewards",
        _column("seq", _SEQ, autoincrement=True),
        _column("id", sa.Text()),
        _column("rollout_id", sa.Text()),
        _column("attempt_id", sa.Text()),
        _column("name", sa.Text()),
        _column("value", sa.Float()),
        _column("target", sa.Text()),
        _column("target_id", sa.Text()),
        _column("source", sa.Text()),
        _column("created_at", sa.Float()),
        _column("stale", sa.Boolean()),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_rewards")),
        sa.UniqueConstraint("id", name=op.f("uq_rewards_id")),
    )
    op.create_index("ix_rewards_rollout_id_attempt_id", "rewards", ["rollout_id", "attempt_id"])


def _rollouts() -> None:
    op.create_table(
        "rollouts",
        _column("seq", _SEQ, autoincrement=True),
        _column("id", sa.Text()),
        _column("run_id", sa.Text()),
        _column("task_id", sa.Text()),
        _column("task", sa.Text()),
        _column("mode", sa.Text()),
        _column("group_id", sa.Text()),
        _column("sibling", sa.BigInteger()),
        _column("seed", sa.BigInteger()),
        _column("step", sa.BigInteger()),
        _column("priority", sa.BigInteger()),
        _column("status", sa.Text()),
        _maybe("outcome", sa.Text()),
        _maybe("detail", sa.Text()),
        _column("attempts", sa.BigInteger()),
        _column("max_attempts", sa.BigInteger()),
        _maybe("attempt_id", sa.Text()),
        _column("deadline_seconds", sa.Float()),
        _maybe("result", sa.Text()),
        _column("created_at", sa.Float()),
        _maybe("finished_at", sa.Float()),
        _maybe("frozen_at", sa.Float()),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_rollouts")),
        sa.UniqueConstraint("id", name=op.f("uq_rollouts_id")),
    )
    op.create_index(
        "ix_rollouts_claim",
        "rollouts",
        [sa.text("priority DESC"), "seq"],
        sqlite_where=sa.text("status = 'queued'"),
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "ix_rollouts_claim_of_run",
        "rollouts",
        ["run_id", sa.text("priority DESC"), "seq"],
        sqlite_where=sa.text("status = 'queued'"),
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_index("ix_rollouts_finished", "rollouts", ["id", "status"])
    op.create_index("ix_rollouts_order", "rollouts", ["run_id", "step", "group_id", "sibling"])


def _runs() -> None:
    op.create_table(
        "runs",
        _column("id", sa.Text()),
        _column("settings", sa.Text()),
        _maybe("holder", sa.Text()),
        _maybe("held_since", sa.Float()),
        _maybe("lease_until", sa.Float()),
        _column("created_at", sa.Float()),
        _maybe("ended_at", sa.Float()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )


def _spans() -> None:
    op.create_table(
        "spans",
        _column("seq", _SEQ, autoincrement=True),
        _column("trace_id", sa.Text()),
        _column("span_id", sa.Text()),
        _maybe("parent_span_id", sa.Text()),
        _maybe("rollout_id", sa.Text()),
        _maybe("attempt_id", sa.Text()),
        _column("name", sa.Text()),
        _column("kind", sa.Text()),
        _column("start_ns", sa.BigInteger()),
        _column("end_ns", sa.BigInteger()),
        _maybe("call_id", sa.Text()),
        _column("component", sa.Text()),
        _column("status", sa.Text()),
        _column("attributes", sa.Text()),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_spans")),
        sa.UniqueConstraint("trace_id", "span_id", name=op.f("uq_spans_trace_id_span_id")),
    )
    op.create_index("ix_spans_rollout_id_start_ns", "spans", ["rollout_id", "start_ns"])


def _versions() -> None:
    op.create_table(
        "versions",
        _column("run_id", sa.Text()),
        _column("policy", sa.Text()),
        _column("version", sa.BigInteger(), autoincrement=False),
        _maybe("parent", sa.BigInteger()),
        _maybe("checkpoint", sa.Text()),
        _column("metrics", sa.Text()),
        _column("created_at", sa.Float()),
        sa.PrimaryKeyConstraint("run_id", "policy", "version", name=op.f("pk_versions")),
    )


_TABLES = (_attempts, _batches, _calls, _events, _rewards, _rollouts, _runs, _spans, _versions)


def upgrade() -> None:
    for create in _TABLES:
        create()


def downgrade() -> None:
    for create in reversed(_TABLES):
        op.drop_table(create.__name__.removeprefix("_"))
