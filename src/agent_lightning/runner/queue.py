"""The server's side of running agents: queue rollouts, watch leases, wait with a deadline and a culprit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_lightning.errors import SettingError
from agent_lightning.records import Rollout
from agent_lightning.store.store import Store

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    rollout_deadline: float = 600.0  # seconds of one attempt
    max_attempts: int = 3  # that end by the agent; lost workers and failed machines do not count (store.py)
    lease_seconds: float = 60.0
    workers: int = 8  # rollouts at once in this process; 0: workers come from outside
    stall_seconds: float = 60.0  # nothing finished for so long: say who is waited for

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("rollout_deadline", self.rollout_deadline, 0.1, 86_400.0),
            ("max_attempts", self.max_attempts, 1, 100),
            ("lease_seconds", self.lease_seconds, 0.5, 3600.0),
            ("workers", self.workers, 0, 1024),
            ("stall_seconds", self.stall_seconds, 0.1, 86_400.0),
        ):
            if not low <= value <= high:
                raise SettingError(f"{name} is {value}: wanted {low:g} to {high:g}")


class RunnerQueue:
    """Queues rollouts and gives them back when they have finished, whoever ran them."""

    def __init__(
        self,
        store: Store,
        config: RunnerConfig,
        *,
        notice: Notice = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._config, self._notice, self._monotonic = store, config, notice, monotonic

    async def run(
        self, rollouts: Sequence[Rollout], *, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> list[Rollout]:
        """Queue what is new among `rollouts` and wait until all have finished; in the order given.

        Takes: rollouts with ids of the caller's. Gives: the same with outcomes. Waits for: workers. Ends: always, since
        each attempt has a deadline, each lease an end and each rollout a number of attempts; while nobody claims,
        it waits and says so every `stall_seconds`.
        """
        await self._store.enqueue(rollouts)
        ids = [rollout.id for rollout in rollouts]
        done: set[str] = set()
        moved = self._monotonic()
        while len(done) < len(ids):
            open_ids = [rollout_id for rollout_id in ids if rollout_id not in done]
            found = await self._store.finished(open_ids, wait_seconds=1.0)
            if found:
                done |= found
                moved = self._monotonic()
                progress(len(done), len(ids))
            elif self._monotonic() - moved >= self._config.stall_seconds:
                self._notice(await self._culprits(open_ids, self._monotonic() - moved))
                moved = self._monotonic()
        by_id = {rollout.id: rollout for rollout in await self._store.rollouts(rollouts[0].run_id, ids=ids)}
        return [by_id[rollout_id] for rollout_id in ids]

    async def watch_leases(self) -> None:
        """End attempts of lost workers, about four times a lease; runs until it is cancelled."""
        while True:
            await asyncio.sleep(min(5.0, self._config.lease_seconds / 4))
            for attempt_id in await self._store.expire_leases():
                self._notice(f"attempt {attempt_id}: its worker sent no heartbeat, the rollout is queued again")

    async def _culprits(self, ids: Sequence[str], seconds: float) -> str:
        run_id = (await self._store.rollout(ids[0])).run_id
        waiting = await self._store.rollouts(run_id, ids=ids)
        running = [rollout.id for rollout in waiting if rollout.status == "running"]
        queued = len(waiting) - len(running)
        if not running:
            return (
                f"{queued} rollouts have been queued for {seconds:.0f} s and no worker claims them: start one with "
                "`agent-lightning work module:agent`"
            )
        return (
            f"no rollout has finished for {seconds:.0f} s: {len(running)} are running ({', '.join(running[:3])}"
            f"{', ...' if len(running) > 3 else ''}), {queued} are queued"
        )
