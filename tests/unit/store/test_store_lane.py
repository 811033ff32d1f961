"""Group commit: many operations in one transaction, each with its own answer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_lightning.errors import NotFound, StoreError
from agent_lightning.records import Outcome
from agent_lightning.store.lane import Lane, Signal
from agent_lightning.store.opening import explainer
from agent_lightning.store.sqlite import SqliteStore
from store_cases import make_rollout


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    made = sqlite3.connect(tmp_path / "lane.db", isolation_level=None, check_same_thread=False)
    made.execute("CREATE TABLE word (word TEXT UNIQUE CHECK (word <> 'forbidden'))")
    return made


@pytest.fixture
async def lane(connection: sqlite3.Connection) -> AsyncIterator[Lane]:
    made = Lane(connection, begin="BEGIN IMMEDIATE", name="test-lane", explain=explainer("lane.db"))
    yield made
    await made.close()


def put(*words: str):
    def operation(db: sqlite3.Connection) -> int:
        for word in words:
            db.execute("INSERT INTO word VALUES (?)", (word,))
        return len(words)

    return operation


def words(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT word FROM word ORDER BY rowid")]


def missing(db: sqlite3.Connection) -> None:
    raise NotFound("no such word")


async def grouped(lane: Lane, *operations) -> list:
    """All of them in one group: the lane is held up until they are queued."""
    gate = threading.Event()
    held = asyncio.create_task(lane.run(lambda db: gate.wait(5)))
    await asyncio.sleep(0.02)
    tasks = [asyncio.create_task(lane.run(operation)) for operation in operations]
    await asyncio.sleep(0.02)
    gate.set()
    await held
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_that_fails_halfway_does_not_sink_the_others(lane: Lane) -> None:
    found = await grouped(lane, put("a"), put("b", "c", "forbidden"), missing, put("d"), put("a"))
    assert (found[0], found[3]) == (1, 1)
    assert isinstance(found[1], StoreError) and "CHECK constraint failed" in str(found[1])
    assert isinstance(found[2], NotFound)
    assert isinstance(found[4], StoreError) and "UNIQUE" in str(found[4])
    assert await lane.run(words) == ["a", "d"]


async def test_a_mistake_in_an_operation_reaches_the_one_who_asked_and_the_lane_goes_on(lane: Lane) -> None:
    def broken(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO word VALUES ('half')")
        raise KeyError("our own mistake")

    found = await grouped(lane, put("a"), broken, put("b"))
    assert isinstance(found[1], KeyError)
    assert await lane.run(words) == ["a", "b"]


async def test_a_group_is_one_transaction(lane: Lane, connection: sqlite3.Connection) -> None:
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    await grouped(lane, *(put(str(number)) for number in range(50)))
    connection.set_trace_callback(None)
    assert seen.count("COMMIT") == 2, "one for the operation that held the lane up, one for the fifty"


async def test_the_answer_comes_after_the_commit(lane: Lane, tmp_path: Path) -> None:
    await lane.run(put("a"))
    other = sqlite3.connect(tmp_path / "lane.db")
    assert words(other) == ["a"]
    other.close()


async def test_when_the_commit_fails_everyone_hears_of_it(lane: Lane, connection: sqlite3.Connection) -> None:
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    found = await grouped(lane, put("x" * 10), put("y" * 50_000), put("z" * 10))
    assert isinstance(found[1], StoreError) and "free some space" in str(found[1])
    assert (found[0], found[2]) == (1, 1), "what fits is kept"
    assert await lane.run(words) == ["x" * 10, "z" * 10]


async def test_a_closed_lane_finishes_what_was_asked_and_takes_no_more(lane: Lane) -> None:
    asked = [asyncio.create_task(lane.run(put(str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    await lane.close()
    assert await asyncio.gather(*asked) == [1] * 20
    with pytest.raises(StoreError, match="closed"):
        await lane.run(words)


async def test_an_operation_whose_asker_left_is_skipped(lane: Lane) -> None:
    gate = threading.Event()
    held = asyncio.create_task(lane.run(lambda db: gate.wait(5)))
    await asyncio.sleep(0.02)
    left = asyncio.create_task(lane.run(put("left")))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    gate.set()
    await held
    assert await lane.run(words) == []


async def test_a_signal_between_looking_and_waiting_is_not_lost() -> None:
    signal = Signal()
    seen = signal.seen
    signal.notify()
    assert await signal.wait(seen, 5.0)
    assert not await signal.wait(signal.seen, 0.01)


async def test_a_signal_wakes_waiters_of_other_loops() -> None:
    signal = Signal()
    woken: list[bool] = []

    def other_loop() -> None:
        woken.append(asyncio.run(signal.wait(0, 5.0)))

    thread = threading.Thread(target=other_loop)
    thread.start()
    here = asyncio.create_task(signal.wait(0, 5.0))
    await asyncio.sleep(0.05)
    signal.notify()
    assert await here
    await asyncio.to_thread(thread.join, 5)
    assert woken == [True]


async def test_what_another_process_queues_is_claimed_at_once(tmp_path: Path) -> None:
    """No waiter polls: SQLite counts foreign commits, and an idle lane looks at the count every 50 ms."""
    store = await SqliteStore.open(tmp_path / "store.db")
    elsewhere = await SqliteStore.open(tmp_path / "store.db")
    waiting = asyncio.create_task(store.claim("w", lease_seconds=60, wait_seconds=10))
    over = asyncio.create_task(store.finished(["r1"], wait_seconds=10))
    await asyncio.sleep(0.2)
    started = time.monotonic()
    await elsewhere.enqueue([make_rollout("r1")])
    claim = await waiting
    assert claim is not None
    await elsewhere.end_attempt(claim.attempt.id, Outcome.OK)
    assert await over == {"r1"}
    assert time.monotonic() - started < 5.0
    for _ in range(500):  # what was remembered of the key is forgotten at the next look
        access = await store.access(claim.key)
        assert access is not None
        if not access.calls_open:
            break
        await asyncio.sleep(0.01)
    assert not access.calls_open
    await store.close()
    await elsewhere.close()


async def test_a_commit_just_after_a_waiter_looked_is_not_missed(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    elsewhere = await SqliteStore.open(tmp_path / "store.db")
    for number in range(20):
        waiting = asyncio.create_task(store.claim("w", lease_seconds=60, wait_seconds=10))
        await asyncio.sleep(0.002 * (number % 5))
        await elsewhere.enqueue([make_rollout(f"r{number}")])
        async with asyncio.timeout(5):
            assert await waiting is not None
    await store.close()
    await elsewhere.close()


async def test_its_own_writes_and_their_move_into_the_file_wake_nobody(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    seen = store._over.seen
    for start in range(0, 5_000, 500):
        await store.enqueue([make_rollout(f"r{number}") for number in range(start, start + 500)])
        await store.rollouts("run", step=1)
    await asyncio.sleep(0.3)
    assert store._over.seen == seen
    await store.close()
