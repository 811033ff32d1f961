"""Children that die, hang, refuse or outlive their parent, with a host that needs no model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_lightning.errors import CheckpointError, EngineBusy, EngineError, LearnerError, LightningError, ModelError
from agent_lightning.inference.engine import GenerateRequest, Sampling
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.records import Batch
from agent_lightning.replica.pool import ReplicaPool
from agent_lightning.replica.replica import ReplicaConfig, ReplicaLost
from agent_lightning.replica.scripted import scripted_token

SCRIPTED = "agent_lightning.replica.scripted:ScriptedHost"


def config(**changes: Any) -> ReplicaConfig:
    return ReplicaConfig(**{"model": "tiny", "replicas": 2, "learner": LearnerConfig(), **changes})


@contextlib.asynccontextmanager
async def pool(host: str = SCRIPTED, **changes: Any) -> AsyncIterator[ReplicaPool]:
    replicas = ReplicaPool(config(**changes), host=host)
    await replicas.start()
    try:
        yield replicas
    finally:
        await replicas.close()


def request(name: str, *, tokens: int = 3, affinity: str = "", policy: str = "default") -> GenerateRequest:
    return GenerateRequest(
        id=name,
        policy=policy,
        prompt_ids=array("i", [5, 6]),
        sampling=Sampling(max_new_tokens=tokens),
        noise_key=f"0/{name}/0/0/0",
        affinity=affinity,
    )


def batch(rollouts: int = 2, seconds: float = 0.0, waiting: float = 0.0) -> Batch:
    figures = {"scripted.seconds": seconds, "scripted.waiting": waiting}
    return Batch(policy="default", samples=(), rollouts=rollouts, figures=figures)


async def tokens_of(replicas: ReplicaPool, asked: GenerateRequest) -> list[int]:
    return [token async for piece in replicas.generate(asked) for token in piece.ids]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended between open and read
        return False


async def until(condition: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_requests_stream_and_rollouts_stick_to_one_child() -> None:
    async with pool() as replicas:
        expected = [scripted_token(11, index, 0) for index in range(3)]
        answers = await asyncio.gather(
            *(tokens_of(replicas, request(f"r{i}", affinity=f"a{i % 4}")) for i in range(16))
        )
        assert answers == [expected] * 16
        load = await replicas.load()
        assert load.tokens == 48
        assert load.capacity == 64


async def test_a_request_that_is_killed_fails_retryably_and_the_retry_succeeds() -> None:
    async with pool() as replicas:
        running = asyncio.create_task(tokens_of(replicas, request("long", tokens=1_000_000)))
        await until(lambda: replicas._living is not None and sum(line.in_flight for line in replicas._living.lines))
        victims = replicas.pids
        os.kill(victims[0], signal.SIGKILL)
        with pytest.raises(EngineBusy, match="replica"):
            await running
        assert await tokens_of(replicas, request("again")) == [scripted_token(11, i, 0) for i in range(3)]
        assert replicas.restarts == 1
        assert "SIGKILL" in replicas.last_words
        assert not any(alive(pid) for pid in victims)


async def test_a_kill_during_an_update_brings_back_what_was_saved_and_the_repeated_update_gives_the_same(
    tmp_path: Path,
) -> None:
    async with pool() as replicas:
        await replicas.update(batch(), rate=0.5, version=1)
        draft = tmp_path / "draft"
        draft.mkdir()
        await replicas.save(draft)
        draft.rename(tmp_path / "version-1")  # as an owner does who saves atomically
        undisturbed = await replicas.update(batch(3), rate=0.25, version=2)
        await replicas.restore(tmp_path / "version-1")
        update = asyncio.create_task(replicas.update(batch(3, seconds=60), rate=0.25, version=2))
        await asyncio.sleep(0.1)
        os.kill(replicas.pids[1], signal.SIGKILL)
        with pytest.raises(ReplicaLost) as lost:
            await update
        assert lost.value.version == 1
        repeated = await replicas.update(batch(3), rate=0.25, version=2)
        assert repeated == undisturbed
        assert await replicas.serve() == 2
        assert await tokens_of(replicas, request("v2", tokens=1)) == [scripted_token(11, 0, 2)]


async def test_weights_that_died_unsaved_are_reported_to_the_next_who_needs_them() -> None:
    async with pool() as replicas:
        await replicas.update(batch(), rate=1.0, version=1)
        os.kill(replicas.pids[0], signal.SIGKILL)
        await until(lambda: replicas.restarts == 1)
        with pytest.raises(ReplicaLost) as lost:
            await replicas.serve()
        assert lost.value.version == 0
        assert (await replicas.update(batch(), rate=1.0, version=1)).version == 1
        assert await replicas.serve() == 1


async def test_a_child_that_hangs_is_taken_for_dead_after_its_heartbeat() -> None:
    async with pool(heartbeat_seconds=1.2) as replicas:
        stopped = replicas.pids[1]
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(ReplicaLost, match=r"replica 1 .* said nothing for 1\.2 s"):
            await replicas.update(batch(), rate=1.0, version=1)
        assert (await replicas.update(batch(), rate=1.0, version=1)).applied
        assert not alive(stopped)


async def test_whoever_works_or_waits_for_others_is_not_dead_and_a_held_up_loop_kills_nobody() -> None:
    async with pool(heartbeat_seconds=1.2) as replicas:
        assert (await replicas.update(batch(seconds=1.8), rate=1.0, version=1)).applied
        assert (await replicas.update(batch(seconds=1.8, waiting=1.0), rate=1.0, version=2)).applied
        time.sleep(1.5)  # noqa: ASYNC251 - an agent that blocks the event loop
        assert await replicas.serve() == 2
        assert replicas.restarts == 0


async def test_a_killed_template_takes_its_children_along_and_all_come_back() -> None:
    async with pool() as replicas:
        template, children = replicas._nursery.pid, replicas.pids
        assert template is not None
        os.kill(template, signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in children))
        assert len(await tokens_of(replicas, request("r"))) == 3
        assert replicas.restarts == 1
        assert replicas._nursery.pid != template


async def test_refusals_keep_their_class_and_harm_nobody(tmp_path: Path) -> None:
    async with pool() as replicas:
        with pytest.raises(EngineError, match="policy 'other'"):
            await tokens_of(replicas, request("r", policy="other"))
        with pytest.raises(LearnerError, match="1 is next"):
            await replicas.update(batch(), rate=1.0, version=7)
        with pytest.raises(CheckpointError, match="no saved script"):
            await replicas.restore(tmp_path)
        with pytest.raises(LearnerError, match="FileNotFoundError"):
            await replicas.save(tmp_path / "missing")
        assert len(await tokens_of(replicas, request("r"))) == 3
        assert replicas.restarts == 0


async def test_aborting_gives_a_last_piece_and_leaving_early_frees_the_child() -> None:
    async with pool() as replicas:
        pieces = []
        async for piece in replicas.generate(request("a", tokens=1_000_000)):
            pieces.append(piece)
            if len(pieces) == 2:
                await replicas.abort("a")
        assert pieces[-1].finish_reason == "aborted"
        left = replicas.generate(request("b", tokens=1_000_000))
        await anext(left)
        assert (await replicas.load()).running == 1
        await left.aclose()  # type: ignore[attr-defined]
        assert (await replicas.load()).running == 0
        await replicas.abort("unknown")


async def test_children_that_cannot_start_say_why() -> None:
    with pytest.raises(ModelError, match="is no folder"):
        async with pool("agent_lightning.replica.torch_host:TorchHost", model="/nowhere"):
            pass
    with pytest.raises(EngineError, match="AttributeError"):
        async with pool("agent_lightning.replica.scripted:Missing"):
            pass


async def test_a_late_child_is_named_with_what_it_said_last() -> None:
    replicas = ReplicaPool(config(), host=SCRIPTED, start_seconds=0.01)
    with pytest.raises(EngineError, match=r"template of the replicas \(pid \d+\) last said: nothing yet"):
        await replicas.start()
    assert not any(alive(pid) for pid in replicas.pids)


async def test_restarts_that_do_not_help_end_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_lightning.replica.pool.RESTARTS", 1)
    async with pool() as replicas:
        for _ in range(2):
            assert (await replicas.load()).capacity == 64
            os.kill(replicas.pids[0], signal.SIGTERM)
            lost = replicas.pids
            await until(lambda lost=lost: not any(alive(pid) for pid in lost))
        with pytest.raises(LightningError, match=r"lost 2 times in a row.*SIGTERM"):
            await tokens_of(replicas, request("r"))
        assert replicas.restarts == 1


async def test_closing_lets_every_child_stop_by_itself() -> None:
    async with pool(replicas=3) as replicas:
        assert replicas._living is not None
        children = list(replicas._living.children)
    assert [child.ended.result().count("code 0") for child in children] == [1, 1, 1]


async def test_closing_twice_or_from_a_cancelled_task_leaves_no_child() -> None:
    async with pool() as replicas:
        pids = replicas.pids
        running = asyncio.create_task(tokens_of(replicas, request("long", tokens=1_000_000)))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(replicas.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await replicas.close()
        await replicas.close()
        assert not any(alive(pid) for pid in pids)
        with pytest.raises(EngineBusy, match="closed"):
            await running


PARENT = """
import asyncio, sys
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.records import Batch
from agent_lightning.replica.pool import ReplicaPool
from agent_lightning.replica.replica import ReplicaConfig

async def main():
    pool = ReplicaPool(
        ReplicaConfig(model="tiny", replicas=2, learner=LearnerConfig()),
        host="agent_lightning.replica.scripted:ScriptedHost",
    )
    await pool.start()
    assert "torch" not in sys.modules and "transformers" not in sys.modules
    print(*pool.pids, flush=True)
    batch = Batch(policy="default", samples=(), rollouts=1, figures={"scripted.seconds": 60.0})
    await pool.update(batch, rate=1.0, version=1)

asyncio.run(main())
"""


def test_children_do_not_outlive_a_killed_parent_and_the_parent_needs_no_torch() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.2)  # let the update begin: nobody reads the socket now
        parent.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 2.0
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)
