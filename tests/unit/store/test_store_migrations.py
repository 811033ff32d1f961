"""Databases of every earlier version come forward with all that they hold, or stay as they were."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from agent_lightning.errors import RunInUse, StoreError
from agent_lightning.records import CallStatus, Outcome, RolloutStatus, Task, nats, token_ids
from agent_lightning.store import migrations, schema
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.store.upkeep import Upkeep
from agent_lightning.store.view import StoreView
from old_stores import BUILDERS, put
from store_cases import make_rollout

TABLES = ("runs", "rollouts", "attempts", "calls", "rewards", "spans", "batches", "versions", "events")


def content(path: Path) -> dict[str, list[tuple]]:
    db = sqlite3.connect(path)
    found = {table: db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall() for table in TABLES}
    found["alembic_version"] = db.execute("SELECT * FROM alembic_version").fetchall()
    found["schema"] = db.execute("SELECT type, name FROM sqlite_master ORDER BY type, name").fetchall()
    db.close()
    return found


def test_every_earlier_revision_is_tested() -> None:
    released = {script.revision for script in ScriptDirectory.from_config(migrations.config()).walk_revisions()}
    assert set(BUILDERS) == released - {schema.REVISION}


@pytest.mark.parametrize("revision", BUILDERS)
def test_the_old_database_has_rows_in_every_table(tmp_path: Path, revision: str) -> None:
    BUILDERS[revision](tmp_path / "store.db")
    assert all(content(tmp_path / "store.db")[table] for table in TABLES)


@pytest.mark.parametrize("revision", BUILDERS)
async def test_all_that_an_old_database_holds_is_read_through_the_store(tmp_path: Path, revision: str) -> None:
    BUILDERS[revision](tmp_path / "store.db")
    store = await SqliteStore.open(tmp_path / "store.db")
    [run] = await store.runs()
    assert (run["id"], run["settings"], run["holder"]) == ("run", {"seed": 7}, None)
    found = {rollout.id: rollout for rollout in await store.rollouts("run")}
    assert [found[f"r{n}"].status for n in range(1, 6)] == [
        RolloutStatus.FINISHED,
        RolloutStatus.FINISHED,
        RolloutStatus.CANCELLED,
        RolloutStatus.RUNNING,
        RolloutStatus.QUEUED,
    ]
    assert found["r1"].task == Task(id="task-r1", input={"q": "r1"}, meta={"answer": 391})
    assert (found["r1"].result, found["r1"].outcome, found["r1"].cleared_at) == ("391", Outcome.OK, None)
    [call] = await store.calls("r1")
    assert (call.suffix_ids, call.sampled_ids, call.logprobs, call.status) == (
        token_ids([1, 2, 3]),
        token_ids([4, 5]),
        nats([-0.5, -1.5]),
        CallStatus.COMPLETED,
    )
    [reward] = (await store.rewards_of(["r1"]))["r1"]
    assert (reward.id, reward.value, reward.source) == ("w1", 0.75, "reward_fn")
    [span] = await store.spans("r1")
    assert (span.name, span.attributes) == ("solve", {"k": 1})
    [batch] = await store.batches("run", "default", after_version=0)
    assert (batch.rollout_ids, batch.payload, batch.applied) == (("r1", "r2"), b"\x00payload", True)
    [version] = await store.versions("run")
    assert (version.checkpoint, version.metrics) == ("step-000001", {"learner.loss": 0.5})
    assert [event["body"] for event in await store.events("run")] == [{"version": 1}]
    await store.close()


@pytest.mark.parametrize("revision", BUILDERS)
async def test_work_goes_on_in_a_database_that_came_forward(tmp_path: Path, revision: str) -> None:
    """Ended rollouts keep the order of their times, and what ends from now on comes behind them."""
    BUILDERS[revision](tmp_path / "store.db")
    store = await SqliteStore.open(tmp_path / "store.db")
    claim = await store.claim("w", lease_seconds=60)
    assert claim is not None and claim.rollout.id == "r5"
    await store.end_attempt(claim.attempt.id, Outcome.OK)
    await store.end_attempt("a-r4", Outcome.OK)
    assert [rollout.id for rollout in (await store.page("run")).rollouts] == ["r2", "r1", "r3", "r5", "r4"]
    assert [rollout.id for rollout in (await store.page("other")).rollouts] == ["other"]
    await store.enqueue([make_rollout("new", run_id="run")])
    await store.close()


@pytest.mark.parametrize("revision", BUILDERS)
def test_an_old_database_is_not_looked_at_but_told_how_to_bring_it_forward(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "store.db"
    BUILDERS[revision](path)
    before = content(path)
    with pytest.raises(StoreError, match="bring it forward with `agent-lightning upgrade"):
        StoreView(path)
    db = sqlite3.connect(path)
    db.execute("UPDATE runs SET holder = 'elsewhere/1/a', lease_until = 1e9")
    db.commit()
    with pytest.raises(RunInUse, match=r"held by elsewhere/1/a .* older"):
        Upkeep(path, clock=lambda: 1.0)
    db.execute("UPDATE runs SET holder = NULL, lease_until = NULL")
    db.commit()
    db.close()
    assert content(path) == before
    with Upkeep(path):
        pass
    with StoreView(path) as view:
        assert view.run("run")["settings"] == {"seed": 7}


def test_a_newer_database_is_told_apart_from_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    BUILDERS["0001"](path)
    db = sqlite3.connect(path)
    db.execute("UPDATE alembic_version SET version_num = '9999'")
    db.commit()
    db.close()
    before = content(path)
    for opened in (StoreView, Upkeep, lambda place: asyncio.run(SqliteStore.open(place))):
        with pytest.raises(StoreError, match=r"newer version .*'9999'.* go on with that version"):
            opened(path)
    assert content(path) == before


INTERRUPTED = """
import os, signal, sys
from agent_lightning.store import opening

