"""Runs to look at: one made by hand, record by record, and one that was really trained."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from agent_lightning.models.source import resolve
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Call, CallStatus, Claim, Outcome, Reward, Rollout, Task, nats, token_ids
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.train import Trainer
from agent_lightning.trainer.folder import RunFolder

os.environ.setdefault("OPENAI_API_KEY", "none-needed")  # as the command line does for its agents

SETTINGS: dict[str, Any] = {"model": "tiny", "total_steps": 4, "warmup_trajectories": 0, "warmup_steps": 0}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"
ESCAPE = "\x1b[31mred\x1b]0;title\x07"


@cache
def tiny() -> ChatTokenizer:
    return ChatTokenizer.load(resolve("tiny"))


@dataclass(frozen=True, kw_only=True)
class Lived:
    """What happened in one rollout; texts in the tiny model's symbols."""

    rollout_id: str
    turns: Sequence[tuple[str, str]] = (("8", "c8"), ("=9", "a9"))  # (user, model)
    parts: Mapping[str, float] = None  # type: ignore[assignment]
    outcome: Outcome = Outcome.OK
    detail: str | None = None
    mode: str = "train"
    step: int = 0
    group: str | None = None
    sibling: int = 0
    task: Task | None = None
    component: str = "solver"


async def live(store: SqliteStore, run_id: str, lived: Lived) -> Claim:
    rollout = Rollout(
        id=lived.rollout_id,
        run_id=run_id,
        task=lived.task or Task(id="digit-8", input="8", meta={"kind": "even"}),
        mode=lived.mode,  # type: ignore[arg-type]
        group_id=lived.group or lived.rollout_id,
        sibling=lived.sibling,
        step=lived.step,
        max_attempts=1,
    )
    await store.enqueue([rollout])
    claim = await store.claim("worker-1", lease_seconds=60.0, run_id=run_id)
    assert claim is not None and claim.rollout.id == lived.rollout_id
    parent: Call | None = None
    for number, (user, model) in enumerate(lived.turns):
        parent = await _turn(store, claim, number, user, model, parent, lived)
    for name, value in (lived.parts or {}).items():
        await store.add_reward(
            Reward(
                id=f"{lived.rollout_id}.{name}",
                rollout_id=lived.rollout_id,
                attempt_id=claim.attempt.id,
                name=name,
                value=value,
                source="reward_fn",
            )
        )
    await store.end_attempt(claim.attempt.id, lived.outcome, detail=lived.detail, result=["done"])
    return claim


async def _turn(
    store: SqliteStore, claim: Claim, number: int, user: str, model: str, parent: Call | None, lived: Lived
) -> Call:
    encode = tiny().encode
    sampled = encode(f"{model}<end>")
    call = Call(
        id=f"{claim.rollout.id}.call-{number}",
        attempt_id=claim.attempt.id,
        rollout_id=claim.rollout.id,
        policy="default",
        component=lived.component,
        dialect="chat",
        order=number,
        index=number,
        parent_call_id=parent.id if parent else None,
        prompt_offset=parent.prompt_offset + len(parent.suffix_ids) + len(parent.sampled_ids) if parent else 0,
        suffix_ids=token_ids(),
        sampled_ids=token_ids(),
        logprobs=nats(),
        version_from=lived.step,
        version_to=lived.step,
        status=CallStatus.RUNNING,
        finish_reason=None,
        request={"messages": [{"role": "user", "content": user}]},
        response=None,
        request_hash=f"hash-{number}",
        requested_sampling={},
        used_sampling={"temperature": 1.0},
    )
    await store.admit(call)
    done = replace(
        call,
        suffix_ids=encode(f"<user>{user}<end><assistant>"),
        sampled_ids=sampled,
        logprobs=nats([-1.0] * len(sampled)),
        response={"choices": [{"message": {"role": "assistant", "content": model}}]},
        finish_reason="stop",
    )
    await store.complete(done)
    return done


