"""The store's contract: what the system remembers, and which transitions are legal.

Every method is atomic and durable when it returns. Ids are chosen by callers, so each creation can be repeated.
Time is handed in by a clock given at construction. Raises NotFound, Conflict and Fenced as named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agent_lightning.records import Call, Claim, Outcome, PolicyVersion, Reward, Rollout, RolloutStatus, Span

Scope = Literal["calls", "rewards"]

RETRIES_PER_ATTEMPT = 10  # a rollout whose machines fail more often than max_attempts times this is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a rollout's key opens."""

    rollout: Rollout
    attempt_id: str
    calls_open: bool  # the attempt runs: calls may be made
    rewards_open: bool  # the reward deadline has not passed and no trainer froze the rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The gateway's answer from the store about one call id."""

    kind: Literal["new", "joined", "replay"]
    call: Call  # new: the row just made; joined: the running one; replay: the completed one


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One committed update: enough to repeat it without sampling again."""

    run_id: str
    policy: str
    step: int  # trainer step
    version: int  # the version that it makes
    rollout_ids: tuple[str, ...]
    payload: bytes  # the Batch, encoded by trainer/replay
    rate: float  # learning rate
    state: Mapping[str, Any]  # schedule and data position after the step
    applied: bool  # the new weights were made and saved
    created_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Ended rollouts in the order in which they ended."""

    rollouts: tuple[Rollout, ...]
    next: int  # cursor to go on from; the one that was given when nothing has ended since


