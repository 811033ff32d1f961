"""Composition root: one training from its settings, with everything that it needs started and stopped.

`Trainer(agent, reward=..., config=...).fit(train, val, test)` and `agent-lightning train FILE` are the same thing;
`agent-lightning serve FILE` is it without agents of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from agent_lightning.client.config import read_config
from agent_lightning.errors import LightningError, SettingError, TrainingStopped
from agent_lightning.gateway.gateway import Gateway
from agent_lightning.gateway.latency import figures as gateway_figures
from agent_lightning.gateway.sampling import GatewayConfig
from agent_lightning.gateway.upstreams import Upstreams
from agent_lightning.models.chat_template import load_template
from agent_lightning.models.models import read_card
from agent_lightning.models.source import resolve
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Split
from agent_lightning.replica import Replicas, make_replicas
from agent_lightning.replica.shares import physical_cores
from agent_lightning.runner.queue import RunnerQueue
from agent_lightning.runner.rewarding import RewardFunction, check_signature
from agent_lightning.runner.worker import Worker, WorkerConfig
from agent_lightning.server.access import Keys, check_binding
from agent_lightning.server.app import make_app
from agent_lightning.server.keyring import FILE as KEYS_FILE
from agent_lightning.server.serving import bind, serving
from agent_lightning.server.state import ServerState
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.trainer import report
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.holding import background, held
from agent_lightning.trainer.journal import Journal, Listener
from agent_lightning.trainer.loop import Loop, Splits
from agent_lightning.trainer.progress import Position
from agent_lightning.trainer.tasks import as_tasks, check_disjoint

CONTEXT = 4096  # tokens, where the model allows more and nothing else is set
DRAIN_SECONDS = 60.0  # that calls in flight get before full weights are replaced

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    run: Path  # the run's folder
    best: Path  # checkpoint with the best validation reward
    before: Mapping[str, Any] | None  # evaluation of the test split with the base model; None without a test split
    after: Mapping[str, Any] | None  # and with the best checkpoint
    steps: int
    seconds: float  # of training


class Trainer:
    """Trains an agent. Nothing is started before `fit`.

    agent: an agent object, or a function that makes one; None: workers come from outside.
    reward: (task, result, rollout) -> number, dict of numbers, or None for unknown; None: the agent emits its rewards.
    config: settings by their names, a TrainConfig, or the path of a TOML file.
    run: name of the run; the name of a run that was interrupted takes it up again.
    """

    def __init__(
        self,
        agent: Any = None,
        *,
        reward: RewardFunction | None = None,
        config: TrainConfig | Mapping[str, Any] | str | Path,
        run: str | None = None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        if reward is not None:
            check_signature(reward)
        if isinstance(config, str | Path):
            config = TrainConfig.read(file=Path(config))
        elif isinstance(config, Mapping):
            config = TrainConfig.read(config)
        self.agent, self.reward, self.config = agent, reward, config
        self.listeners = tuple(listeners)
        self.folder = RunFolder(Path(config.work.runs) / (run or config.work.run or _new_name()))

    def fit(
        self, train_tasks: Iterable[Any], val_tasks: Iterable[Any] = (), test_tasks: Iterable[Any] = ()
    ) -> TrainResult:
        """Train to the end. Tasks are Task records, mappings with an "input", or bare inputs.

        Raises SettingError, TaskError, ModelError, RunInUse, TrainingStopped.
        """
        splits = splits_of(train_tasks, val_tasks, test_tasks)
        return _alone(self._fit(splits))

    async def _fit(self, splits: Splits) -> TrainResult:
        async with (
            opened(self.config, self.folder, listeners=self.listeners) as session,
            session.agents(self.agent, self.reward),
        ):
            return await session.train(splits)


def splits_of(train: Iterable[Any], val: Iterable[Any] = (), test: Iterable[Any] = ()) -> Splits:
    """Tasks by split, each checked, no input in two of them. Raises TaskError."""
    given: dict[Split, list[Any]] = {"train": list(train), "val": list(val), "test": list(test)}
    made = {split: as_tasks(rows, split) if rows or split == "train" else [] for split, rows in given.items()}
    check_disjoint({str(split): tasks for split, tasks in made.items()})
    return Splits(train=made["train"], val=made["val"], test=made["test"])


@dataclass(slots=True, kw_only=True)
class Session:
    """Everything that runs while a training runs; made by `opened`."""

    config: TrainConfig
    folder: RunFolder
    store: SqliteStore
    replicas: Replicas
    gateway: Gateway
    state: ServerState
    runner: RunnerQueue
    journal: Journal
    endpoint: str
    worker_key: str  # of this process's own worker

    @contextlib.asynccontextmanager
    async def agents(self, agent: Any, reward: RewardFunction | None) -> AsyncIterator[Worker | None]:
        """Run this agent on queued rollouts, in this process, while the block runs.

        Raises TrainingStopped when the worker gives up: nobody else would run the rollouts.
        """
        if agent is None or self.config.runner.workers == 0:
            yield None
            return
        server = self.config.server
        client = read_config(
            {
                "endpoint": self.endpoint,
                "api_key": self.worker_key,
                "component": list(self.config.loop.component) or None,
                "max_step_timeout": server.max_step_timeout,
                "retry_strategy": server.retry_strategy,
            }
        )
        worker = Worker(
            agent,
            reward,
            WorkerConfig(client=client, run_id=self.folder.name, slots=self.config.runner.workers),
            notice=lambda text: self.journal.notice("alert", {"text": text}),
        )
        worker.start()
        try:
            async with background(self._until_given_up(worker), "agents' worker"):
                yield worker
        finally:
            self.state.over.set()
            await asyncio.to_thread(worker.stop, 2.0)  # its last messages are answered by this thread's loop

    async def _until_given_up(self, worker: Worker) -> None:
        while True:
            await asyncio.sleep(0.2)
            if worker.error is not None:
                reason = f"the worker that runs the agent gave up: {worker.error}"
                await self.journal.write("alert", len(self.journal.rows("step")), {"text": f"stopped: {reason}"})
                raise TrainingStopped(reason) from worker.error

    async def train(self, splits: Splits) -> TrainResult:
        """Measure, train, restore the best checkpoint, measure again; a report in the end, however it ends."""
        try:
            return await self._trained(splits)
        except TrainingStopped as stop:
            await self.journal.write("alert", len(self.journal.rows("step")), {"text": f"stopped: {stop}"})
            raise
        finally:
            await self._report()

    async def _report(self) -> None:
        try:
            await asyncio.to_thread(report.write, self.folder)
        except (OSError, LightningError) as error:
            self.journal.notice("alert", {"text": f"{self.folder.report} could not be written: {error}"})

    async def _trained(self, splits: Splits) -> TrainResult:
        loop = Loop(
            run_id=self.folder.name,
            config=self.config,
            splits=splits,
            store=self.store,
            replicas=self.replicas,
            runner=self.runner,
            folder=self.folder,
            journal=self.journal,
            changing=lambda why: self.gateway.hold.changing(why, drain_seconds=DRAIN_SECONDS),
            measured=self._report,
            live_figures=self._live_figures,
        )
        wanted, there = self.config.loop.tasks_per_step, len(splits.train)
        if wanted > there:
            await self.journal.note(
                f"tasks_per_step is {wanted}, but there are {there} training tasks: a step takes all"
            )
        before = await self._tested(loop, "before", Position(schedule=self.config.schedule), splits)
        position = await loop.run()
        best = self.folder.pointed("best") or self.folder.checkpoint(position.step)
        await self.replicas.restore(best)
        after = await self._tested(loop, "after", position, splits)
        self.state.over.set()
        return TrainResult(
            run=self.folder.path,
            best=best,
            before=before,
            after=after,
            steps=position.step,
            seconds=position.seconds,
        )

    def _live_figures(self) -> Mapping[str, float]:
        figures = dict(gateway_figures(self.gateway.latencies, self.gateway.counts))
        if lost := sum(self.state.lost.by_kind().values()):
            figures["client.lost"] = float(lost)
        return figures

    async def _tested(self, loop: Loop, label: str, position: Position, splits: Splits) -> Mapping[str, Any] | None:
        """The test split with the weights that are served; a resumed run keeps what it has measured."""
        if not splits.test or not self.config.loop.test_rollouts:
            return None
        told = self.journal.told(label, position.step)
        if told is None:
            measured = await loop.measure(splits.test, position, mode="test", label=label)
            told = measured.as_json()
            await self.journal.write(label, position.step, told)
        return told


@contextlib.asynccontextmanager
async def opened(
    config: TrainConfig, folder: RunFolder, *, listeners: tuple[Listener, ...] = (), port: int = 0
) -> AsyncIterator[Session]:
    """Start store, replicas, gateway and HTTP server; stop them in reverse order whatever happens.

    Raises RunInUse for a run or a port that another process holds, and what the parts raise.
    """
    keys = _keys(config, folder)
    model = resolve(config.replica.model)
    context = _context(config, model)
    speaking = replace(config.gateway, context_length=context)
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(bind(config.server.host, _port(config, port))))
        folder.path.mkdir(parents=True, exist_ok=True)
        store = await SqliteStore.open(
            folder.store, durability=config.server.durability, live_reward_seconds=config.server.reward_deadline
        )
        stack.push_async_callback(store.close)
        await stack.enter_async_context(held(store, folder.name, config.record()))
        await store.break_running("the server was restarted while the call ran")
        folder.create(config.record(), secrets=config.secrets)
        journal = Journal(store, folder.name, folder, listeners)
        await journal.open()
        replicas = make_replicas(
            replace(config.replica, context_length=context),
            says=lambda text: journal.notice("starting", {"text": text}),
        )
        stack.push_async_callback(replicas.close)
        # before the replicas start, which takes long: what it refuses is known at once
        gateway = await _gateway(config, speaking, store, replicas, model, folder.name)
        stack.push_async_callback(gateway.close)
        await replicas.start()
        if reason := gateway.templates.reason:
            await journal.note(reason)
        state = _state(config, folder.name, store, gateway, keys)
        runner = RunnerQueue(store, config.runner, notice=lambda text: journal.notice("alert", {"text": text}))
        await stack.enter_async_context(background(runner.watch_leases(), "lease watch"))
        endpoint = await stack.enter_async_context(serving(make_app(state), listener))
        stack.callback(state.over.set)
        journal.notice("serving", {"endpoint": endpoint, "model": str(model)})
        yield Session(
            config=config,
            folder=folder,
            store=store,
            replicas=replicas,
            gateway=gateway,
            state=state,
            runner=runner,
            journal=journal,
            endpoint=endpoint,
            worker_key=keys.own,
        )


def _state(config: TrainConfig, run_id: str, store: SqliteStore, gateway: Gateway, keys: Keys) -> ServerState:
    return ServerState(
        store=store,
        gateway=gateway,
        run_id=run_id,
        keys=keys,
        client=_for_agents(config),
        capacity=_capacity(config),
        lease_seconds=config.runner.lease_seconds,
        rollout_deadline=config.runner.rollout_deadline,
    )


def _keys(config: TrainConfig, folder: RunFolder) -> Keys:
    """Raises SettingError for an address that others can reach without keys."""
    server = config.server
    file = Path(server.keys_file) if server.keys_file else folder.path.parent / KEYS_FILE
    keys = Keys(worker=server.worker_key, admin=server.admin_key, read=server.read_key, file=file)
    check_binding(server.host, keys, file)
    return keys


async def _gateway(
    config: TrainConfig, speaking: GatewayConfig, store: SqliteStore, replicas: Replicas, model: Path, run_id: str
) -> Gateway:
    """The date that a template may read is the day on which the run was made, whenever it is taken up again."""
    made = next(run["created_at"] for run in await store.runs() if run["id"] == run_id)
    tokenizer, server = ChatTokenizer.load(model), config.server
    return Gateway(
        store,
        replicas,
        tokenizer,
        load_template(tokenizer, datetime.fromtimestamp(made, UTC), server.chat_template),
        speaking,
        clock=time.time,
        new_id=lambda: f"call-{uuid.uuid4().hex}",
        upstreams=Upstreams(server.upstreams, os.environ) if server.upstreams else None,
        capacity=_capacity(config),
    )


def _for_agents(config: TrainConfig) -> Mapping[str, Any]:
    """What a claim tells its worker."""
    told = config.server.client()
    return {
        "component": list(config.loop.component),
        "max_step_timeout": told.max_step_timeout,
        "retry_strategy": told.retry_strategy,
    }


def _capacity(config: TrainConfig) -> int:
    """Calls that the engines of all replicas sample at once."""
    return config.replica.max_sequences * (config.replica.replicas or physical_cores())


def _context(config: TrainConfig, model: Path) -> int:
    longest = read_card(model).context_length
    wanted = config.replica.context_length or min(longest, CONTEXT)
    if wanted > longest:
        raise SettingError(f"context_length is {wanted}, but the model {config.replica.model!r} has {longest}")
    return wanted


def _port(config: TrainConfig, default: int) -> int:
    return default if config.server.port is None else config.server.port


def _new_name() -> str:
    return datetime.now(UTC).strftime("run-%Y%m%d-%H%M%S")


def _alone(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, in a thread of its own where this thread runs a loop already (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    result: list[T] = []
    failure: list[BaseException] = []

    def alone() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=alone, name="training")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
