"""A worker: claims queued rollouts over HTTP, runs the agent on each, judges it, and ends the attempt.

Runs on the base install, in this process or on another machine. Each slot is a thread that claims one rollout after
the other; the agent itself runs in a thread of its own (a task of one long-lived loop if it is async), so that a
hanging agent costs its thread and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_lightning.client import scope
from agent_lightning.client.agent import adapter_for, build, is_factory
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.install import install
from agent_lightning.client.link import Link
from agent_lightning.client.outbox import EXIT_SECONDS, OUTBOX
from agent_lightning.client.rendering import as_json
from agent_lightning.client.session import claimed
from agent_lightning.errors import Fenced, LightningError, RequestError, RewardError, ServerUnreachable, SettingError
from agent_lightning.records import Outcome, Task
from agent_lightning.runner.endings import Ending, brief, ending_of
from agent_lightning.runner.rewarding import RewardFunction, RolloutView, check_signature, judge, messages, parts_of

Notice = Callable[[str], None]
FROM_SERVER = ("component", "max_step_timeout", "retry_strategy")  # settings that a claim brings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    client: ClientConfig
    run_id: str | None = None  # None: whatever the server has
    slots: int = 8  # rollouts at once; 1 for an agent that keeps state and has no factory
    wait_seconds: float = 20.0  # of one long poll
    patience: float = 60.0  # how long an unreachable server is waited for
    name: str | None = None  # None: host and process
    own: frozenset[str] = frozenset()  # FROM_SERVER settings that hold here whatever a claim says

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 1024:
            raise SettingError(f"slots is {self.slots}: wanted 1 to 1024")

    def client_for(self, claim: Mapping[str, Any]) -> ClientConfig:
        """The server's settings where this worker has none of its own: named in `own`, or other than the default."""
        default = ClientConfig()
        ours = {name for name in FROM_SERVER if getattr(self.client, name) != getattr(default, name)} | self.own
        return replace(self.client, **{name: claim[name] for name in FROM_SERVER if name in claim and name not in ours})


