"""Several runs in one store: everybody's turn comes, and pages of what has ended skip nothing and repeat nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_lightning.errors import Fenced
from agent_lightning.records import Claim, Outcome, RolloutStatus
from agent_lightning.store.sqlite import SqliteStore
from store_cases import StillClock, make_rollout

LEASE = 10.0
RUNS = ("a", "b", "c")
KINDS = (  # of readers: page size, status, mode
    (1, None, None),
    (2, RolloutStatus.FINISHED, None),
    (3, RolloutStatus.CANCELLED, "train"),
    (2, None, "val"),
)


@dataclass
class Reader:
    """Follows a run's ended rollouts, page by page."""

    run: str
    limit: int
    status: RolloutStatus | None
    mode: str | None
    cursor: int = 0
    seen: list[str] = field(default_factory=list)


class Runs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = StillClock()
        self.minted = 0
        self.store = self.do(SqliteStore.open(clock=self.clock, new_id=lambda: f"a{self.mint():0>6}"))
        self.queued: list[tuple[str, str, int]] = []  # (run, rollout, priority), oldest first
        self.running: dict[str, tuple[Claim, float]] = {}  # by attempt, with the end of its lease
        self.over: list[
            tuple[str, str, str, RolloutStatus]
        ] = []  # (run, mode, rollout, status) in the order of their ends
        self.modes: dict[str, str] = {}
        self.ages: dict[str, int] = {}
        self.served: dict[str, int] = dict.fromkeys(RUNS, 0)
        self.claims = 0
        self.readers = [Reader(run, *kind) for run in RUNS for kind in KINDS]
        for run in RUNS:
            self.queue(run, 4, 0, "train")

    def do(self, work):
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        for reader in self.readers:
            while self.read_on(reader):
                continue
            assert reader.seen == self.expected(reader)
        self.do(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def mint(self) -> str:
        self.minted += 1
        return f"r{self.minted}"

    def requeue(self, run: str, name: str, priority: int) -> None:
        self.queued.append((run, name, priority))
        self.queued.sort(key=lambda item: self.ages[item[1]])

    @rule(
        run=st.sampled_from(RUNS),
        count=st.integers(1, 6),
        priority=st.integers(0, 1),
        mode=st.sampled_from(["train", "val"]),
    )
    def enqueue(self, run: str, count: int, priority: int, mode: str) -> None:
        self.queue(run, count, priority, mode)

    def queue(self, run: str, count: int, priority: int, mode: str) -> None:
        made = [make_rollout(self.mint(), run_id=run, priority=priority, mode=mode) for _ in range(count)]
        assert self.do(self.store.enqueue(made)) == count
        for rollout in made:
            self.modes[rollout.id] = mode
            self.ages[rollout.id] = len(self.ages)
            self.requeue(run, rollout.id, priority)

    @rule(own=st.sampled_from([None, None, None, *RUNS]), count=st.integers(1, 4))
    def claim(self, own: str | None, count: int) -> None:
        for _ in range(count):
            self.claim_one(own)

    def claim_one(self, own: str | None) -> None:
        claim = self.do(self.store.claim("w", lease_seconds=LEASE, run_id=own))
        waiting = [item for item in self.queued if own in (None, item[0])]
        if not waiting:
            assert claim is None
            return
        highest = max(priority for _, _, priority in waiting)
        first = [item for item in waiting if item[2] == highest]
        at_work = [other.rollout.run_id for other, _ in self.running.values() if other.rollout.mode != "live"]
        turn = min({run for run, _, _ in first}, key=lambda run: (at_work.count(run), self.served[run], run))
        wanted = next(item for item in first if item[0] == turn)
        assert claim is not None and (claim.rollout.run_id, claim.rollout.id) == wanted[:2]
        self.queued.remove(wanted)
        self.claims += 1
        self.served[turn] = self.claims
        self.running[claim.attempt.id] = (claim, self.clock.now + LEASE)

    @rule(run=st.sampled_from(RUNS))
    def start_live(self, run: str) -> None:
        """Production traffic takes nobody's turn."""
        rollout = make_rollout(self.mint(), run_id=run, mode="live")
        self.modes[rollout.id] = "live"
        claim = self.do(self.store.start_live(rollout, "w", lease_seconds=LEASE))
        self.running[claim.attempt.id] = (claim, self.clock.now + LEASE)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.OK, Outcome.TIMEOUT, Outcome.INFRASTRUCTURE]))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        for attempt in data.draw(st.lists(st.sampled_from(sorted(self.running)), min_size=1, max_size=4, unique=True)):
            self.end_one(attempt, outcome)

    def end_one(self, attempt: str, outcome: Outcome) -> None:
        claim, _ = self.running.pop(attempt)
        rollout = self.do(self.store.end_attempt(attempt, outcome))
        self.left(claim, rollout.status)
        assert rollout.status is (
            RolloutStatus.QUEUED
            if outcome is Outcome.INFRASTRUCTURE and claim.rollout.mode != "live"
            else RolloutStatus.FINISHED
        )

    def left(self, claim: Claim, status: RolloutStatus) -> None:
        rollout = claim.rollout
        if status is RolloutStatus.QUEUED:
            self.requeue(rollout.run_id, rollout.id, rollout.priority)
        else:
            self.over.append((rollout.run_id, rollout.mode, rollout.id, status))

    @rule(seconds=st.sampled_from([-3.0, 6.0, 11.0]), beating=st.sampled_from(RUNS))
    def time_passes(self, seconds: float, beating: str) -> None:
        """Also backwards: clocks are set, and the order of the ends must not follow them. One run's workers are heard."""
        self.clock.pass_(seconds)
        for attempt, (claim, _) in list(self.running.items()):
            if claim.rollout.run_id == beating:
                until = self.do(self.store.heartbeat(attempt, lease_seconds=LEASE))
                self.running[attempt] = (claim, until)
        self.expire()

    def expire(self) -> None:
        lapsed = {attempt for attempt, (_, until) in self.running.items() if until < self.clock.now}
        ended = self.do(self.store.expire_leases())
        assert set(ended) == lapsed
        for attempt in ended:
            claim, _ = self.running.pop(attempt)
            live = claim.rollout.mode == "live"
            self.left(claim, RolloutStatus.FINISHED if live else RolloutStatus.QUEUED)
            try:
                self.do(self.store.end_attempt(attempt, Outcome.OK))
                raise AssertionError("a lost lease must be fenced")
            except Fenced:
                pass

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.queued))
        self.queued.remove(item)
        cancelled = self.do(self.store.cancel_one(item[1]))
        assert cancelled.status is RolloutStatus.CANCELLED
        self.over.append((item[0], self.modes[item[1]], item[1], RolloutStatus.CANCELLED))

    @rule(number=st.integers(0, len(RUNS) * len(KINDS) - 1))
    def read(self, number: int) -> None:
        self.read_on(self.readers[number])

    def read_on(self, reader: Reader) -> bool:
        page = self.do(
            self.store.page(reader.run, after=reader.cursor, limit=reader.limit, status=reader.status, mode=reader.mode)
        )
        assert len(page.rollouts) <= reader.limit
        reader.seen += [rollout.id for rollout in page.rollouts]
        reader.cursor = page.next
        return bool(page.rollouts)

    def expected(self, reader: Reader) -> list[str]:
        return [
            name
            for run, mode, name, status in self.over
            if run == reader.run and reader.status in (None, status) and reader.mode in (None, mode)
        ]

    @invariant()
    def a_page_skips_nothing_and_repeats_nothing(self) -> None:
        for reader in self.readers:
            assert self.expected(reader)[: len(reader.seen)] == reader.seen


Runs.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestRuns = Runs.TestCase