def evaluated(rewards: Mapping[str, float], *, kinds: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    values = list(rewards.values())
    score = {
        "success": sum(value >= 1.0 for value in values) / len(values),
        "reward": sum(values) / len(values),
        "n": len(values),
    }
    return {
        "split": "test",
        "seen": score,
        "unseen": None,
        "kinds": kinds or {},
        "failed": {},
        "rewards": rewards,
        **more,
    }


def step_body(**figures: float) -> dict[str, Any]:
    return {"version": 1, "seconds": 2.0, "figures": {"reward.mean": 0.5, "learner.entropy": 1.5, **figures}}


async def _hand_made(folder: RunFolder, *, finished: bool) -> None:
    """Four train rollouts of step 0 in two groups, and a test task that turned from failure to success."""
    store = await SqliteStore.open(folder.store)
    run = folder.name
    await store.open_run(run, SETTINGS, holder="trainer", lease_seconds=60.0)
    folder.create({**SETTINGS, "worker_key": "a-secret-key"})
    group = f"{run}.step-000000.digit-8"
    for sibling, value in enumerate((1.0, 0.0)):
        await live(
            store, run, Lived(rollout_id=f"{group}.{sibling}", group=group, sibling=sibling, parts={"exact": value})
        )
    other = f"{run}.step-000000.digit-9"
    wrong = f"ValueError: {ESCAPE}{HOSTILE}"
    for sibling, outcome in enumerate((Outcome.AGENT_ERROR, Outcome.NO_REWARD)):
        await live(
            store,
            run,
            Lived(rollout_id=f"{other}.{sibling}", group=other, sibling=sibling, outcome=outcome, detail=wrong),
        )
    task = Task(id="t1", input={"q": HOSTILE}, split="test", meta={"kind": HOSTILE})
    before = Lived(
        rollout_id=f"{run}.before-000000.t1", turns=[("8", "c1")], mode="test", parts={"exact": 0.0}, task=task
    )
    after = Lived(
        rollout_id=f"{run}.after-000002.t1", mode="test", step=2, parts={"exact": 1.0}, task=task, component=HOSTILE
    )
    await live(store, run, before)
    kinds = {HOSTILE: {"success": 0.0, "reward": 0.0, "n": 1}}
    await store.add_event(run, "before", 0, evaluated({"t1": 0.0}, kinds=kinds))
    await store.add_event(run, "eval", 0, evaluated({"v1": 0.0, "v2": 0.25}))
    await store.add_event(run, "step", 1, step_body(**{"rollout.dropped.agent_error": 1.0}))
    await store.add_event(run, "step", 2, step_body(**{"learner.kl": float("nan")}))
    for step in (1, 2):
        await store.add_event(run, "alert", step, {"text": f"the sky falls {HOSTILE}"})
    await store.add_event(run, "eval", 2, evaluated({"v1": 1.0, "v2": 0.25}))
    if finished:
        await live(store, run, after)
        kinds = {HOSTILE: {"success": 1.0, "reward": 1.0, "n": 1}}
        await store.add_event(run, "after", 2, evaluated({"t1": 1.0}, kinds=kinds))
    await store.release_run(run, holder="trainer")
    await store.close()


def hand_made(runs: Path, name: str = "made", *, finished: bool = True) -> RunFolder:
    folder = RunFolder(runs / name)
    folder.path.mkdir(parents=True)
    asyncio.run(_hand_made(folder, finished=finished))
    return folder


TRAINED: dict[str, Any] = {
    **SETTINGS,
    "replicas": 0,
    "lora_rank": 0,
    "total_steps": 2,
    "group_size": 4,
    "tasks_per_step": 3,
    "eval_every": 2,
    "learning_rate": 2e-3,
    "entropy_coef": 0.1,
    "max_new_tokens": 4,
}


def graded(task: Any, result: list[str], rollout: Any) -> float:
    """Differs from answer to answer, so that even a model that knows nothing gives a signal."""
    return round(sum(ord(char) for char in result[0]) % 11 / 10, 1)


@cache
def trained_run() -> RunFolder:
    """A run of two steps with the tiny model, made once a test session."""
    from examples.lookup.agent import answer

    runs = Path(tempfile.mkdtemp(prefix="trained-"))
    trainer = Trainer(answer, reward=graded, config={**TRAINED, "runs": str(runs)}, run="trained")
    trainer.fit(["1", "2", "3"], ["4"], ["5", "6"])
    return trainer.folder
