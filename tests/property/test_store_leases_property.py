"""Whatever workers, clocks and networks do: no rollout finishes twice, none is lost, no fenced attempt counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from agent_lightning.errors import Conflict, Fenced
from agent_lightning.records import RETRIED, CallStatus, Claim, Outcome, Rollout, RolloutStatus
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.store.store import RETRIES_PER_ATTEMPT
from store_cases import StillClock, answered, make_call, make_reward, make_rollout

LEASE = 10.0
OVER = (RolloutStatus.FINISHED, RolloutStatus.CANCELLED)


@dataclass
class Lived:
    """What this test believes of one attempt."""

    claim: Claim
    open: bool = True
    lease_until: float = 0.0
    trained: bool = False  # a trainable call has completed
    running: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    rewards: list[str] = field(default_factory=list)  # those that may count
    outcome: Outcome | None = None

    @property
    def live(self) -> bool:
        return self.claim.rollout.mode == "live"

    @property
    def parity(self) -> int:
        return int(self.claim.attempt.worker) % 2


class Workers(RuleBasedStateMachine):
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = StillClock()
        self.store = self.do(SqliteStore.open(clock=self.clock))
        self.lived: dict[str, Lived] = {}
        self.status: dict[str, RolloutStatus] = {}
        self.endings: dict[str, Rollout] = {}
        self.minted = 0

    def do(self, work):
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.do(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def mint(self, kind: str) -> str:
        self.minted += 1
        return f"{kind}{self.minted}"

    def worker(self) -> str:
        self.minted += 1
        return str(self.minted)

    def finish(self, attempt_id: str, outcome: Outcome | None) -> None:
        """The rules of the contract, said a second time."""
        lived = self.lived[attempt_id]
        rollout = lived.claim.rollout
        lived.open, lived.outcome = False, outcome
        lived.running.clear()
        ended = [a.outcome for a in self.lived.values() if a.claim.rollout.id == rollout.id and a.outcome is not None]
        retried = sum(ending in RETRIED for ending in ended)
        again = outcome in RETRIED and retried < RETRIES_PER_ATTEMPT * rollout.max_attempts
        if outcome is Outcome.AGENT_ERROR and not lived.trained:
            again = len(ended) - retried < rollout.max_attempts
        if again and rollout.mode != "live":
            self.status[rollout.id] = RolloutStatus.QUEUED
        else:
            self.status[rollout.id] = RolloutStatus.FINISHED

    @rule(max_attempts=st.integers(1, 3), priority=st.integers(0, 2))
    def enqueue(self, max_attempts: int, priority: int) -> None:
        name = self.mint("r")
        rollout = make_rollout(name, max_attempts=max_attempts, priority=priority)
        assert self.do(self.store.enqueue([rollout, rollout])) == 1
        self.status[name] = RolloutStatus.QUEUED

    @rule(target=attempts)
    def claim(self):
        claim = self.do(self.store.claim(self.worker(), lease_seconds=LEASE))
        waiting = [name for name, status in self.status.items() if status is RolloutStatus.QUEUED]
        if claim is None:
            assert waiting == []
            return multiple()
        assert claim.rollout.id in waiting
        return self.begun(claim)

    @rule(target=attempts)
    def start_live(self) -> str:
        rollout = make_rollout(self.mint("live"), mode="live")
        return self.begun(self.do(self.store.start_live(rollout, self.worker(), lease_seconds=LEASE)))

    def begun(self, claim: Claim) -> str:
        self.status[claim.rollout.id] = RolloutStatus.RUNNING
        self.lived[claim.attempt.id] = Lived(claim=claim, lease_until=self.clock.now + LEASE)
        return claim.attempt.id

    @rule(attempt=attempts)
    def heartbeat(self, attempt: str) -> None:
        lived = self.lived[attempt]
        try:
            lived.lease_until = self.do(self.store.heartbeat(attempt, lease_seconds=LEASE))
            assert lived.open
        except Fenced:
            assert not lived.open

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.pass_(seconds)

    @rule()
    def expire(self) -> None:
        lapsed = {a for a, lived in self.lived.items() if lived.open and lived.lease_until < self.clock.now}
        assert set(self.do(self.store.expire_leases())) == lapsed
        for attempt in lapsed:
            self.finish(attempt, Outcome.LOST_WORKER)

    @rule(parity=st.integers(0, 1))
    def give_back(self, parity: int) -> None:
        """Of the workers whose number is even, or odd."""
        taken = {a for a, lived in self.lived.items() if lived.open and lived.parity == parity and not lived.live}
        assert set(self.do(self.store.give_back(lambda worker: int(worker) % 2 == parity))) == taken
        for attempt in taken:
            lived = self.lived[attempt]
            lived.open = False
            lived.running.clear()
            self.status[lived.claim.rollout.id] = RolloutStatus.QUEUED

    @rule(attempt=attempts, outcome=st.sampled_from(list(Outcome)))
    def end(self, attempt: str, outcome: Outcome) -> None:
        lived = self.lived[attempt]
        try:
            rollout = self.do(self.store.end_attempt(attempt, outcome))
        except Fenced:
            assert not lived.open and lived.outcome in (None, Outcome.LOST_WORKER)
        except Conflict:
            assert not lived.open and lived.outcome is not outcome
        else:
            if lived.open:
                self.finish(attempt, outcome)
            assert lived.outcome is outcome
            assert rollout.status is self.status[rollout.id]

    @precondition(lambda self: self.status)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.status)))
        was_over = self.status[name] in OVER
        assert self.do(self.store.cancel([name])) == (0 if was_over else 1)
        if was_over:
            return
        self.status[name] = RolloutStatus.CANCELLED
        for lived in self.lived.values():
            if lived.claim.rollout.id == name and lived.open:
                lived.open = False
                lived.running.clear()

    @rule(attempt=attempts)
    def admit(self, attempt: str) -> None:
        lived = self.lived[attempt]
        call = make_call(lived.claim, self.mint("c"))
        try:
            assert self.do(self.store.admit(call)).kind == "new"
        except Fenced:
            assert not lived.open
        else:
            assert lived.open
            lived.running.add(call.id)

    @rule(attempt=attempts, trainable=st.booleans())
    def complete(self, attempt: str, trainable: bool) -> None:
        lived = self.lived[attempt]
        if not lived.running:
            return
        ids = sorted(lived.running)
        self.do(self.store.complete(answered(make_call(lived.claim, ids[0]), trainable=trainable)))
        lived.running.discard(ids[0])
        lived.completed.add(ids[0])
        lived.trained = lived.trained or trainable

    @rule(attempt=attempts)
    def reward(self, attempt: str) -> None:
        lived = self.lived[attempt]
        kept = self.do(self.store.add_reward(make_reward(lived.claim, self.mint("w"))))
        live = lived.claim.rollout.mode == "live"
        assert kept.stale == (not lived.open and not live)
        if not kept.stale:
            lived.rewards.append(kept.id)

    @invariant()
    def none_is_lost_and_none_ends_twice(self) -> None:
        for rollout in self.do(self.store.rollouts("run")):
            assert rollout.status is self.status[rollout.id]
            assert (rollout.status in OVER) == (rollout.finished_at is not None)
            running = [a for a in self.lived.values() if a.claim.rollout.id == rollout.id and a.open]
            assert len(running) == (1 if rollout.status is RolloutStatus.RUNNING else 0)
            if rollout.status in OVER:
                assert self.endings.setdefault(rollout.id, rollout) == rollout, "it changed after it was over"

    @invariant()
    def only_the_newest_attempt_counts(self) -> None:
        newest: dict[str, Lived] = {}
        for lived in self.lived.values():
            name = lived.claim.rollout.id
            if name not in newest or newest[name].claim.attempt.number < lived.claim.attempt.number:
                newest[name] = lived
        names = list(newest)
        rewards, calls = self.do(self.store.rewards_of(names)), self.do(self.store.calls_of(names))
        for name, lived in newest.items():
            assert [r.id for r in rewards[name]] == lived.rewards
            assert {c.id for c in calls[name] if c.status is CallStatus.COMPLETED} == lived.completed
            assert {c.id for c in calls[name] if c.status is CallStatus.RUNNING} == lived.running
            assert [c.order for c in calls[name]] == list(range(len(calls[name])))

    @invariant()
    def keys_open_what_they_should(self) -> None:
        for attempt, lived in self.lived.items():
            access = self.do(self.store.access(lived.claim.key))
            assert access is not None and access.attempt_id == attempt
            assert access.calls_open == lived.open
            assert access.rewards_open == (lived.open or lived.claim.rollout.mode == "live")


Workers.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestWorkers = Workers.TestCase
