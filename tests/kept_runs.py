"""A run of ten finished steps with texts to find again, for the tests of what is kept and what is deleted."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_lightning.records import Batch, Outcome, PolicyVersion, Sample, Span, Task, nats, token_ids
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.store.store import BatchRecord
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.replay import encode
from store_cases import answered, make_call, make_reward, make_rollout

SETTINGS: dict[str, Any] = {"model": "tiny", "total_steps": 20, "warmup_trajectories": 0, "warmup_steps": 0}
RUN = "kept"
STEPS = 10


def marker(rollout_id: str, where: str) -> str:
    """A text that only this rollout has, only in this place."""
    return f"marker<{rollout_id}|{where}>" + "-filler" * 20


def ids_of(rollout_id: str) -> array[int]:
    """Token ids that only this rollout has."""
    start = 100_000 + 1_000 * sum(ord(letter) * place for place, letter in enumerate(rollout_id, start=1))
    return token_ids(range(start, start + 64))


async def lived(store: SqliteStore, rollout_id: str, **given: Any) -> None:
    """A rollout with two calls, rewards and spans, that quotes itself everywhere."""
    task = Task(
        id=given.pop("task_id", f"task-{rollout_id}"),
        input={"q": marker(rollout_id, "input")},
        meta={"why": marker(rollout_id, "meta")},
    )
    mode = given.pop("mode", "train")
    rollout = make_rollout(rollout_id, run_id=RUN, task=task, mode=mode, **given)
    if mode == "live":
        claim = await store.start_live(rollout, "w", lease_seconds=60)
    else:
        await store.enqueue([rollout])
        claim = await store.claim("w", lease_seconds=60, run_id=RUN)
    assert claim is not None and claim.rollout.id == rollout_id
    for number in range(2):
        call_id = f"{rollout_id}.c{number}"
        request = {"messages": [{"role": "user", "content": marker(rollout_id, f"request-{number}")}]}
        call = (await store.admit(make_call(claim, call_id, request=request, policy="default"))).call
        done = answered(
            call,
            suffix_ids=ids_of(rollout_id),
            sampled_ids=ids_of(rollout_id + "s"),
            logprobs=nats([-0.5] * 64),
            response={"choices": [{"message": {"content": marker(rollout_id, f"response-{number}")}}]},
            error=marker(rollout_id, "error") if number else None,
            requested_sampling={"stop": [marker(rollout_id, "stop")]},
            used_sampling={"temperature": 1.0, "stop": [marker(rollout_id, "stop")]},
        )
        await store.complete(done)
        await store.add_spans([span(rollout_id, claim.attempt.id, number)])
    await store.add_reward(make_reward(claim, f"{rollout_id}.w", 0.5, source=marker(rollout_id, "source")))
    await store.end_attempt(
        claim.attempt.id,
        Outcome.OK,
        detail=marker(rollout_id, "detail"),
        result={"answer": marker(rollout_id, "result")},
    )


def span(rollout_id: str, attempt_id: str, number: int) -> Span:
    return Span(
        trace_id=f"{abs(hash(rollout_id)):032x}"[:32], span_id=f"{number:016x}", parent_span_id=None,
        rollout_id=rollout_id, attempt_id=attempt_id, name=marker(rollout_id, "span"), kind="agent", start_ns=1,
        end_ns=2, attributes={"said": marker(rollout_id, "attribute")},
    )  # fmt: skip


def batch_of(ids: Sequence[str], policy: str = "default") -> bytes:
    samples = tuple(
        Sample(
            rollout_id=each,
            group_id=each,
            tokens=ids_of(each),
            trained=array("b", [1] * 64),
            logprobs=nats([-0.5] * 64),
            advantages=nats([0.1] * 64),
            temperature=1.0,
            rollout_tokens=64,
            version=0,
        )
        for each in ids
    )
    return encode(Batch(policy=policy, samples=samples, rollouts=len(ids)))


async def trained_step(store: SqliteStore, step: int, *, applied: bool = True) -> None:
    """Two rollouts, and the batch that reads them; version step + 1."""
    names = [f"s{step}.{sibling}" for sibling in range(2)]
    for sibling, name in enumerate(names):
        await lived(store, name, step=step, group_id=f"s{step}", sibling=sibling, task_id=f"task-{step}")
    record = BatchRecord(
        run_id=RUN, policy="default", step=step, version=step + 1, rollout_ids=tuple(names), payload=batch_of(names),
        rate=1e-5, state={"trajectories": 2 * step + 2}, applied=False,
    )  # fmt: skip
    await store.commit_batch(record)
    if applied:
        await store.mark_applied(RUN, "default", step + 1, {"learner.loss": 0.1})
        await store.add_version(
            PolicyVersion(
                run_id=RUN, policy="default", version=step + 1, parent=step, checkpoint=f"step-{step + 1:06d}"
            )
        )
        body = {"version": step + 1, "seconds": 1.0, "figures": {"reward.mean": 0.5}}
        await store.add_event(RUN, "step", step + 1, body)


async def make_run(path: Path, *, steps: int = STEPS) -> RunFolder:
    """Steps that were trained, a live rollout, an evaluation at steps 0, 5 and 10, and an alert that quotes `s1.0`."""
    folder = RunFolder(path / RUN)
    folder.create(SETTINGS)
    store = await SqliteStore.open(folder.store)
    await store.open_run(RUN, SETTINGS, holder="trainer", lease_seconds=60)
    for step in range(steps):
        if step % 5 == 0:
            await evaluated(store, step)
        await trained_step(store, step)
    await evaluated(store, steps)
    await lived(store, "live", mode="live")
    quotation = marker("s1.0", "response-1")[:30]
    await store.add_event(RUN, "alert", 2, {"text": f"an answer looks odd: {quotation} ...", "of": "s1.0"})
    await store.add_event(RUN, "note", 2, {"text": "the template is not append-only"})
    await store.release_run(RUN, holder="trainer")
    await store.close()
    for step in (steps - 2, steps - 1, steps):
        place = folder.checkpoint(step)
        place.mkdir()
        (place / "trainer.json").write_text(json.dumps({"position": {"version": step, "step": step}}))
    return folder


async def evaluated(store: SqliteStore, step: int) -> None:
    name = f"{RUN}.val-{step:06d}.task"
    await lived(store, name, mode="val", step=step, task_id="task")
    score = {"success": 0.5, "reward": 0.5, "n": 1}
    body = {"split": "val", "seen": score, "unseen": None, "kinds": {}, "failed": {}, "rewards": {"task": 0.5}}
    await store.add_event(RUN, "eval", step, body)


def found(folder: RunFolder, text: bytes) -> list[str]:
    """Files of the run in which these bytes stand."""
    return sorted(place.name for place in folder.path.rglob("*") if place.is_file() and text in place.read_bytes())
