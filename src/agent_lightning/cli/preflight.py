"""`agent-lightning preflight FILE`: a few tasks through the real thing, and what they tell. Nothing is kept."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.text import Text

from agent_lightning.cli.training import read_settings, read_splits
from agent_lightning.cli.words import block, console, inert, pairs, plain, shown, table
from agent_lightning.cli.work import lend_provider_keys
from agent_lightning.client.agent import load
from agent_lightning.client.config import read_config
from agent_lightning.errors import SettingError
from agent_lightning.records import Batch, Rollout
from agent_lightning.runner.rewarding import RewardFunction, check_signature
from agent_lightning.train import Session, opened
from agent_lightning.trainer import preflight as judged
from agent_lightning.trainer import reading
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.loop import Splits
from agent_lightning.trainer.preflight import Estimate, Tried
from agent_lightning.trainer.tasks import drawn
from agent_lightning.trainer.wording import Wording, spelled

SIBLINGS = 2
RUN = "preflight"
SAMPLE_TAIL = 3_000  # characters of the sample
LOOK_SECONDS = 0.2  # between two looks at the memory


def preflight(file: Path | None, *, settings: Sequence[str], tasks: int) -> None:
    """Raises SettingError, TaskError... of a wrong file, and RewardError or AgentError for what cannot be trained."""
    config, _ = read_settings(file, None, settings, None)
    if config.work.agent is None:
        raise SettingError('agent is not set: name it as agent = "module:attribute" in the settings file')
    splits = read_splits(config)
    lend_provider_keys()
    agent, reward = load(config.work.agent), load(config.work.reward) if config.work.reward else None
    if reward is not None:
        check_signature(reward)
    out = console()
    out.print(plain(f"trying {min(tasks, len(splits.train))} training tasks, {SIBLINGS} rollouts each"))
    tried = asyncio.run(_try(config, agent, reward, splits, tasks, out))
    guess = judged.estimate(tried)
    _show(out, tried, guess)
    refused = judged.refusal(tried)
    if refused is not None:
        raise refused
    out.print(plain(f"ready: agent-lightning train {file or ''}".rstrip(), "bold"))


async def _try(
    config: TrainConfig, agent: Any, reward: RewardFunction | None, splits: Splits, tasks: int, out: Console
) -> Tried:
    """Everything is started as for a training, in a folder that is removed."""

    def hear(kind: str, step: int, body: Mapping[str, Any]) -> None:
        if kind in ("starting", "alert"):
            out.print(plain(inert(str(body["text"])), "dim"))

    workers = config.runner.workers or tasks * SIBLINGS
    with tempfile.TemporaryDirectory(prefix="agent-lightning-") as temporary:
        trial = replace(
            config,
            runner=replace(config.runner, workers=workers),
            work=replace(config.work, runs=temporary),
            server=replace(config.server, host="127.0.0.1", port=0),
        )
        async with (
            _memory() as memory,
            opened(trial, RunFolder(Path(temporary) / RUN), listeners=(hear,)) as session,
            session.agents(agent, reward),
        ):
            return await _rolled(session, trial, splits, tasks, memory)


async def _rolled(session: Session, config: TrainConfig, splits: Splits, tasks: int, memory: Memory) -> Tried:
    loop = config.loop
    chosen = drawn(splits.train, seed=loop.order_seed, step=0, count=tasks)
    wanted = [
        Rollout(
            id=f"{RUN}.{task.id}.{sibling}",
            run_id=RUN,
            task=task,
            mode="train",
            group_id=task.id,
            sibling=sibling,
            seed=loop.seed,
            max_attempts=config.runner.max_attempts,
            deadline_seconds=config.runner.rollout_deadline,
        )
        for task in chosen
        for sibling in range(SIBLINGS)
    ]
    began = time.monotonic()
    rollouts = await session.runner.run(wanted)
    collected = time.monotonic() - began
    found = await reading.read(session.store, rollouts, config)
    credit = reading.credit(found, config.credit)
    batch = reading.batch(credit, policy=config.replica.policy, max_tokens=config.learner.max_sample_tokens)
    updated = await _timed_update(session, batch)
    return Tried(
        config=config,
        rollouts=rollouts,
        credit=credit,
        calls=await session.store.calls_of([rollout.id for rollout in rollouts]),
        collect_seconds=collected,
        update_seconds=updated,
        memory=memory.highest,
        context_length=session.gateway.config.context_length,
        max_step_timeout=read_config({"max_step_timeout": config.server.max_step_timeout}).max_step_timeout,
        val_tasks=len(splits.val),
        test_tasks=len(splits.test),
    )


async def _timed_update(session: Session, batch: Batch) -> float | None:
    """Seconds of one update at rate 0, which leaves the weights as they are; None without a sample."""
    if not batch.samples:
        return None
    began = time.monotonic()
    await session.replicas.update(batch, rate=0.0, version=1)
    return time.monotonic() - began


@dataclass(slots=True)
class Memory:
    highest: int = 0  # bytes

    def look(self) -> None:
        own = psutil.Process()
        total = 0
        for process in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        self.highest = max(self.highest, total)


@contextlib.asynccontextmanager
async def _memory() -> AsyncIterator[Memory]:
    """Remember the highest resident memory of this process and its children while the block runs."""
    memory = Memory()

    async def watch() -> None:
        while True:
            memory.look()
            await asyncio.sleep(LOOK_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield memory
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def _show(out: Console, tried: Tried, guess: Estimate) -> None:
    out.print()
    seen = table("components whose calls came to the policy", "component", "calls", "trained", "", right=("calls",))
    for part in judged.components(tried):
        trained = "yes" if part.trained == part.calls else f"{part.trained} of {part.calls}" if part.trained else "no"
        seen.add_row(plain(inert(part.name)), str(part.calls), trained, plain(shown(part.why or "", limit=200)))
    block(out, seen)
    _rewards(out, tried)
    _sample(out, tried)
    _costs(out, tried, guess)
    for warning in judged.warnings(tried, guess):
        out.print(plain(f"! {shown(warning, limit=1_000)}", "yellow"))
    out.print()


def _rewards(out: Console, tried: Tried) -> None:
    rewards = table("rollouts", "task", "outcome", "calls", "reward", "parts", right=("calls", "reward"))
    for item in tried.credit.credited:
        rollout = item.trajectory.rollout
        parts = ", ".join(f"{part.name} {part.value:g}" for part in item.trajectory.parts)
        rewards.add_row(
            plain(inert(rollout.task.id)),
            str(rollout.outcome),
            str(len(tried.calls.get(rollout.id, ()))),
            "unknown" if item.reward is None else f"{item.reward:g}",
            plain(inert(parts)),
        )
    block(out, rewards)


def _sample(out: Console, tried: Tried) -> None:
    """One sample, what is trained in ⟦ ⟧ and green."""
    sample = judged.sample_of(tried)
    tokenizer = Wording.of(tried.config.replica.model).tokenizer
    if sample is None or tokenizer is None:
        return
    trained = sum(sample.trained)
    out.print(plain(f"one sample: {len(sample.tokens)} tokens, {trained} of them trained, in ⟦ ⟧", "bold"))
    text = Text()
    for is_trained, run in groupby(range(len(sample.tokens)), key=lambda place: sample.trained[place]):
        words = inert(spelled(tokenizer, [sample.tokens[place] for place in run]))
        text.append(f"⟦{words}⟧" if is_trained else words, "bold green" if is_trained else "")
    left_out = max(0, len(text) - SAMPLE_TAIL)
    if left_out:
        out.print(plain(f"({left_out:,} characters before) …", "dim"))
    block(out, text[left_out:])


def _costs(out: Console, tried: Tried, guess: Estimate) -> None:
    loop = tried.config.loop
    limit = f", ended by time_limit = {loop.time_limit:g} s" if guess.limited else ""
    rows: list[tuple[str, Any]] = [
        (
            "one step",
            f"at most about {_seconds(guess.collect + guess.update)}: {_seconds(guess.collect)} for "
            f"{loop.tasks_per_step * loop.group_size} rollouts, {_seconds(guess.update)} for the update",
        ),
        ("whole run", f"at most about {_seconds(guess.run)} for {loop.total_steps} steps and evaluations{limit}"),
        (
            "memory",
            f"{tried.memory / 2**30:.2f} GiB resident, in this process and its children (shared pages count in each)",
        ),
        ("context", f"{judged.longest(tried)} of {tried.context_length} tokens in the longest prompt with its answer"),
    ]
    if guess.call_p99 is not None:
        rows.append(("slowest calls", f"about {_seconds(guess.call_p99)} (p99); limit {tried.max_step_timeout:g} s"))
    block(out, pairs(rows))


def _seconds(value: float) -> str:
    if value < 90:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 5_400 else f"{value / 3600:.1f} h"
