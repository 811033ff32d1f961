"""START HERE: the training loop. Agents act, rewards become credit, credit becomes new weights, agents act with them.

    rollouts -> trajectories -> credit -> batch -> commit -> update -> checkpoint -> serve

A batch is committed to the store before the weights change, and the weights are saved before the next step begins, so
a process that is killed at any moment goes on from where it was, without sampling anything again.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent_lightning.credit import CreditReport
from agent_lightning.errors import EngineBusy, TrainingStopped
from agent_lightning.inference.engine import EngineLoad
from agent_lightning.records import Batch, PolicyVersion, Rollout, Task, Trajectory
from agent_lightning.replica.replica import ReplicaLost, Replicas
from agent_lightning.runner.queue import RunnerQueue
from agent_lightning.store.store import BatchRecord, Store
from agent_lightning.trainer import guard, reading
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.evaluate import Evaluation, evaluation, rollouts_of
from agent_lightning.trainer.folder import RunFolder, trainer_state
from agent_lightning.trainer.journal import Journal
from agent_lightning.trainer.progress import Position
from agent_lightning.trainer.replay import decode, encode
from agent_lightning.trainer.saving import save
from agent_lightning.trainer.tasks import drawn

REPEATS = 3  # of work whose replicas were lost

T = TypeVar("T")

Changing = Callable[[str], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    train: Sequence[Task]
    val: Sequence[Task] = ()
    test: Sequence[Task] = ()


@dataclass(slots=True, kw_only=True)
class Loop:
    """Takes tasks from `splits`; gives the position it reached; waits for rollouts and updates; ends after
    total_steps, at time_limit, when the task is solved, or with TrainingStopped."""

    run_id: str
    config: TrainConfig
    splits: Splits
    store: Store
    replicas: Replicas
    runner: RunnerQueue
    folder: RunFolder
    journal: Journal
    changing: Changing = field(default=lambda why: nullcontext())  # holds calls while full weights are replaced
    measured: Callable[[], Awaitable[None]] | None = None  # after each validation
    live_figures: Callable[[], Mapping[str, float]] = field(default=dict)  # of the gateway, now
    monotonic: Callable[[], float] = time.monotonic

    async def run(self) -> Position:
        position = await self.recover()
        watch = guard.watched(self.journal.rows("step"), top=self.config.loop.success_reward)
        if self.validates(position, watch):
            position = await self.validate(position)
        while not watch.solved and not position.over(self.config.loop):
            position = await self.step(position, watch)
            if self.validates(position, watch):
                position = await self.validate(position)
        return position

    def validates(self, position: Position, watch: guard.RewardWatch) -> bool:
        """Whether this is a step after which the held-out tasks are measured: every few, and the last."""
        return position.step % self.config.loop.eval_every == 0 or watch.solved or position.over(self.config.loop)

    async def step(self, position: Position, watch: guard.RewardWatch) -> Position:
        """One turn of the circle."""
        began, before = self.monotonic(), await self._load()
        rollouts = await self.collect(position)
        seconds, after = self.monotonic() - began, await self._load()
        trajectories = await reading.read(self.store, rollouts, self.config)
        report = reading.credit(trajectories, self.config.credit_at(position.step))
        await self.store.freeze(rollout.id for rollout in rollouts)
        unjudged = guard.FAILED_SHARE if position.step else 0.0  # a mistake of the reward shows at once
        async with self._discarding("step", position):
            alerts = guard.check_rollouts(rollouts, report, unjudged_share=unjudged)
        batch = reading.batch(
            report,
            policy=self.config.replica.policy,
            max_tokens=self.config.learner.max_sample_tokens,
            algorithm=self.config.algorithm_at(position.step),
            figures={
                "rollout.seconds": seconds,
                **_engine_figures(before, after, seconds),
                **_counted(trajectories, report, position),
            },
        )
        record = await self.commit(position, batch, rollouts)
        position, done = await self.update(position, record, batch, began)
        alerts += [*watch.see(done["figures"]), *guard.check_figures(done["figures"])]
        for alert in alerts:
            await self.journal.write("alert", position.step, {"text": alert})
        watch.updated(applied=done["applied"], reason=done["reason"])
        return position

    async def collect(self, position: Position) -> list[Rollout]:
        """The agents act on this step's tasks: `group_size` siblings each."""
        loop, runner = self.config.loop, self.config.runner
        tasks = drawn(self.splits.train, seed=loop.order_seed, step=position.step, count=loop.tasks_per_step)
        rollouts = []
        for task in tasks:
            group = f"{self.run_id}.{self._label('step', position)}.{task.id}"
            rollouts += [
                Rollout(
                    id=f"{group}.{sibling}",
                    run_id=self.run_id,
                    task=task,
                    mode="train",
                    group_id=group,
                    sibling=sibling,
                    seed=loop.seed,
                    step=position.step,
                    max_attempts=runner.max_attempts,
                    deadline_seconds=runner.rollout_deadline,
                )
                for sibling in range(loop.group_size)
            ]
        return await self.runner.run(rollouts, progress=self._progress("rollouts", position.step))

    async def commit(self, position: Position, batch: Batch, rollouts: Sequence[Rollout]) -> BatchRecord:
        """Write down what the update will be made of, before it is made."""
        trajectories = position.trajectories + batch.rollouts
        record = BatchRecord(
            run_id=self.run_id,
            policy=batch.policy,
            step=position.step,
            version=position.version + 1,
            rollout_ids=tuple(rollout.id for rollout in rollouts),
            payload=encode(batch),
            rate=position.schedule.rate(trajectories),
            state={"trajectories": trajectories},
            applied=False,
        )
        await self.store.commit_batch(record)
        return record

    async def update(
        self, position: Position, record: BatchRecord, batch: Batch, began: float
    ) -> tuple[Position, Mapping[str, Any]]:
        """New weights, saved, told, served; the next position and what the journal says of the step."""
        self.journal.notice("update", {"samples": len(batch.samples)})

        async def made() -> tuple[Position, Mapping[str, Any]]:
            report = await self.replicas.update(batch, rate=record.rate, version=record.version)
            seconds = self.monotonic() - began
            reached = position.after(report, trajectories=int(record.state["trajectories"]), seconds=seconds)
            done = {
                "applied": report.applied,
                "reason": report.reason,
                "version": report.version,
                "seconds": seconds,
                "figures": _finite(
                    {**batch.figures, **report.figures, "learner.rate": record.rate, **self.live_figures()}
                ),
            }
            await save(self.replicas, self.folder, reached, done)
            return reached, done

        position, done = await self._despite_losses(made)
        await self.tell(position, done)
        await self._despite_losses(self.serve)
        self.folder.prune(self.config.loop.keep_checkpoints)
        return position, done

    async def tell(self, position: Position, done: Mapping[str, Any]) -> None:
        """Write down a step whose checkpoint is whole. Saying it twice is harmless."""
        policy, version, figures = self.config.replica.policy, done["version"], done["figures"]
        if done["applied"]:
            await self.store.mark_applied(self.run_id, policy, version, figures)
            await self.store.add_version(
                PolicyVersion(
                    run_id=self.run_id,
                    policy=policy,
                    version=version,
                    parent=version - 1,
                    checkpoint=self.folder.checkpoint(position.step).name,
                    metrics=dict(figures),
                    created_at=time.time(),
                )
            )
        body = {"version": version, "seconds": done["seconds"], "figures": figures}
        await self.journal.write("step", position.step, body)

    async def serve(self) -> None:
        """Agents speak with the new weights from now on. Full weights are replaced in place: calls are held."""
        if self.config.learner.lora_rank == 0:
            async with self.changing("new weights are put in place"):
                await self.replicas.serve()
        else:
            await self.replicas.serve()

    async def validate(self, position: Position) -> Position:
        """Measure the validation split; the checkpoint with the best mean reward so far is the best one."""
        if not self.splits.val:
            self.folder.point("best", self.folder.checkpoint(position.step))
            return position
        told = self.journal.told("eval", position.step)
        if told is None:
            measured = await self.measure(self.splits.val, position, mode="val", label="val")
            told = measured.as_json()
            await self.journal.write("eval", position.step, told)
        reward = float(told["seen"]["reward"])
        if position.best_reward is None or reward > position.best_reward:
            position = position.with_best(reward)
            self.folder.point("best", self.folder.checkpoint(position.step))
        if self.measured is not None:
            await self.measured()
        return position

    async def measure(self, tasks: Sequence[Task], position: Position, *, mode: Any, label: str) -> Evaluation:
        """Greedy rollouts of these tasks with the weights that are being served."""
        rollouts = rollouts_of(
            tasks,
            run_id=self.run_id,
            step=position.step,
            mode=mode,
            label=self._label(label, position),
            seed=self.config.loop.seed,
            max_attempts=self.config.runner.max_attempts,
            deadline_seconds=self.config.runner.rollout_deadline,
        )
        done = await self.runner.run(rollouts, progress=self._progress(f"{label} rollouts", position.step))
        async with self._discarding(label, position):
            guard.check_judged(done)
        return evaluation(
            await reading.read(self.store, done, self.config),
            split=mode,
            step=position.step,
            version=position.version,
            success_reward=self.config.loop.success_reward,
        )

    def _label(self, kind: str, position: Position) -> str:
        """Of this step's rollouts; another one after a stop that discarded them, so that they are taken anew."""
        times = self.journal.discarded(kind, position.step)
        return f"{kind}-{position.step:06d}" + (f".again-{times}" if times else "")

    @asynccontextmanager
    async def _discarding(self, kind: str, position: Position) -> AsyncIterator[None]:
        """A stop within the block is because of these rollouts: a run that goes on must not find them again."""
        try:
            yield
        except TrainingStopped as stop:
            await self.journal.discard(kind, position.step, str(stop))
            raise

    async def recover(self) -> Position:
        """Where the run stands: the newest whole checkpoint, then every committed batch that came after it."""
        start = Position(schedule=self.config.schedule)
        self.folder.sweep()
        checkpoint = self.folder.newest_whole()
        if checkpoint is None:
            await save(self.replicas, self.folder, start)
            self.folder.point("best", self.folder.checkpoint(0))
            return start
        self.folder.point("latest", checkpoint)
        await self._despite_losses(lambda: self.replicas.restore(checkpoint))
        position = start.restored(checkpoint)
        done = trainer_state(checkpoint)["done"]
        if done is not None:
            await self.tell(position, done)
        policy = self.config.replica.policy
        for record in await self.store.batches(self.run_id, policy, after_version=position.version):
            if record.step == position.step:
                position, _ = await self.update(position, record, decode(record.payload), self.monotonic())
        return position

    async def _despite_losses(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work`; if replicas are lost meanwhile, do it again from the latest checkpoint."""
        for left in range(REPEATS, 0, -1):
            try:
                return await work()
            except ReplicaLost as error:
                await self.journal.write("alert", 0, {"text": f"a replica was lost, its work is repeated: {error}"})
                if left == 1:
                    raise
                await self._restored()
        raise AssertionError("unreachable")

    async def _restored(self) -> None:
        latest = self.folder.pointed("latest")
        assert latest is not None, "a run has a checkpoint before its first update"
        for left in range(REPEATS, 0, -1):
            try:
                await self.replicas.restore(latest)
                return
            except ReplicaLost:
                if left == 1:
                    raise

    async def _load(self) -> EngineLoad | None:
        """None while the engine is busy with something else: a figure is no reason to fail."""
        try:
            return await self.replicas.load()
        except EngineBusy:
            return None

    def _progress(self, stage: str, step: int) -> Callable[[int, int], None]:
        return lambda done, total: self.journal.notice(
            "progress", {"stage": stage, "step": step, "done": done, "total": total}
        )


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    """A figure that is not finite is unknown; that an update gave none is told by its reason."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _engine_figures(before: EngineLoad | None, after: EngineLoad | None, seconds: float) -> dict[str, float]:
    """What the engine did while the agents acted; nothing where its counters began anew."""
    if before is None or after is None or after.tokens < before.tokens or seconds <= 0:
        return {}
    return {
        "engine.tokens_per_second": (after.tokens - before.tokens) / seconds,
        "engine.utilization": min(1.0, max(0.0, after.busy_seconds - before.busy_seconds) / seconds),
    }


def _counted(trajectories: Sequence[Trajectory], report: CreditReport, position: Position) -> dict[str, float]:
    """What was left out, and how old the weights were that wrote the steps."""
    ages = [position.version - step.version_to for item in trajectories for step in item.steps]
    return {
        **{f"rollout.dropped.{reason}": float(count) for reason, count in report.dropped.items()},
        "trajectory.cut_steps": float(sum(item.cut for item in trajectories)),
        "policy.staleness": sum(ages) / len(ages) if ages else 0.0,
    }
