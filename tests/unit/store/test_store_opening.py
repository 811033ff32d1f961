"""Opening: schema, migrations, durability, and trouble told in words."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from agent_lightning.errors import RunInUse, SettingError, StoreError
from agent_lightning.records import Outcome
from agent_lightning.store import migrations, schema
from agent_lightning.store.keys import digest
from agent_lightning.store.opening import bring_forward, connect
from agent_lightning.store.sqlite import SqliteStore
from store_cases import answered, make_call, make_reward, make_rollout


def shape(path: Path) -> list[tuple[str, ...]]:
    """Tables with their columns, indexes with their columns and condition."""
    db = sqlite3.connect(path)
    found: list[tuple[str, ...]] = []
    for kind, name, table, text in db.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    ):
        if table == "alembic_version":
            continue
        pragma = "table_info" if kind == "table" else "index_xinfo"
        columns = [str(row) for row in db.execute(f"PRAGMA {pragma}({name})")]
        found.append((kind, name, table, (text or "").partition(" WHERE ")[2] if kind == "index" else "", *columns))
    db.close()
    return found


def begun(path: Path) -> sqlite3.Connection:
    """A database whose first migration has not run yet."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    return db


async def test_the_first_revision_makes_what_the_schema_says(tmp_path: Path) -> None:
    await (await SqliteStore.open(tmp_path / "fresh.db")).close()
    begun(tmp_path / "migrated.db").close()
    await (await SqliteStore.open(tmp_path / "migrated.db")).close()
    assert shape(tmp_path / "migrated.db") == shape(tmp_path / "fresh.db")
    engine = create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    with engine.connect() as opened:
        context = MigrationContext.configure(opened)
        assert context.get_current_revision() == schema.REVISION
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    db = begun(tmp_path / "store.db")
    db.execute("CREATE TABLE versions (in_the_way)")
    db.close()
    before = shape(tmp_path / "store.db")
    with pytest.raises(StoreError, match=r"store\.db: table versions already exists"):
        await SqliteStore.open(tmp_path / "store.db")
    assert shape(tmp_path / "store.db") == before


def test_there_is_one_newest_revision_and_the_schema_names_it() -> None:
    assert migrations.heads() == [schema.REVISION]


def test_alembic_finds_the_environment_by_itself(tmp_path: Path) -> None:
    from alembic import command

    settings = migrations.config()
    settings.set_main_option("sqlalchemy.url", f"sqlite:///{tmp_path / 'by-hand.db'}")
    command.upgrade(settings, "head")
    assert "calls" in {row[1] for row in shape(tmp_path / "by-hand.db")}
    command.downgrade(settings, "base")
    assert shape(tmp_path / "by-hand.db") == []


async def test_what_was_kept_is_there_after_opening_again(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "deep" / "er" / "store.db")
    await store.enqueue([make_rollout("r1"), make_rollout("r2")])
    claim = await store.claim("w", lease_seconds=60)
    assert claim is not None
    await store.complete(answered((await store.admit(make_call(claim))).call))
    await store.add_reward(make_reward(claim))
    await store.end_attempt(claim.attempt.id, Outcome.OK)
    before = await store.calls("r1"), await store.rewards_of(["r1"]), await store.rollouts("run")
    await store.close()
    store = await SqliteStore.open(tmp_path / "deep" / "er" / "store.db")
    assert (await store.calls("r1"), await store.rewards_of(["r1"]), await store.rollouts("run")) == before
    assert await store.access(claim.key) is not None
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.rollout("r1")


async def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await (await SqliteStore.open(path)).close()
    db = sqlite3.connect(path)
    db.execute("UPDATE alembic_version SET version_num = '9999'")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match=r"store\.db was written by a newer version.*'9999'"):
        await SqliteStore.open(path)


async def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "theirs.db")
    db.execute("CREATE TABLE invoices (id)")
    db.close()
    with pytest.raises(StoreError, match=r"another program.*invoices"):
        await SqliteStore.open(tmp_path / "theirs.db")


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, keep them\n" * 100)
    with pytest.raises(StoreError, match=r"notes\.txt.*choose another path"):
        await SqliteStore.open(path)
    assert path.read_text().startswith("these are my notes")
    with pytest.raises(StoreError, match="store"):
        await SqliteStore.open(path / "below" / "a file.db")
    with pytest.raises(StoreError):
        await SqliteStore.open(tmp_path)


async def test_durability_has_two_values(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="process"):
        await SqliteStore.open(tmp_path / "s.db", durability="forever")  # type: ignore[arg-type]
    for durability, level in (("process", 1), ("power", 2)):
        db = connect(str(tmp_path / "s.db"), durability)  # type: ignore[arg-type]
        assert db.execute("PRAGMA synchronous").fetchone()[0] == level
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        db.close()


