"""A large store: 2,000 rollouts open, 100,000 spans stored. Memory of the process, and the time to read a rollout's records.

Records are made over HTTP-sized batches by one process, as the server makes them: claim, calls, rewards, spans. Then a
rollout's calls, rewards and spans are read one rollout after the other, alone and beside writers. Prints text and one
JSON line; fails when a limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from agent_lightning.records import Claim, Reward, Rollout, Span, Task, nats, token_ids
from agent_lightning.store.sqlite import SqliteStore
from benchmarks.store import PROMPT, running_call

MEMORY_MB, READ_MS = 400.0, 10.0  # limits
CALLS = 6  # a rollout
TOKENS = 400  # new in each prompt
READS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    rollouts: int  # open: claimed and running
    calls: int
    spans: int
    file_mb: float
    filled_seconds: float
    read_cpu_ms: float  # of the processor, mean of the reads alone
    memory_mb: float  # resident, the highest that was seen
    read_p50_ms: float
    read_p99_ms: float
    beside_p50_ms: float  # the same while eight writers work
    beside_p99_ms: float
    load_average: float  # of the machine over the last minute: above its cores the tail is the queue's, not the store's

    @property
    def missed(self) -> list[str]:
        limits = [("memory_mb", MEMORY_MB)]
        limits += [(name, READ_MS) for name in ("read_p50_ms", "read_p99_ms")]
        return [
            f"{name} is {getattr(self, name):.1f}, above {limit:g}"
            for name, limit in limits
            if getattr(self, name) > limit
        ]


class Memory:
    """The highest resident size that was seen."""

    def __init__(self) -> None:
        self._process, self.highest = psutil.Process(), 0.0

    def look(self) -> None:
        self.highest = max(self.highest, self._process.memory_info().rss / 1e6)


async def fill(store: SqliteStore, rollouts: int, spans: int, memory: Memory) -> list[Claim]:
    claims = []
    for start in range(0, rollouts, 50):
        made = [
            Rollout(
                id=f"r{n}", run_id="run", task=Task(id=f"t{n}", input={"q": PROMPT}), mode="train", group_id=f"g{n}"
            )
            for n in range(start, min(start + 50, rollouts))
        ]
        await store.enqueue(made)
        claimed = await asyncio.gather(*(store.claim("w", lease_seconds=3_600) for _ in made))
        new = [claim for claim in claimed if claim is not None]
        await asyncio.gather(*(live(store, claim, spans // rollouts) for claim in new))
        claims += new
        memory.look()
    return claims


async def live(store: SqliteStore, claim: Claim, spans: int) -> None:
    rollout_id, attempt_id = claim.rollout.id, claim.attempt.id
    for number in range(CALLS):
        call = (await store.admit(running_call(rollout_id, attempt_id, number))).call
        done = replace(
            call,
            suffix_ids=token_ids(range(TOKENS)),
            sampled_ids=token_ids(range(64)),
            logprobs=nats([-0.5] * 64),
            response={"choices": [{"message": {"role": "assistant", "content": PROMPT}}]},
            finish_reason="stop",
        )
        await store.complete(done)
    await store.add_reward(
        Reward(id=f"{attempt_id}-r", rollout_id=rollout_id, attempt_id=attempt_id, name="reward", value=1.0)
    )
    for start in range(0, spans, 25):
        await store.add_spans([span(claim, number) for number in range(start, min(start + 25, spans))])


def span(claim: Claim, number: int) -> Span:
    return Span(
        trace_id=f"{int(claim.rollout.id[1:]):032x}",
        span_id=f"{number:016x}",
        parent_span_id=None,
        rollout_id=claim.rollout.id,
        attempt_id=claim.attempt.id,
        name="chat policy",
        kind="call",
        start_ns=1_700_000_000_000_000_000 + number,
        end_ns=1_700_000_000_000_000_500 + number,
        attributes={"gen_ai.request.model": "policy", "gen_ai.prompt": PROMPT[:400], "tokens": 512},
    )


async def read(store: SqliteStore, ids: Sequence[str], memory: Memory) -> list[float]:
    """Milliseconds of each read of one rollout's records, one rollout after the other."""
    taken = []
    for rollout_id in ids:
        began = time.perf_counter()
        calls, rewards, spans = await asyncio.gather(
            store.calls(rollout_id), store.rewards_of([rollout_id]), store.spans(rollout_id)
        )
        taken.append(1_000 * (time.perf_counter() - began))
        assert len(calls) == CALLS and len(rewards[rollout_id]) == 1 and spans
        memory.look()
    return sorted(taken)


async def write(store: SqliteStore, claims: Sequence[Claim], worker: int) -> None:
    """Heartbeats and spans, as workers send them, until it is cancelled."""
    for number in range(10**9):
        claim = claims[(worker * 97 + number) % len(claims)]
        await store.heartbeat(claim.attempt.id, lease_seconds=3_600)
        await store.add_spans([span(claim, 0)])
        await asyncio.sleep(0.01)


async def measure(path: Path, rollouts: int, spans: int) -> Figures:
    memory, began = Memory(), time.perf_counter()
    store = await SqliteStore.open(path)
    claims = await fill(store, rollouts, spans, memory)
    filled = time.perf_counter() - began
    ids = random.Random(0).choices([claim.rollout.id for claim in claims], k=READS)
    spent = time.process_time()
    alone = await read(store, ids, memory)
    spent = time.process_time() - spent
    writers = [asyncio.create_task(write(store, claims, worker)) for worker in range(8)]
    beside = await read(store, ids, memory)
    for task in writers:
        task.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    await store.close()
    return Figures(
        rollouts=len(claims),
        calls=CALLS * len(claims),
        spans=spans // rollouts * len(claims),
        file_mb=0.0,
        filled_seconds=filled,
        read_cpu_ms=1_000 * spent / READS,
        memory_mb=memory.highest,
        read_p50_ms=statistics.median(alone),
        read_p99_ms=alone[int(0.99 * len(alone))],
        beside_p50_ms=statistics.median(beside),
        beside_p99_ms=beside[int(0.99 * len(beside))],
        load_average=os.getloadavg()[0],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=2_000)
    parser.add_argument("--spans", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        found = asyncio.run(measure(path, given.rollouts, given.spans))
        found = replace(found, file_mb=path.stat().st_size / 1e6)
    print(
        f"{found.rollouts:,} rollouts open, {found.calls:,} calls, {found.spans:,} spans; file {found.file_mb:.0f} MB"
    )
    print(f"memory of the process: {found.memory_mb:.0f} MB (limit {MEMORY_MB:.0f})")
    print(f"a rollout's records: p50 {found.read_p50_ms:.2f} ms, p99 {found.read_p99_ms:.2f} ms (limit {READ_MS:.0f})")
    print(f"of the processor: {found.read_cpu_ms:.2f} ms a read")
    print(
        f"beside eight writers: p50 {found.beside_p50_ms:.2f} ms, p99 {found.beside_p99_ms:.2f} ms; load {found.load_average:.1f}"
    )
    rows = {name: getattr(found, name) for name in found.__slots__}
    print(json.dumps({"benchmark": "store_size", "figures": rows, "missed": found.missed}))
    if found.missed:
        sys.exit("; ".join(found.missed))


if __name__ == "__main__":
    main()
