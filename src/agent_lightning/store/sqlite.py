"""The store in one SQLite file, or in memory. One writer: a lane that commits many operations at once.

Reads go to a second connection, so that a long one does not hold up the gateway; what was awaited before is seen.
Usable from any number of event loops and threads of one process. Other processes may read, and write now and then.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import partial
from typing import Any, TypeVar

from agent_lightning.records import Call, Claim, Outcome, PolicyVersion, Reward, Rollout, RolloutStatus, Span
from agent_lightning.store import attempts, calls, opening, rewards, rollouts, rows, tasks, training
from agent_lightning.store.checkpoint import Checkpointer
from agent_lightning.store.doors import Doors
from agent_lightning.store.lane import Lane, Signal
from agent_lightning.store.rollouts import enqueue as enqueue_rows
from agent_lightning.store.rollouts import queued_row
from agent_lightning.store.store import Access, Admission, BatchRecord, Page

T = TypeVar("T")
LIVE_REWARD_SECONDS = 86_400.0


def _uuid() -> str:
    return uuid.uuid4().hex


class SqliteStore:
    """Made by `open`; `others` are a reader's and a checkpointer's connection, None in memory.

    `clock` gives Unix seconds; `new_id` names attempts; `live_reward_seconds`: a live rollout's rewards
    count until so long after its attempt's end.
    """

    def __init__(
        self,
        path: str,
        writer: sqlite3.Connection,
        others: tuple[sqlite3.Connection, sqlite3.Connection] | None,
        *,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        live_reward_seconds: float,
    ) -> None:
        self.path = path
        self._clock = clock
        self._new_id = new_id
        self._live_seconds = live_reward_seconds
        explain = opening.explainer(path)
        self._queued = Signal()  # a rollout may be claimed
        self._over = Signal()  # a rollout finished or was cancelled
        self._doors = Doors()
        self._checkpointer = None if others is None else Checkpointer(others[1])
        self._writer = Lane(
            writer,
            begin="BEGIN IMMEDIATE",
            name="store-writer",
            explain=explain,
            committed=self._checkpointer and self._checkpointer.committed,
            foreign=None if others is None else self._anything_changed,
        )
        self._reader = self._writer
        if others is not None:
            self._reader = Lane(others[0], begin="BEGIN", name="store-reader", explain=explain)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str] = opening.MEMORY,
        *,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = _uuid,
        durability: opening.Durability = "process",
        live_reward_seconds: float = LIVE_REWARD_SECONDS,
    ) -> SqliteStore:
        """Create the file or bring it to this version's schema. Raises StoreError, naming the path and the remedy."""
        name = os.fspath(path)

        def connect() -> tuple[sqlite3.Connection, tuple[sqlite3.Connection, sqlite3.Connection] | None]:
            writer = opening.connect(name, durability)
            try:
                opening.bring_forward(name, writer)
                if name == opening.MEMORY:
                    return writer, None
                return writer, (opening.connect(name, durability), opening.connect(name, durability))
            except BaseException:
                writer.close()
                raise

        writer, others = await asyncio.to_thread(connect)
        return cls(name, writer, others, clock=clock, new_id=new_id, live_reward_seconds=live_reward_seconds)

    async def _write(
        self, operation: Callable[..., T], *given: Any, after: Callable[[T], None] | None = None, **named: Any
    ) -> T:
        return await self._writer.run(lambda db: operation(db, *given, **named), after=after)

    async def _read(self, operation: Callable[..., T], *given: Any) -> T:
        return await self._reader.run(lambda db: operation(db, *given))

    async def close(self) -> None:
        """Finish what was asked, then close the file."""
        if self._checkpointer is not None:
            await asyncio.to_thread(self._checkpointer.close)
            await self._reader.close()
        await self._writer.close()

    # --- runs -------------------------------------------------------------------------------------------------

    async def open_run(
        self,
        run_id: str,
        settings: Mapping[str, Any],
        *,
        holder: str,
        lease_seconds: float,
        gone: Callable[[str], bool] = lambda holder: False,
    ) -> None:
        text, now = rows.json_text(settings), self._clock()
        await self._write(
            training.open_run, run_id, text, holder=holder, lease_seconds=lease_seconds, gone=gone, now=now
        )

    async def hold_run(self, run_id: str, *, holder: str, lease_seconds: float) -> None:
        now = self._clock()
        await self._write(training.hold_run, run_id, holder=holder, lease_until=now + lease_seconds, now=now)

    async def release_run(self, run_id: str, *, holder: str) -> None:
        await self._write(training.release_run, run_id, holder=holder, now=self._clock())

    async def runs(self) -> list[Mapping[str, Any]]:
        """Also holder, held_since and lease_until."""
        return await self._read(training.runs)

    # --- rollouts and attempts --------------------------------------------------------------------------------

    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        now = self._clock()
        made = [queued_row(rollout, now) for rollout in rollouts]
        return await self._write(enqueue_rows, made, after=self._more_queued)

    async def claim(
        self, worker: str, *, lease_seconds: float, wait_seconds: float = 0.0, run_id: str | None = None
    ) -> Claim | None:
        ends = time.monotonic() + wait_seconds
        while True:
            seen = self._queued.seen
            claim = await self._claim(worker, run_id, lease_seconds)
            left = ends - time.monotonic()
            if claim is not None or left <= 0:
                return claim
            await self._queued.wait(seen, left)

    async def _claim(self, worker: str, run_id: str | None, lease_seconds: float) -> Claim | None:
        """One look. If the asker is cancelled while it is answered, the claim is given back."""
        asked = asyncio.ensure_future(
            self._write(
                attempts.claim,
                worker,
                run_id,
                lease_seconds=lease_seconds,
                now=self._clock(),
                new_id=self._new_id,
                after=self._doors.opened,
            )
        )
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            claim = await asked
            if claim is not None:
                await self._write(attempts.unclaim, claim.attempt.id, after=self._more_queued)
            raise

    async def start_live(self, rollout: Rollout, worker: str, *, lease_seconds: float) -> Claim:
        now = self._clock()
        row, fresh = attempts.live_row(rollout, now)
        return await self._write(
            attempts.start_live,
            row,
            fresh,
            worker,
            lease_seconds=lease_seconds,
            now=now,
            new_id=self._new_id,
            after=self._doors.opened,
        )

    async def access(self, key: str) -> Access | None:
        return await self._doors.look(key, partial(self._read, attempts.with_key_hash), self._clock, self._live_seconds)

    async def heartbeat(self, attempt_id: str, *, lease_seconds: float) -> float:
        return await self._write(attempts.heartbeat, attempt_id, self._clock() + lease_seconds)

    async def end_attempt(
        self, attempt_id: str, outcome: Outcome, *, detail: str | None = None, result: Any = None
    ) -> Rollout:
        def ended(rollout: Rollout) -> None:
            self._doors.forget(attempt_id)
            if rollout.status is RolloutStatus.QUEUED:
                self._queued.notify()
            else:
                self._over.notify()

        text = attempts.result_text(result)
        return await self._write(
            attempts.end, attempt_id, outcome, detail=detail, result=text, now=self._clock(), after=ended
        )

    async def expire_leases(self) -> list[str]:
        return await self._write(attempts.expire, self._clock(), after=self._some_changed)

    async def give_back(self, gone: Callable[[str], bool]) -> list[str]:
        return await self._write(attempts.give_back, gone, self._clock(), after=self._some_changed)

    def _more_queued(self, _: object) -> None:
        self._queued.notify()

    def _some_changed(self, which: Sized | int) -> None:
        """Called in the writer's lane with those that were ended, or how many."""
        if which:
            self._anything_changed()

    def _anything_changed(self) -> None:
        """Called in the writer's lane, also when another process has written."""
        self._doors.forget_all()
        self._queued.notify()
        self._over.notify()

    async def cancel(self, rollout_ids: Iterable[str]) -> int:
        return await self._write(attempts.cancel, list(rollout_ids), self._clock(), after=self._some_changed)

    async def cancel_one(self, rollout_id: str) -> Rollout:
        return await self._write(
            attempts.cancel_one, rollout_id, self._clock(), after=lambda _: self._anything_changed()
        )

    async def rollout(self, rollout_id: str) -> Rollout:
        return await self._read(rollouts.find, rollout_id)

    async def rollouts(
        self, run_id: str, *, step: int | None = None, mode: str | None = None, ids: Iterable[str] | None = None
    ) -> list[Rollout]:
        return await self._read(rollouts.listed, run_id, step, mode, None if ids is None else list(ids))

    async def page(
        self,
        run_id: str,
        *,
        after: int = 0,
        limit: int = 100,
        status: RolloutStatus | None = None,
        mode: str | None = None,
    ) -> Page:
        return await self._read(rollouts.page, run_id, after, limit, status, mode)

    async def finished(self, ids: Sequence[str], *, wait_seconds: float = 0.0) -> set[str]:
        """Returns at once when all of them are over."""
        ends = time.monotonic() + wait_seconds
        wanted, text = len(set(ids)), rows.ids_text(ids)
        known: int | None = None
        while True:
            seen = self._over.seen
            over = await self._read(rollouts.over, text)
            known = len(over) if known is None else known
            left = ends - time.monotonic()
            if len(over) == wanted or len(over) > known or left <= 0:
                return over
            await self._over.wait(seen, left)

    async def tasks(
        self, run_id: str, *, after: str = "", mode: str | None = None, limit: int = 100
    ) -> list[Mapping[str, Any]]:
        return await self._read(tasks.tasks, run_id, after, mode, limit)

    async def freeze(self, rollout_ids: Iterable[str]) -> None:
        await self._write(rollouts.freeze, list(rollout_ids), self._clock(), after=self._frozen)

    def _frozen(self, _: object) -> None:
        self._doors.forget_all()

    # --- calls ------------------------------------------------------------------------------------------------

    async def admit(self, call: Call) -> Admission:
        row = rows.call_row(call)
        row["admitted_at"] = call.admitted_at or self._clock()
        row["status"] = "running"
        return await self._write(calls.admit, call, row)

    async def complete(self, call: Call) -> None:
        row = rows.completion_row(call)
        row["finished_at"] = call.finished_at or self._clock()
        await self._write(calls.complete, row)

    async def break_call(self, attempt_id: str, call_id: str, error: str) -> None:
        await self._write(calls.break_one, attempt_id, call_id, error, self._clock())

    async def break_running(self, error: str) -> int:
        """Break every running call; gives how many. For a server that starts: nobody generates them any more."""
        return await self._write(calls.break_running, error, self._clock())

    async def calls(self, rollout_id: str, *, attempt_id: str | None = None) -> list[Call]:
        if attempt_id is not None:
            return await self._read(calls.of_attempt, rollout_id, attempt_id)
        return (await self.calls_of([rollout_id]))[rollout_id]

    async def calls_of(self, rollout_ids: Sequence[str]) -> dict[str, list[Call]]:
        return await self._read(calls.of_newest, list(rollout_ids))

    # --- rewards and spans ------------------------------------------------------------------------------------

    async def add_reward(self, reward: Reward) -> Reward:
        now = self._clock()
        row = rows.reward_row(reward)
        row["created_at"] = reward.created_at or now
        return await self._write(rewards.add, row, now, self._live_seconds)

    async def rewards_of(self, rollout_ids: Sequence[str]) -> dict[str, list[Reward]]:
        return await self._read(rewards.of_newest, list(rollout_ids))

    async def add_spans(self, spans: Sequence[Span]) -> int:
        return await self._write(rewards.add_spans, [rows.span_row(span) for span in spans])

    async def spans(self, rollout_id: str) -> list[Span]:
        return await self._read(rewards.spans, rollout_id)

    # --- training ---------------------------------------------------------------------------------------------

    async def commit_batch(self, record: BatchRecord) -> None:
        row = rows.batch_row(record)
        row["created_at"] = record.created_at or self._clock()
        await self._write(training.commit_batch, row)

    async def mark_applied(self, run_id: str, policy: str, version: int, metrics: Mapping[str, float]) -> None:
        await self._write(training.mark_applied, run_id, policy, version, dict(metrics))

    async def batches(self, run_id: str, policy: str, *, after_version: int) -> list[BatchRecord]:
        return await self._read(training.batches, run_id, policy, after_version)

    async def add_version(self, version: PolicyVersion) -> None:
        row = rows.version_row(version)
        row["created_at"] = version.created_at or self._clock()
        await self._write(training.add_version, row)

    async def versions(self, run_id: str, policy: str | None = None) -> list[PolicyVersion]:
        """Each with the metrics of the batch that made it."""
        return await self._read(training.versions, run_id, policy)

    async def add_event(self, run_id: str, kind: str, step: int, body: Mapping[str, Any]) -> None:
        await self._write(training.add_event, run_id, kind, step=step, body=rows.json_text(body), now=self._clock())

    async def events(self, run_id: str, kind: str | None = None) -> list[Mapping[str, Any]]:
        return await self._read(training.events, run_id, kind)
