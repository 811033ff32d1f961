"""Databases as earlier versions left them: made by their migrations alone, with rows in every table."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from alembic import command

from agent_lightning.store import migrations


def made_at(path: Path, revision: str) -> sqlite3.Connection:
    """An empty database of this revision."""
    settings = migrations.config()
    settings.set_main_option("sqlalchemy.url", f"sqlite:///{path}")
    command.upgrade(settings, revision)
    return sqlite3.connect(path)


def put(db: sqlite3.Connection, table: str, **values: Any) -> None:
    names = ", ".join(f'"{name}"' for name in values)
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(values))})", tuple(values.values()))


def at_0001(path: Path) -> None:
    """A run with two ended rollouts (r2 before r1), a cancelled, a running and a queued one; another run with one."""
    db = made_at(path, "0001")
    put(db, "runs", id="run", settings='{"seed":7}', holder=None, held_since=None, lease_until=None, created_at=1.0)
    for name, run, status, finished_at in (
        ("r1", "run", "finished", 30.0),
        ("r2", "run", "finished", 20.0),
        ("r3", "run", "cancelled", 40.0),
        ("r4", "run", "running", None),
        ("r5", "run", "queued", None),
        ("other", "other", "finished", 10.0),
    ):
        task = {"id": f"task-{name}", "input": {"q": name}, "split": "train", "meta": {"answer": 391}}
        put(
            db, "rollouts", id=name, run_id=run, task_id=f"task-{name}", task=json.dumps(task), mode="train",
            group_id=name, sibling=0, seed=0, step=2, priority=0, status=status,
            outcome="ok" if status == "finished" else None, detail=None, attempts=int(status != "queued"),
            max_attempts=3, attempt_id=None if status == "queued" else f"a-{name}", deadline_seconds=600.0,
            result='"391"' if status == "finished" else None, created_at=2.0, finished_at=finished_at, frozen_at=None,
        )  # fmt: skip
        if status != "queued":
            put(
                db, "attempts", id=f"a-{name}", rollout_id=name, number=1, worker="w",
                status="running" if status == "running" else "ended", lease_until=1e12, started_at=3.0,
                ended_at=finished_at, outcome="ok" if status == "finished" else None, detail=None,
                key_hash=f"hash-{name}", next_order=1, next_index=1,
            )  # fmt: skip
    put(
        db, "calls", id="c1", attempt_id="a-r1", rollout_id="r1", policy="default", component="solver", dialect="chat",
        order=0, index=0, parent_call_id=None, prompt_offset=0, suffix_ids=array("i", [1, 2, 3]).tobytes(),
        sampled_ids=array("i", [4, 5]).tobytes(), logprobs=array("f", [-0.5, -1.5]).tobytes(), version_from=1,
        version_to=1, status="completed", finish_reason="stop", request='{"messages":[]}', response='{"choices":[]}',
        request_hash="h", requested_sampling="{}", used_sampling='{"temperature":1.0}', parent_span=None, error=None,
        admitted_at=4.0, first_token_at=5.0, finished_at=6.0, trainable=1, meta="{}",
    )  # fmt: skip
    put(
        db, "rewards", id="w1", rollout_id="r1", attempt_id="a-r1", name="exact", value=0.75, target="rollout",
        target_id="", source="reward_fn", created_at=7.0, stale=0,
    )  # fmt: skip
    put(
        db, "spans", trace_id="1" * 32, span_id="2" * 16, parent_span_id=None, rollout_id="r1", attempt_id="a-r1",
        name="solve", kind="agent", start_ns=1, end_ns=2, call_id="c1", component="solver", status="ok",
        attributes='{"k":1}',
    )  # fmt: skip
    put(
        db, "batches", run_id="run", policy="default", version=1, step=0, rollout_ids='["r1","r2"]',
        payload=b"\x00payload", rate=1e-5, state='{"trajectories":2}', applied=1, metrics='{"learner.loss":0.5}',
        created_at=8.0,
    )  # fmt: skip
    put(
        db, "versions", run_id="run", policy="default", version=1, parent=0, checkpoint="step-000001", metrics="{}",
        created_at=9.0,
    )  # fmt: skip
    put(db, "events", run_id="run", kind="step", step=1, body='{"version":1}', created_at=10.0)
    db.commit()
    db.close()


BUILDERS: Mapping[str, Callable[[Path], None]] = {"0001": at_0001}  # of every released revision but the newest
