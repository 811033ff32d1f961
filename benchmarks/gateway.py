"""What the gateway adds to a call, and how many calls a second it serves, with durable capture.

The engine answers at once (128 ids in 8 pieces) to prompts of about 512 ids, so the clock shows the gateway, the
HTTP server and the store (a SQLite file). Clients run in a process of their own. Prints text and one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent_lightning.gateway.app import gateway_app
from agent_lightning.gateway.gateway import Gateway, GatewayConfig
from agent_lightning.gateway.latency import Latencies
from agent_lightning.inference.engine import GenerateRequest, Piece
from agent_lightning.inference.scripted import ScriptedEngine
from agent_lightning.models.chat_template import load_template
from agent_lightning.models.source import resolve
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Outcome, Rollout, Task, nats, token_ids
from agent_lightning.server.serving import bind, serving
from agent_lightning.store.sqlite import SqliteStore

SAMPLED = 128
PIECE = 16  # ids that come together, as from a replica that batches its messages
CALLS_A_ROLLOUT = 4
PROMPT = "The quick brown fox number {0} jumps over the lazy dog near the river bank. " * 24  # about 512 ids


class BurstEngine(ScriptedEngine):
    """The scripted answer in pieces of several ids."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        ids = list(self._answer(request))
        self.requests.clear()
        for start in range(0, len(ids), PIECE):
            last = start + PIECE >= len(ids)
            part = token_ids(ids[start : start + PIECE])
            yield Piece(ids=part, logprobs=nats([-0.5] * len(part)), finish_reason="length" if last else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    in_flight: int
    stream: bool
    calls: int
    requests_per_second: float
    cpu_ms_a_call: float  # of the server's process; steady where the clock is not
    added_p50_ms: float  # measured inside: arrival to answer, less the engine's time
    added_p99_ms: float
    client_p50_ms: float  # measured outside, the client's own work included
    client_p99_ms: float
    grown_kb_a_call: float  # resident memory of the server


def ask(port: int, keys: list[str], calls: int, stream: bool) -> tuple[float, list[float]]:
    """The client process: each key's calls one after the other on a connection of its own, all keys at once.

    Plain sockets: an HTTP library would take more of the processor than the gateway.
    """

    async def one(key: str, number: int, times: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for call in range(calls):
            messages = [{"role": "user", "content": PROMPT.format(f"{number}-{call}")}]
            body = json.dumps({"model": "m", "messages": messages, "max_tokens": SAMPLED, "stream": stream})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
            began = time.perf_counter()
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            status = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert status.startswith(b"http/1.1 200"), status
            if stream:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                await reader.readexactly(int(status.split(b"content-length: ")[1].split(b"\r\n")[0]))
            times.append(time.perf_counter() - began)
        writer.close()
        await writer.wait_closed()

    async def all_of_them() -> tuple[float, list[float]]:
        times: list[float] = []
        began = time.perf_counter()
        await asyncio.gather(*(one(key, number, times) for number, key in enumerate(keys)))
        return time.perf_counter() - began, times

    return asyncio.run(all_of_them())


async def measure(client: Executor, folder: Path, in_flight: int, calls: int, *, stream: bool) -> Figures:
    loop = asyncio.get_running_loop()
    tokenizer = ChatTokenizer.load(resolve("smollm2"))
    store = await SqliteStore.open(folder / f"{in_flight}-{stream}.db")
    said = tokenizer.encode("The answer to this question is simple enough. " * 32)[:SAMPLED]
    engine = BurstEngine(lambda *_: said, policies=["default"])
    numbers = iter(range(1_000_000_000))
    gateway = Gateway(
        store,
        engine,
        tokenizer,
        load_template(tokenizer, datetime.now(UTC)),
        GatewayConfig(),
        clock=time.time,
        new_id=lambda: f"c{next(numbers)}",
    )
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    seconds, times, before, worked = 0.0, [], 0.0, 0.0
    async with serving(gateway_app(gateway), listener):
        for turn in range(1 + max(1, calls // (in_flight * CALLS_A_ROLLOUT))):  # the first one warms up
            keys, attempts = await claims(store, turn, in_flight)
            took, seen = await loop.run_in_executor(client, ask, port, keys, CALLS_A_ROLLOUT, stream)
            for attempt_id in attempts:
                await store.end_attempt(attempt_id, Outcome.OK)
                gateway.forget(attempt_id)
            if turn == 0:
                before, worked = resident_kb(), time.process_time()
                gateway.latencies = Latencies()
            else:
                seconds += took
                times += seen
        worked = time.process_time() - worked
    await gateway.close()
    await store.close()
    return Figures(
        in_flight=in_flight,
        stream=stream,
        calls=len(times),
        requests_per_second=len(times) / seconds,
        cpu_ms_a_call=1000 * worked / len(times),
        added_p50_ms=1000 * (gateway.latencies.quantile(0.5) or 0.0),
        added_p99_ms=1000 * (gateway.latencies.quantile(0.99) or 0.0),
        client_p50_ms=1000 * statistics.median(times),
        client_p99_ms=1000 * sorted(times)[int(0.99 * len(times))],
        grown_kb_a_call=(resident_kb() - before) / len(times),
    )


async def claims(store: SqliteStore, turn: int, count: int) -> tuple[list[str], list[str]]:
    """Keys and attempts of fresh rollouts."""
    await store.enqueue(
        [
            Rollout(
                id=f"r{turn}-{n}",
                run_id="bench",
                task=Task(id=f"t{turn}-{n}", input=n),
                mode="train",
                group_id=f"g{turn}-{n}",
            )
            for n in range(count)
        ]
    )
    made = [await store.claim("bench", lease_seconds=600) for _ in range(count)]
    return [claim.key for claim in made if claim], [claim.attempt.id for claim in made if claim]


def resident_kb() -> float:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform == "darwin" else peak


async def run(calls: int, levels: list[int]) -> list[Figures]:
    made = []
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, spawn) as client:
        for stream in (False, True):
            for in_flight in levels:
                made.append(await measure(client, Path(folder), in_flight, calls, stream=stream))
                print(line(made[-1]), flush=True)
    return made


def line(seen: Figures) -> str:
    kind = "stream" if seen.stream else "plain "
    return (
        f"{kind} {seen.in_flight:4d} in flight  {seen.requests_per_second:7.0f} req/s  "
        f"CPU {seen.cpu_ms_a_call:5.2f} ms a call  "
        f"added p50 {seen.added_p50_ms:6.2f} ms  p99 {seen.added_p99_ms:6.2f} ms  "
        f"seen by the client p50 {seen.client_p50_ms:6.1f} ms  p99 {seen.client_p99_ms:6.1f} ms  "
        f"memory {seen.grown_kb_a_call:5.1f} kB a call"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="a level, about")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[8, 32, 128])
    given = parser.parse_args()
    print(json.dumps([asdict(seen) for seen in asyncio.run(run(given.calls, given.in_flight))]))
