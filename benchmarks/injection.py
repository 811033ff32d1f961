"""What injection adds to one LLM call in the agent's process, and what its background thread uses for it.

The openai SDK asks a transport in its own process, which answers at once, so that the clock shows the SDK and us. Three
cases take turns in short blocks: nothing installed; installed, but outside of any rollout; inside a claimed rollout,
each call routed to the gateway's address and recorded (its span goes to a collector in a process of its own). Times are
CPU time of the calling thread, medians over the blocks. Prints text and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

import httpx2
import openai

from agent_lightning.client.config import ClientConfig
from agent_lightning.client.install import install
from agent_lightning.client.outbox import OUTBOX
from agent_lightning.client.session import claimed

CASES = ("bare", "idle", "recorded")
CALL_SECONDS = 0.050  # the call that the overhead is compared with
QUESTION = "The quick brown fox jumps over the lazy dog near the river bank. " * 32  # about 2 kB
MESSAGES: Any = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": QUESTION}]
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Fine. " * 40}}],
    "usage": {"prompt_tokens": 480, "completion_tokens": 80, "total_tokens": 560},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    calls: int  # of each case
    bare_us: float  # the SDK alone, a call
    idle_us: float  # added while no rollout runs
    recorded_us: float  # added inside a claimed rollout, routed and recorded
    recorded_low_us: float  # first quartile over the blocks, each against its neighbour
    recorded_high_us: float  # third quartile
    undisturbed_us: float  # the same from the fastest twentieth of the blocks: what other programs do not slow down
    background_us: float  # CPU of the sending thread, a call
    share_of_50_ms: float  # recorded_us as a share of a call of 50 ms
    lost: int  # spans that were not delivered


class Collector(BaseHTTPRequestHandler):
    """Takes whatever comes."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()


def collect(port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    port.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=collect, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


def block(client: openai.OpenAI, calls: int) -> float:
    """CPU seconds of this thread, a call."""
    began = time.thread_time()
    for _ in range(calls):
        client.chat.completions.create(model="m", messages=MESSAGES)
    return (time.thread_time() - began) / calls


def one_block(case: str, client: openai.OpenAI, calls: int, config: ClientConfig, number: int) -> float:
    if case == "bare":
        return block(client, calls)
    with install():
        if case == "idle":
            return block(client, calls)
        claim = {"rollout_id": f"ro-{number}", "attempt_id": f"at-{number}", "mode": "train", "key": "alr-x"}
        with claimed(claim, config=config) as record:
            seconds = block(client, calls)
        assert record.calls_sent == calls, f"{record.calls_sent} of {calls} calls were routed"
        assert OUTBOX.flush(10.0)
        return seconds


def fastest(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[0]


def measure(rounds: int, calls: int, endpoint: str) -> Figures:
    raw = json.dumps(ANSWER).encode()
    hosts: set[str] = set()

    def answer(request: httpx2.Request) -> httpx2.Response:
        hosts.add(str(request.url.host))
        return httpx2.Response(200, content=raw, headers={"content-type": "application/json"})

    config = ClientConfig(endpoint=endpoint)
    seconds: dict[str, list[float]] = {case: [] for case in CASES}
    background = 0.0
    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with openai.OpenAI(base_url="http://provider.invalid/v1", api_key="sk-x", http_client=http) as client:
        for number in range(-3, rounds):  # the first ones warm up
            for case in CASES[number % 3 :] + CASES[: number % 3]:
                ours, everything = time.thread_time(), time.process_time()
                taken = one_block(case, client, calls, config, number)
                if number < 0:
                    continue
                seconds[case].append(taken)
                if case == "recorded":
                    background += time.process_time() - everything - (time.thread_time() - ours)
    assert hosts == {"provider.invalid", "127.0.0.1"}
    bare = statistics.median(seconds["bare"])
    added = [with_us - without for with_us, without in zip(seconds["recorded"], seconds["bare"], strict=True)]
    low, middle, high = statistics.quantiles(added, n=4)
    return Figures(
        calls=rounds * calls,
        bare_us=1e6 * bare,
        idle_us=1e6 * statistics.median(i - b for i, b in zip(seconds["idle"], seconds["bare"], strict=True)),
        recorded_us=1e6 * middle,
        recorded_low_us=1e6 * low,
        recorded_high_us=1e6 * high,
        undisturbed_us=1e6 * (fastest(seconds["recorded"]) - fastest(seconds["bare"])),
        background_us=1e6 * background / (rounds * calls),
        share_of_50_ms=middle / CALL_SECONDS,
        lost=OUTBOX.lost().get("span", 0),
    )


def text(seen: Figures) -> str:
    return (
        f"a call of the openai SDK alone {seen.bare_us:7.0f} us CPU ({seen.calls} calls a case)\n"
        f"  + installed, no rollout      {seen.idle_us:7.1f} us\n"
        f"  + routed and recorded        {seen.recorded_us:7.1f} us "
        f"(quartiles {seen.recorded_low_us:.0f} to {seen.recorded_high_us:.0f}; "
        f"{100 * seen.share_of_50_ms:.2f} % of a 50 ms call)\n"
        f"    in undisturbed blocks      {seen.undisturbed_us:7.1f} us\n"
        f"  in the background            {seen.background_us:7.1f} us, {seen.lost} spans lost"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--calls", type=int, default=20, help="of each case in a round")
    given = parser.parse_args()
    with collector() as address:
        figures = measure(given.rounds, given.calls, address)
    print(text(figures))
    print(json.dumps(asdict(figures)))