db = opening.connect(sys.argv[1], "process")
left = int(sys.argv[2])

def watch(statement):
    global left
    if statement.lstrip().upper().startswith(("ALTER", "UPDATE", "CREATE", "INSERT", "DELETE", "DROP", "COMMIT")):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

db.set_trace_callback(watch)
opening.bring_forward(sys.argv[1], db)
"""


def killed_at(path: Path, statement: int) -> bool:
    """Whether an upgrade was killed before it executed so many statements that write."""
    command = [sys.executable, "-c", INTERRUPTED, str(path), str(statement)]
    done = subprocess.run(command, check=False, env=os.environ, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def test_an_upgrade_that_is_killed_leaves_the_old_database_and_can_be_done_again(tmp_path: Path) -> None:
    BUILDERS["0001"](tmp_path / "first.db")
    db = sqlite3.connect(tmp_path / "first.db")
    for number in range(1_000):
        put(
            db, "rollouts", id=f"bulk{number}", run_id="run", task_id="t", task='{"id":"t","input":"x"}', mode="train",
            group_id="g", sibling=0, seed=0, step=0, priority=0, status="finished", attempts=1, max_attempts=3,
            deadline_seconds=1.0, result='"' + "y" * 500 + '"', created_at=1.0, finished_at=float(number % 7),
        )  # fmt: skip
    db.commit()
    db.close()
    before = content(tmp_path / "first.db")
    statements = 0
    for statement in (1, 4, 7):  # the eighth is the COMMIT
        path = tmp_path / f"{statement}.db"
        shutil.copy(tmp_path / "first.db", path)
        if not killed_at(path, statement):
            break
        statements += 1
        assert content(path) == before, f"killed at statement {statement}"
    asyncio.run(opened_and_closed(path))
    assert content(path)["alembic_version"] == [(schema.REVISION,)]
    assert statements == 3, "it was killed at three moments"


async def opened_and_closed(path: Path) -> None:
    store = await SqliteStore.open(path)
    assert len((await store.page("run", limit=10_000)).rollouts) == 1_003
    await store.close()