class Worker:
    """Runs until `stop()`, until the server says that the run is over, or until it refuses us or stays unreachable:
    then `error` says why."""

    def __init__(
        self, agent: Any, reward: RewardFunction | None, config: WorkerConfig, *, notice: Notice = lambda _: None
    ) -> None:
        if reward is not None:
            check_signature(reward)
        self._agent, self._reward, self._config, self._notice = agent, reward, config, notice
        self._link = Link(config.client.endpoint, config.client.api_key)
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._name = config.name or f"{socket.gethostname()}/{os.getpid()}"
        self._loop_thread: threading.Thread | None = None
        self._slots: list[threading.Thread] = []
        self._installed = contextlib.ExitStack()
        self.error: BaseException | None = None  # why it gave up
        self.finished = 0  # attempts ended

    def start(self) -> None:
        """Begin to claim; returns at once."""
        self._loop = asyncio.new_event_loop()
        self._installed.enter_context(install())
        self._loop_thread = threading.Thread(target=self._run_loop, name="agents-loop", daemon=True)
        self._loop_thread.start()
        count = self._concurrency()
        for number in range(count):
            thread = threading.Thread(target=self._watched_slot, args=(number,), name=f"worker-{number}", daemon=True)
            thread.start()
            self._slots.append(thread)

    def stop(self, timeout: float | None = None) -> None:
        """Claim nothing more; wait for what runs, and for what it has to say, at most `timeout` seconds each."""
        self._stop.set()
        self.join(timeout)
        OUTBOX.flush(EXIT_SECONDS if timeout is None else timeout)
        if self._loop_thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(timeout)
            self._loop_thread = None
        self._link.close()
        self._installed.close()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every slot has ended; whether they have."""
        end = None if timeout is None else time.monotonic() + timeout
        for thread in self._slots:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._slots)

    def _run_loop(self) -> None:
        """Async agents live here; what is left when the worker stops is cancelled."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _concurrency(self) -> int:
        if is_factory(self._agent) or self._config.slots == 1:
            return self._config.slots
        if not adapter_for(self._agent).keeps_state(self._agent):
            return self._config.slots
        self._notice(
            f"{type(self._agent).__qualname__} may keep state between calls, so its rollouts run one at a time: pass a "
            "function that makes a new agent to run several"
        )
        return 1

    def _watched_slot(self, number: int) -> None:
        try:
            self._slot(number)
        except Exception as error:  # a slot that dies unseen would leave the run waiting for it
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Claim nothing more in any slot."""
        self.error = self.error or error
        self._stop.set()

    def _slot(self, number: int) -> None:
        worker, lost_since = f"{self._name}/{number}", None
        while not self._stop.is_set():
            try:
                claim = self._link.claim(
                    worker=worker, run_id=self._config.run_id, wait_seconds=self._config.wait_seconds
                )
                lost_since = None
            except Fenced:  # the run is over: the other slots need not ask, nor wait for a server that goes away
                self._stop.set()
                return
            except ServerUnreachable as error:
                lost_since = lost_since or time.monotonic()
                if time.monotonic() - lost_since > self._config.patience:
                    self._give_up(error)
                self._stop.wait(0.5)
                continue
            if claim is not None:
                self._attempt(claim)

    def _attempt(self, claim: Mapping[str, Any]) -> None:
        """Run one attempt to its end: heartbeats while the agent works, a deadline, one acknowledged end message."""
        run = _Run(self, claim)
        thread = threading.Thread(target=run.go, name=f"agent-{claim['rollout_id']}", daemon=True)
        thread.start()
        deadline = time.monotonic() + float(claim["deadline_seconds"])
        beat = max(0.2, float(claim["lease_seconds"]) / 3)
        while not run.done.wait(min(beat, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                run.abandon()
                seconds = float(claim["deadline_seconds"])
                run.ending = Ending(
                    outcome=Outcome.TIMEOUT, detail=f"the agent did not finish within rollout_deadline = {seconds:g} s"
                )
                break
            if not self._beat(claim):
                run.abandon()
                return
        if run.ending is not None:
            self._end(claim, run.ending)

    def _beat(self, claim: Mapping[str, Any]) -> bool:
        """Whether the attempt is still ours, as far as we know."""
        try:
            self._link.heartbeat(claim["attempt_id"], key=claim["key"])
        except Fenced:
            return False
        except ServerUnreachable as error:
            self._notice(str(error))
        except LightningError as error:
            self._notice(f"attempt {claim['attempt_id']} is given up: {error}")
            return False
        return True

    def _end(self, claim: Mapping[str, Any], ending: Ending) -> None:
        """Send the end until the server has it; after the lease has run out somebody else has the rollout anyway.

        An ending that the server refuses is sent once more in a short form, so that the rollout ends with the reason.
        """
        give_up = time.monotonic() + max(float(claim["lease_seconds"]), 10.0)
        shortened = False
        while True:
            try:
                self._link.end(
                    claim["attempt_id"],
                    key=claim["key"],
                    outcome=str(ending.outcome),
                    detail=ending.detail,
                    result=ending.result,
                    rewards=ending.rewards,
                )
                self.finished += 1
                return
            except Fenced:
                return
            except ServerUnreachable as error:
                if time.monotonic() > give_up:
                    self._notice(f"attempt {claim['attempt_id']} could not be ended: {error}")
                    return
                time.sleep(0.3)
            except LightningError as error:
                self._notice(f"the end of attempt {claim['attempt_id']} was refused: {error}")
                if shortened or not isinstance(error, RequestError):
                    return
                ending, shortened = ending.refused(error), True


class _Run:
    """One execution of the agent, in a thread of its own."""

    def __init__(self, worker: Worker, claim: Mapping[str, Any]) -> None:
        self._worker, self._claim = worker, claim
        self._future: Any = None
        self._abandoned = False
        self.done = threading.Event()
        self.ending: Ending | None = None

    def abandon(self) -> None:
        """Nobody waits any longer: cancel an async agent; a thread is left to its fenced calls."""
        self._abandoned = True
        if self._future is not None:
            self._future.cancel()

    def go(self) -> None:
        try:
            ending = self._live()
        except Exception as error:
            ending = Ending(outcome=Outcome.AGENT_ERROR, detail=brief(error))
        if not self._abandoned:
            self.ending = ending
        self.done.set()

    def _live(self) -> Ending | None:
        worker, claim = self._worker, self._claim
        agent = build(worker._agent)
        task = Task(**claim["task"])
        began = time.monotonic()
        with claimed(claim, config=worker._config.client_for(claim), agent=agent) as record:
            try:
                running = scope.in_context()
                assert running is not None
                result = self._resolved(adapter_for(agent).call(agent, task.input, running))
            except Exception as error:
                return ending_of(error, record)
        if record.calls_sent == 0:
            return Ending(outcome=Outcome.NO_CALL, detail=_no_call(record), result=as_json(result))
        view = RolloutView(
            id=claim["rollout_id"],
            attempt=claim["number"],
            mode=claim["mode"],
            group_id=claim["group_id"],
            sibling=claim["sibling"],
            calls=record.calls_sent,
            seconds=time.monotonic() - began,
        )
        return self._judged(task, result, view, record)

    def _judged(self, task: Task, result: Any, view: RolloutView, record: scope.RolloutRecord) -> Ending:
        shown, emitted = as_json(result), tuple(record.open_rewards())
        if self._worker._reward is None:
            return Ending(outcome=Outcome.OK, result=shown, rewards=emitted)
        try:
            with scope.outside():
                parts = parts_of(self._resolved(judge(self._worker._reward, task, result, view)))
        except RewardError as error:
            return Ending(outcome=Outcome.NO_REWARD, detail=str(error), result=shown)
        rewards = (*emitted, *messages(parts, source="reward_fn"))
        return Ending(outcome=Outcome.OK, result=shown, rewards=rewards)

    def _resolved(self, value: Any) -> Any:
        """The value itself, or of an awaitable what it gives when run on the worker's loop."""
        if not inspect.isawaitable(value):
            return value

        async def waited() -> Any:
            return await value

        self._future = asyncio.run_coroutine_threadsafe(waited(), self._worker._loop)
        return self._future.result()


def _no_call(record: scope.RolloutRecord) -> str:
    if record.calls_passed:
        return f"the agent made {record.calls_passed} LLM calls, none by a component that is trained: check `component`"
    return (
        "the agent answered without any LLM call that we could see; likely causes: a cached answer (LangChain or DSPy "
        "cache), a client that is not httpx or httpx2, a call made in a process of its own, or a branch that needs no model"
    )
