"""A backup beside a server that writes: whole, checked, and never in the place of another file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_lightning.errors import StoreError
from agent_lightning.store.backup import backup
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.store.view import StoreView
from old_stores import at_0001
from store_cases import make_rollout

# Writes as fast as it can, and says what was acknowledged.
WRITER = """
import asyncio, sys
from agent_lightning.records import Outcome
from agent_lightning.store.sqlite import SqliteStore
from store_cases import answered, make_call, make_reward, make_rollout

async def work(store, worker):
    for number in range(10**6):
        name = f"{worker}-{number}"
        claim = await store.start_live(make_rollout(name, mode="live"), worker, lease_seconds=600)
        call = (await store.admit(make_call(claim, "c", request={"text": "x" * 4000}))).call
        await store.complete(answered(call))
        await store.add_reward(make_reward(claim, "w" + name))
        await store.end_attempt(claim.attempt.id, Outcome.OK)
        print(name, flush=True)

async def main():
    store = await SqliteStore.open(sys.argv[1])
    await asyncio.gather(*(work(store, f"w{n}") for n in range(4)))

asyncio.run(main())
"""


def drafts(folder: Path) -> list[Path]:
    return list(folder.glob(".*"))


def acknowledged(said: Path) -> list[str]:
    return said.read_text().rpartition("\n")[0].splitlines()


def test_every_record_that_was_acknowledged_before_is_in_a_copy_made_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_lightning.store.backup.PAGES", 64)
    path, said, out = tmp_path / "store.db", tmp_path / "said", tmp_path / "copy.db"
    places = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with said.open("w") as output:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=output, env={**os.environ, "PYTHONPATH": places}
        )
        try:
            deadline = time.monotonic() + 60
            while said.read_text().count("\n") < 200 and time.monotonic() < deadline:
                time.sleep(0.02)
            before = acknowledged(said)
            told: list[tuple[int, int]] = []

            def moved(done: int, total: int) -> None:
                told.append((done, total))
                time.sleep(0.05)

            copied = backup(path, out, moved)
            after = acknowledged(said)
            assert writer.poll() is None, "it goes on writing"
        finally:
            writer.kill()
            writer.wait(10)
    assert len(before) >= 200 and len(after) > len(before), "the server was not held up"
    assert len(told) > 3 and told[-1][0] == told[-1][1] and told == sorted(told), "the copy never began anew"
    with StoreView(out) as view:
        for name in before:
            assert view.rollout(name).status == "finished"
        calls, rewards = view.calls_of(before), view.rewards_of(before)
        assert all(len(calls[name]) == 1 and calls[name][0].status == "completed" for name in before)
        assert all([reward.id for reward in rewards[name]] == ["w" + name] for name in before)
    assert copied.rows["rollouts"] >= len(before) and copied.bytes == out.stat().st_size
    assert sorted(place.name for place in tmp_path.glob("*copy*")) == ["copy.db"], "one file, no draft"
    db = sqlite3.connect(out)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_a_copy_is_a_store_that_goes_on(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    await store.enqueue([make_rollout("r1")])
    await asyncio.to_thread(backup, tmp_path / "store.db", tmp_path / "copy.db")
    await store.enqueue([make_rollout("r2")])
    await store.close()
    copy = await SqliteStore.open(tmp_path / "copy.db")
    claim = await copy.claim("w", lease_seconds=60)
    assert claim is not None and claim.rollout.id == "r1"
    assert [rollout.id for rollout in await copy.rollouts("run")] == ["r1"]
    await copy.close()


async def test_a_backup_overwrites_nothing(tmp_path: Path) -> None:
    await (await SqliteStore.open(tmp_path / "store.db")).close()
    out = tmp_path / "notes.txt"
    out.write_text("my notes")

    def appears(done: int, total: int) -> None:
        (tmp_path / "late.db").write_text("another one was faster")

    for place, progress in ((out, lambda done, total: None), (tmp_path / "late.db", appears)):
        with pytest.raises(StoreError, match="overwrites nothing"):
            await asyncio.to_thread(backup, tmp_path / "store.db", place, progress)
    assert out.read_text() == "my notes"
    assert (tmp_path / "late.db").read_text() == "another one was faster"
    assert drafts(tmp_path) == []


async def test_a_backup_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing to back up"):
        backup(tmp_path / "none.db", tmp_path / "copy.db")
    (tmp_path / "text.db").write_text("a text, and no database at all " * 100)
    with pytest.raises(StoreError, match=r"text\.db"):
        backup(tmp_path / "text.db", tmp_path / "copy.db")
    store = await SqliteStore.open(tmp_path / "store.db")
    await store.enqueue([make_rollout(f"r{n}") for n in range(3_000)])
    await store.close()
    with pytest.raises(StoreError, match=r"cannot be written|unable to open"):
        backup(tmp_path / "store.db", tmp_path / "no folder" / "copy.db")
    damaged = bytearray((tmp_path / "store.db").read_bytes())
    damaged[200_000:240_000] = b"\xff" * 40_000
    (tmp_path / "damaged.db").write_bytes(damaged)
    with pytest.raises(StoreError, match="damaged"):
        backup(tmp_path / "damaged.db", tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists() and drafts(tmp_path) == []


def test_a_store_of_an_older_version_can_be_backed_up_before_it_is_upgraded(tmp_path: Path) -> None:
    at_0001(tmp_path / "store.db")
    copied = backup(tmp_path / "store.db", tmp_path / "copy.db")
    assert copied.older and copied.rows["rollouts"] == 6