class Store(Protocol):
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
        """Create the run or take it up again. Raises RunInUse while another holder's lease is alive; a holder that
        `gone` knows to be dead loses its lease at once."""
        ...

    async def hold_run(self, run_id: str, *, holder: str, lease_seconds: float) -> None:
        """Prolong the holder's lease. Raises RunInUse when it was lost."""
        ...

    async def release_run(self, run_id: str, *, holder: str) -> None: ...

    async def runs(self) -> list[Mapping[str, Any]]:
        """Each run's id, settings, created_at, ended_at."""
        ...

    # --- rollouts and attempts --------------------------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        """Queue those whose id is new; gives how many were. Raises Conflict, and queues none, when an id is taken by a
        rollout of another run, task or mode."""
        ...

    async def claim(
        self, worker: str, *, lease_seconds: float, wait_seconds: float = 0.0, run_id: str | None = None
    ) -> Claim | None:
        """Start an attempt at the best queued rollout: priority, then age. Waits up to `wait_seconds` for one.

        Without `run_id` the runs that wait with the highest priority take turns: the one with the fewest claimed
        rollouts running, then the one that was served longest ago.
        """
        ...

    async def start_live(self, rollout: Rollout, worker: str, *, lease_seconds: float) -> Claim:
        """Create a live rollout and its only attempt at once."""
        ...

    async def access(self, key: str) -> Access | None:
        """What this rollout key opens; None for a key that nobody holds."""
        ...

    async def heartbeat(self, attempt_id: str, *, lease_seconds: float) -> float:
        """Move the lease; gives its new end. Raises Fenced."""
        ...

    async def end_attempt(
        self, attempt_id: str, outcome: Outcome, *, detail: str | None = None, result: Any = None
    ) -> Rollout:
        """End the attempt once and seal its calls, then queue the rollout again or finish it.

        The same ending again is harmless; another one raises Conflict, a lost lease Fenced. Retried outcomes
        (RETRIED) never count against max_attempts: they queue again until RETRIES_PER_ATTEMPT x max_attempts of a
        rollout's attempts have ended so. AGENT_ERROR queues again only if no trained call completed and fewer than
        max_attempts attempts have ended otherwise.
        """
        ...

    async def expire_leases(self) -> list[str]:
        """End attempts whose lease has run out as LOST_WORKER; gives their ids."""
        ...

    async def give_back(self, gone: Callable[[str], bool]) -> list[str]:
        """Take running attempts from workers that `gone` (worker name -> bool) knows to be dead, without waiting for
        their leases; gives the attempts' ids. They are sealed and fenced, have no outcome and count nowhere: their
        rollouts are queued again. Live rollouts are left to their leases."""
        ...

    async def cancel(self, rollout_ids: Iterable[str]) -> int:
        """Cancel those that have not finished; running attempts are sealed. Gives how many were."""
        ...

    async def cancel_one(self, rollout_id: str) -> Rollout:
        """The same again is harmless. Raises NotFound, and Conflict for a rollout that has finished."""
        ...

    async def rollout(self, rollout_id: str) -> Rollout: ...

    async def rollouts(
        self, run_id: str, *, step: int | None = None, mode: str | None = None, ids: Iterable[str] | None = None
    ) -> list[Rollout]:
        """In order of (step, group, sibling)."""
        ...

    async def page(
        self,
        run_id: str,
        *,
        after: int = 0,
        limit: int = 100,
        status: RolloutStatus | None = None,
        mode: str | None = None,
    ) -> Page:
        """Rollouts that have finished or were cancelled, in the order of the commits that ended them, from the cursor
        on. Whatever ends meanwhile comes on a later page: none is skipped, none comes twice."""
        ...

    async def finished(self, ids: Sequence[str], *, wait_seconds: float = 0.0) -> set[str]:
        """Which of these have finished or were cancelled; waits until one more has, or the time is up."""
        ...

    async def tasks(
        self, run_id: str, *, after: str = "", mode: str | None = None, limit: int = 100
    ) -> list[Mapping[str, Any]]:
        """Tasks of a run by id, those behind `after`: id, mode, input, meta, rollouts, finished."""
        ...

    async def freeze(self, rollout_ids: Iterable[str]) -> None:
        """A trainer reads them into a batch: rewards that come later are stale."""
        ...

    # --- calls ------------------------------------------------------------------------------------------------
    async def admit(self, call: Call) -> Admission:
        """Record a running call, or find the one with this (attempt, id). Raises Fenced, or Conflict if the body
        differs from the first one. A broken call is replaced by a new one under the same id, order and index."""
        ...

    async def complete(self, call: Call) -> None:
        """Commit a finished call. Raises Fenced when its attempt was sealed meanwhile."""
        ...

    async def break_call(self, attempt_id: str, call_id: str, error: str) -> None: ...

    async def calls(self, rollout_id: str, *, attempt_id: str | None = None) -> list[Call]:
        """By order. Without an attempt: those of the newest one."""
        ...

    async def calls_of(self, rollout_ids: Sequence[str]) -> dict[str, list[Call]]:
        """The newest attempts' calls of many rollouts in few queries."""
        ...

    # --- rewards and spans ------------------------------------------------------------------------------------
    async def add_reward(self, reward: Reward) -> Reward:
        """Idempotent by id; gives it back as stored, `stale` set if it came too late."""
        ...

    async def rewards_of(self, rollout_ids: Sequence[str]) -> dict[str, list[Reward]]:
        """Of the newest attempts, oldest first, stale ones left out."""
        ...

    async def add_spans(self, spans: Sequence[Span]) -> int:
        """How many were kept: not those whose ids another rollout's has, nor those of a rollout whose text was deleted,
        which what comes late must not bring back."""
        ...

    async def spans(self, rollout_id: str) -> list[Span]: ...

    # --- training ---------------------------------------------------------------------------------------------
    async def commit_batch(self, record: BatchRecord) -> None:
        """Write down an update before it is made. The same (run, policy, version) again replaces an unapplied one."""
        ...

    async def mark_applied(self, run_id: str, policy: str, version: int, metrics: Mapping[str, float]) -> None: ...

    async def batches(self, run_id: str, policy: str, *, after_version: int) -> list[BatchRecord]: ...

    async def add_version(self, version: PolicyVersion) -> None: ...

    async def versions(self, run_id: str, policy: str | None = None) -> list[PolicyVersion]: ...

    async def add_event(self, run_id: str, kind: str, step: int, body: Mapping[str, Any]) -> None:
        """Metrics rows, evaluations, alerts, drops: what `show` and the report read."""
        ...

    async def events(self, run_id: str, kind: str | None = None) -> list[Mapping[str, Any]]:
        """Each with kind, step, body, created_at, oldest first."""
        ...

    async def close(self) -> None: ...
