"""kill -9 at any moment: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from agent_lightning.records import CallStatus, RolloutStatus
from agent_lightning.store.sqlite import SqliteStore

CHILD = """
import asyncio, sys
from agent_lightning.records import Outcome
from agent_lightning.store.sqlite import SqliteStore
from store_cases import answered, make_call, make_reward, make_rollout

def say(*words):
    print(*words, flush=True)

async def work(store, worker, start):
    for number in range(start, 10**6, 4):
        name = f"r{start}-{number}"
        await store.enqueue([make_rollout(name)])
        claim = await store.claim(worker, lease_seconds=600)
        for call_id in ("a", "b"):
            await store.complete(answered((await store.admit(make_call(claim, call_id))).call))
            say("call", claim.rollout.id, claim.attempt.id, call_id)
        await store.add_reward(make_reward(claim, "w" + claim.attempt.id))
        say("reward", claim.rollout.id, claim.attempt.id, "w" + claim.attempt.id)
        await store.end_attempt(claim.attempt.id, Outcome.OK)
        say("end", claim.rollout.id, claim.attempt.id, "ok")

async def main():
    store = await SqliteStore.open(sys.argv[1])
    say("ready")
    await asyncio.gather(*(work(store, f"w{n}", n) for n in range(4)))

asyncio.run(main())
"""


def killed_after(path: Path, seconds: float) -> list[list[str]]:
    """What the child acknowledged before it was killed; a line that was cut is no acknowledgement."""
    places = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    said = path.with_suffix(".said")
    with said.open("w") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], stdout=output, env={**os.environ, "PYTHONPATH": places}
        )
        deadline = time.monotonic() + 60
        while said.stat().st_size == 0 and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    whole = said.read_text().rpartition("\n")[0]
    return [line.split() for line in whole.splitlines()[1:]]


@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store.db"
    said = await asyncio.to_thread(killed_after, path, random.Random(seed).uniform(0.3, 1.2))
    assert sum(line[0] == "end" for line in said) >= 4, "the child was killed before it did anything"
    store = await SqliteStore.open(path)
    names = sorted({line[1] for line in said})
    rollouts = {rollout.id: rollout for rollout in await store.rollouts("run")}
    calls, rewards = await store.calls_of(names), await store.rewards_of(names)
    for kind, rollout_id, attempt_id, what in said:
        if kind == "call":
            assert (attempt_id, what, CallStatus.COMPLETED) in {
                (c.attempt_id, c.id, c.status) for c in calls[rollout_id]
            }
        elif kind == "reward":
            assert [r.id for r in rewards[rollout_id]] == [what]
        else:
            assert rollouts[rollout_id].status is RolloutStatus.FINISHED
            assert len(calls[rollout_id]) == 2
    await store.close()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    attempts = Counter(row[0] for row in db.execute("SELECT rollout_id FROM attempts"))
    db.close()
    assert set(attempts.values()) == {1}, "nobody was claimed twice"
