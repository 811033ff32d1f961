"""How many rollouts a second the store remembers: claim, two calls (admit, complete), a reward, the end.

Prints text and one JSON line. `--busy` adds the interpreter work of a gateway beside the store (milliseconds a call).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent_lightning.records import Call, CallStatus, Outcome, Reward, Rollout, Task, nats, token_ids
from agent_lightning.store.sqlite import SqliteStore

PROMPT = "What is 17 times 23? Use the calculator when you need it. " * 8
SUFFIX, SAMPLED, LOGPROBS = token_ids(range(120)), token_ids(range(16)), nats([-0.5] * 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    where: str
    tasks: int  # concurrent
    cycles_per_second: float
    writes_per_second: float
    admit_p50_ms: float
    admit_p99_ms: float


def running_call(rollout_id: str, attempt_id: str, number: int) -> Call:
    return Call(
        id=f"call-{number}",
        attempt_id=attempt_id,
        rollout_id=rollout_id,
        policy="policy",
        component="agent/solver",
        dialect="chat",
        order=0,
        index=0,
        parent_call_id=None,
        prompt_offset=0,
        suffix_ids=array("i"),
        sampled_ids=array("i"),
        logprobs=array("f"),
        version_from=0,
        version_to=0,
        status=CallStatus.RUNNING,
        finish_reason=None,
        request={"model": "m", "messages": [{"role": "user", "content": PROMPT}]},
        response=None,
        request_hash="0" * 64,
        requested_sampling={"temperature": 0.0},
        used_sampling={"temperature": 1.0, "top_p": 1.0},
    )


def burn(milliseconds: float) -> None:
    """Keep the interpreter busy, as a gateway does between its awaits."""
    ends = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < ends:
        pass


async def cycle(store: SqliteStore, worker: str, waits: list[float], busy_ms: float) -> bool:
    claim = await store.claim(worker, lease_seconds=60)
    if claim is None:
        return False
    rollout_id, attempt_id = claim.rollout.id, claim.attempt.id
    for number in range(2):
        assert await store.access(claim.key) is not None
        started = time.perf_counter()
        admitted = await store.admit(running_call(rollout_id, attempt_id, number))
        waits.append(time.perf_counter() - started)
        burn(busy_ms)
        await store.complete(
            replace(
                admitted.call,
                suffix_ids=SUFFIX,
                sampled_ids=SAMPLED,
                logprobs=LOGPROBS,
                response={"choices": [{"message": {"role": "assistant", "content": "calc: 17*23"}}]},
                finish_reason="stop",
            )
        )
    await store.add_reward(
        Reward(id=f"{attempt_id}-r", rollout_id=rollout_id, attempt_id=attempt_id, name="reward", value=1.0)
    )
    await store.end_attempt(attempt_id, Outcome.OK, result="391")
    return True


async def measure(path: str, tasks: int, cycles: int, busy_ms: float) -> Figures:
    store = await SqliteStore.open(path)
    await store.enqueue(
        [
            Rollout(
                id=f"r{i}", run_id="run", task=Task(id=f"t{i}", input={"q": PROMPT}), mode="train", group_id=f"g{i}"
            )
            for i in range(cycles)
        ]
    )
    waits: list[float] = []

    async def work(worker: str) -> None:
        while await cycle(store, worker, waits, busy_ms):
            continue

    started = time.perf_counter()
    await asyncio.gather(*(work(f"w{i}") for i in range(tasks)))
    seconds = time.perf_counter() - started
    await store.close()
    ordered = sorted(waits)
    return Figures(
        where="memory" if path == ":memory:" else "file",
        tasks=tasks,
        cycles_per_second=cycles / seconds,
        writes_per_second=7 * cycles / seconds,
        admit_p50_ms=1000 * statistics.median(ordered),
        admit_p99_ms=1000 * ordered[int(0.99 * len(ordered))],
    )


def figures(cycles: int, busy_ms: float, at_once: Sequence[int]) -> list[Figures]:
    found = []
    for tasks in at_once:
        with tempfile.TemporaryDirectory() as folder:
            for path in (str(Path(folder) / "store.db"), ":memory:"):
                found.append(asyncio.run(measure(path, tasks, cycles, busy_ms)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1500)
    parser.add_argument("--busy", type=float, default=0.0, help="milliseconds of interpreter work a call")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 8, 32])
    given = parser.parse_args()
    found = figures(given.cycles, given.busy, given.tasks)
    print(f"{'where':8}{'tasks':>6}{'cycles/s':>10}{'writes/s':>10}{'admit p50 ms':>14}{'p99 ms':>8}")
    for one in found:
        print(
            f"{one.where:8}{one.tasks:6}{one.cycles_per_second:10.0f}{one.writes_per_second:10.0f}"
            f"{one.admit_p50_ms:14.2f}{one.admit_p99_ms:8.2f}"
        )
    rows = [{name: getattr(one, name) for name in one.__slots__} for one in found]
    print(json.dumps({"benchmark": "store", "busy_ms": given.busy, "figures": rows}))


if __name__ == "__main__":
    main()