async def test_a_database_that_another_process_is_writing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_lightning.store.opening.BUSY_MS", 50)
    store = await SqliteStore.open(tmp_path / "store.db")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"store\.db: database is locked; another process"):
        await store.enqueue([make_rollout("r1")])
    other.execute("ROLLBACK")
    other.close()
    assert await store.enqueue([make_rollout("r1")]) == 1
    await store.close()


async def test_a_full_disk_is_told_and_nothing_is_torn(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    writer = connect(path, "process")
    bring_forward(path, writer)
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages + 4}")
    store = SqliteStore(path, writer, None, clock=lambda: 1.0, new_id=lambda: "a", live_reward_seconds=1.0)
    assert await store.enqueue([make_rollout("r1")]) == 1
    big = [make_rollout(f"big{n}", detail="x" * 9_000) for n in range(5)]
    with pytest.raises(StoreError, match=r"store\.db.*free some space"):
        await store.enqueue(big)
    assert [r.id for r in await store.rollouts("run")] == ["r1"]
    await store.close()


async def test_only_the_hash_of_a_key_is_kept(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    claim = await store.start_live(make_rollout("r1", mode="live"), "w", lease_seconds=60)
    await store.close()
    kept = (tmp_path / "store.db").read_bytes()
    assert claim.key.rpartition(".")[2].encode() not in kept
    assert digest(claim.key).encode() in kept
    assert claim.key.startswith(f"alr-{claim.attempt.id}.")


async def test_loops_of_several_threads_share_one_store(tmp_path: Path) -> None:
    """The server's loop queues, three workers' loops claim and end, the trainer's loop waits for all of them."""
    store = await SqliteStore.open(tmp_path / "store.db")
    names = [f"r{n}" for n in range(60)]
    claimed: list[str] = []

    async def work(worker: str) -> None:
        while (claim := await store.claim(worker, lease_seconds=60, wait_seconds=1.0)) is not None:
            claimed.append(claim.rollout.id)
            await store.complete(answered((await store.admit(make_call(claim))).call))
            await store.end_attempt(claim.attempt.id, Outcome.OK)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(f"w{n}"))) for n in range(3)]
    for thread in threads:
        thread.start()
    for start in range(0, 60, 10):
        await store.enqueue([make_rollout(name) for name in names[start : start + 10]])
    over: set[str] = set()
    async with asyncio.timeout(30):
        while len(over) < 60:
            over = await store.finished(names, wait_seconds=5)
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
    assert sorted(claimed) == sorted(names)
    await store.close()


async def test_the_log_is_moved_into_the_file_beside_the_writer(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    for start in range(0, 6_000, 500):
        await store.enqueue([make_rollout(f"r{number}") for number in range(start, start + 500)])
    for _ in range(1_000):
        if (tmp_path / "store.db").stat().st_size >= 1_000_000:
            break
        await asyncio.sleep(0.01)
    assert (tmp_path / "store.db").stat().st_size >= 1_000_000
    await store.close()
    assert not (tmp_path / "store.db-wal").exists()


SECOND_TRAINER = """
import asyncio, sys
from agent_lightning.store.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    try:
        await store.open_run("run", {}, holder="trainer B", lease_seconds=30)
        print("opened")
    except Exception as error:
        print(type(error).__name__, error)
    await store.close()

asyncio.run(main())
"""


async def test_a_second_process_cannot_open_a_run_that_is_held(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    await store.open_run("run", {}, holder="trainer A on host", lease_seconds=60)

    def second() -> str:
        return subprocess.run(
            [sys.executable, "-c", SECOND_TRAINER, str(path)], capture_output=True, text=True, timeout=60, check=True
        ).stdout

    answer = await asyncio.to_thread(second)
    assert answer.startswith("RunInUse run 'run' is held by trainer A on host since 2")
    await store.release_run("run", holder="trainer A on host")
    assert await asyncio.to_thread(second) == "opened\n"
    with pytest.raises(RunInUse, match="trainer B"):
        await store.open_run("run", {}, holder="trainer A on host", lease_seconds=60)
    await store.close()


QUICK = """
import asyncio, sys, time
from agent_lightning.store.sqlite import SqliteStore

async def main():
    spent = []
    for _ in range(5):
        started = time.process_time()
        store = await SqliteStore.open(sys.argv[1])
        spent.append(time.process_time() - started)
        await store.close()
    print(min(spent), "alembic" in sys.modules, "torch" in sys.modules)

asyncio.run(main())
"""


async def test_opening_a_current_database_is_quick_and_needs_no_alembic(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await (await SqliteStore.open(path)).close()
    child = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", QUICK, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    found = child.stdout.split()
    assert float(found[0]) < 0.15
    assert found[1:] == ["False", "False"]
