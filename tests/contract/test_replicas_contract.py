"""What every Replicas promises, whatever is behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file

from agent_lightning.errors import CheckpointError, EngineBusy, EngineError, LearnerError, LightningError
from agent_lightning.records import UpdateReport
from agent_lightning.replica import ReplicaLost, Replicas, make_replicas
from agent_lightning.replica.local import LocalReplica
from agent_lightning.replica.pool import ReplicaPool
from replica_cases import SCRIPTED, config, lived, request, written

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOCAL, POOL = "tiny, in this process", "tiny, two processes"
KINDS = {
    "scripted, in this process": lambda: LocalReplica(config(replicas=0), host=SCRIPTED),
    "scripted, two processes": lambda: ReplicaPool(config(), host=SCRIPTED),
    LOCAL: lambda: make_replicas(config(replicas=0)),
    POOL: lambda: make_replicas(config()),
}


Start = Callable[[str], Awaitable[Replicas]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[Start]:
    """Each kind is started once, when it is first needed, because a start costs seconds of imports."""
    running: dict[str, Replicas] = {}

    async def start(kind: str) -> Replicas:
        if kind not in running:
            made = KINDS[kind]()
            await made.start()
            running[kind] = made
        return running[kind]

    yield start
    for made in running.values():
        await made.close()
        await made.close()


@pytest_asyncio.fixture(loop_scope="module", params=KINDS)
async def replicas(request: pytest.FixtureRequest, started: Start) -> Replicas:
    return await started(request.param)


async def next_version(replicas: Replicas) -> int:
    return replicas.version + 1  # type: ignore[attr-defined]


def timeless(report: UpdateReport) -> dict[str, float]:
    return {name: value for name, value in report.figures.items() if name != "learner.seconds"}


async def test_the_same_noise_key_gives_the_same_tokens_whoever_runs_beside_it(replicas: Replicas) -> None:
    alone = await written(replicas, request("alone"))
    crowd = [request(f"crowd {i}", prompt=(2, 3, 4 + i)) for i in range(6)]
    again, *_ = await asyncio.gather(*(written(replicas, one) for one in (request("alone"), *crowd)))
    assert again.ids == alone.ids
    assert len(alone.ids) == len(alone.logprobs) > 0
    assert alone.finish_reason in ("stop", "length")


async def test_an_update_makes_the_next_version_and_serve_shows_it(replicas: Replicas) -> None:
    batch, version = await lived(replicas), await next_version(replicas)
    before = await written(replicas, request("before"))
    report = await replicas.update(batch, rate=1e-2, version=version)
    assert (report.version, report.applied, report.reason) == (version, True, None)
    unserved = await written(replicas, request("before"))
    assert (unserved.ids, unserved.versions) == (before.ids, before.versions)
    assert await replicas.serve() == version
    assert (await written(replicas, request("after"))).versions == {version}


async def test_restoring_what_was_saved_gives_the_same_weights_again(replicas: Replicas, tmp_path: Path) -> None:
    batch, version = await lived(replicas), await next_version(replicas)
    await replicas.save(tmp_path)
    first = await replicas.update(batch, rate=1e-2, version=version)
    await replicas.serve()
    shown = await written(replicas, request("shown"))
    assert await replicas.restore(tmp_path) == version - 1
    assert (await written(replicas, request("old"))).versions == {version - 1}
    second = await replicas.update(batch, rate=1e-2, version=version)
    await replicas.serve()
    again = await written(replicas, request("shown"))
    assert (again.ids, again.logprobs) == (shown.ids, shown.logprobs)
    assert timeless(first) == timeless(second)


async def test_an_aborted_request_ends_with_a_last_piece(replicas: Replicas) -> None:
    pieces = []
    async for piece in replicas.generate(request("endless", tokens=40)):
        pieces.append(piece)
        if len(pieces) == 1:
            await replicas.abort("endless")
    assert pieces[-1].finish_reason in ("aborted", "stop")
    await replicas.abort("unknown")


async def test_leaving_the_iterator_frees_the_engine(replicas: Replicas) -> None:
    pieces = replicas.generate(request("left", tokens=40))
    await anext(pieces)
    await pieces.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(5):
        while (await replicas.load()).running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_refusals_have_their_class_and_the_next_request_is_served(replicas: Replicas, tmp_path: Path) -> None:
    version = await next_version(replicas)
    with pytest.raises(LightningError):
        await written(replicas, request("other", policy="other"))
    with pytest.raises(LearnerError, match="is next"):
        await replicas.update(await lived(replicas), rate=1e-2, version=version + 5)
    with pytest.raises(CheckpointError):
        await replicas.restore(tmp_path)
    with pytest.raises(EngineError, match="running already"):
        await asyncio.gather(written(replicas, request("twice")), written(replicas, request("twice")))
    assert (await written(replicas, request("next"))).ids


async def test_the_load_counts_what_was_sampled(replicas: Replicas) -> None:
    before = await replicas.load()
    answer = await written(replicas, request("counted"))
    after = await replicas.load()
    assert after.tokens - before.tokens >= len(answer.ids)
    assert (after.running, after.waiting) == (0, 0)
    assert after.capacity > 0
    assert after.context_length > 0


async def test_an_update_over_two_processes_is_the_update_of_one(started: Start, tmp_path: Path) -> None:
    local, pool = await started(LOCAL), await started(POOL)
    begin, one, two = (tmp_path / name for name in ("begin", "one", "two"))
    for folder in (begin, one, two):
        folder.mkdir()
    await local.save(begin)
    version = await local.restore(begin)
    assert await pool.restore(begin) == version
    batch = await lived(local)
    reports = [await kind.update(batch, rate=1e-2, version=version + 1) for kind in (local, pool)]
    await local.save(one)
    await pool.save(two)
    for name, value in timeless(reports[0]).items():
        if name == "learner.computed_tokens":  # two ranks pad and pack their shares apart
            continue
        assert reports[1].figures[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    before, alone, together = (adapter(folder) for folder in (begin, one, two))
    assert far(before, alone) > 1e-3
    assert far(alone, together) < 1e-6


async def test_all_ranks_hold_bit_identical_weights(started: Start, tmp_path: Path) -> None:
    pool = await started(POOL)
    assert isinstance(pool, ReplicaPool)
    for _ in range(3):
        await pool.update(await lived(pool), rate=1e-2, version=pool.version + 1)
    assert pool._living is not None
    states = []
    for rank, line in enumerate(pool._living.lines):
        folder = tmp_path / f"{rank}"
        folder.mkdir()
        await line.ask("save", folder=str(folder))
        states.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert states[0] == states[1]


async def test_a_kill_while_it_learns_and_generates_costs_nothing_that_was_committed(
    started: Start, tmp_path: Path
) -> None:
    pool = await started(POOL)
    assert isinstance(pool, ReplicaPool)
    saved, undisturbed, repeated = (tmp_path / name for name in ("saved", "undisturbed", "repeated"))
    for folder in (saved, undisturbed, repeated):
        folder.mkdir()
    await pool.save(saved)
    version, batch, restarts = pool.version, await lived(pool, siblings=8), pool.restarts
    long = dataclasses.replace(batch, samples=batch.samples * 20)
    report = await pool.update(batch, rate=1e-2, version=version + 1)
    await pool.save(undisturbed)
    await pool.restore(saved)

    update = asyncio.create_task(pool.update(long, rate=1e-2, version=version + 1))
    await asyncio.sleep(0.05)
    request_in_flight = asyncio.create_task(written(pool, request("in flight", tokens=60)))  # longer than the wait
    await asyncio.sleep(0.01)
    assert not update.done()
    os.kill(pool.pids[1], signal.SIGKILL)
    with pytest.raises(ReplicaLost) as lost:
        await update
    assert lost.value.version == version
    with pytest.raises(EngineBusy):
        await request_in_flight

    again = await pool.update(batch, rate=1e-2, version=version + 1)
    await pool.save(repeated)
    assert pool.restarts == restarts + 1
    assert timeless(again) == timeless(report)
    assert {p.name: p.read_bytes() for p in repeated.iterdir()} == {
        p.name: p.read_bytes() for p in undisturbed.iterdir()
    }
    assert await pool.serve() == version + 1
    assert (await written(pool, request("in flight"))).versions == {version + 1}


def adapter(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "adapter_model.safetensors")


def far(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Relative distance of all weights taken together."""
    assert one.keys() == other.keys()
    distance = sum(float(((one[name] - other[name]).astype(np.float64) ** 2).sum()) for name in one)
    size = sum(float((one[name].astype(np.float64) ** 2).sum()) for name in one)
    return (distance / size) ** 0.5
