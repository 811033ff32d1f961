"""What every store promises about rollouts, attempts and keys."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from agent_lightning.errors import Conflict, Fenced, NotFound
from agent_lightning.records import (
    AttemptStatus,
    CallStatus,
    Claim,
    Outcome,
    RolloutStatus,
)
from agent_lightning.store.store import RETRIES_PER_ATTEMPT, Store
from store_cases import StillClock, answered, make_call, make_reward, make_rollout


async def claimed(store: Store, rollout_id: str = "r1", **given: object) -> Claim:
    await store.enqueue([make_rollout(rollout_id, **given)])
    claim = await store.claim("worker", lease_seconds=60)
    assert claim is not None and claim.rollout.id == rollout_id
    return claim


# --- rollouts and attempts --------------------------------------------------------------------------------------


async def test_queueing_the_same_rollout_twice_makes_one(store: Store) -> None:
    assert await store.enqueue([make_rollout("r1"), make_rollout("r2")]) == 2
    assert await store.enqueue([make_rollout("r2"), make_rollout("r3")]) == 1
    assert [r.id for r in await store.rollouts("run")] == ["r1", "r2", "r3"]


async def test_a_rollout_comes_back_as_it_was_queued(store: Store, clock: StillClock) -> None:
    sent = make_rollout("r1", group_id="g", sibling=3, seed=7, step=2, priority=5, max_attempts=2, deadline_seconds=9.5)
    await store.enqueue([sent])
    assert await store.rollout("r1") == replace(sent, created_at=clock.now)
    with pytest.raises(NotFound, match="'r9'"):
        await store.rollout("r9")


async def test_higher_priority_is_claimed_first_and_then_the_older(store: Store) -> None:
    await store.enqueue([make_rollout("a"), make_rollout("b", priority=2), make_rollout("c", priority=2)])
    claims = [await store.claim("w", lease_seconds=60) for _ in range(4)]
    assert [claim and claim.rollout.id for claim in claims] == ["b", "c", "a", None]


async def test_a_claim_can_ask_for_one_run(store: Store) -> None:
    await store.enqueue([make_rollout("a", run_id="other"), make_rollout("b")])
    claim = await store.claim("w", lease_seconds=60, run_id="run")
    assert claim is not None and claim.rollout.id == "b"
    assert await store.claim("w", lease_seconds=60, run_id="run") is None


async def test_a_waiting_claim_wakes_when_a_rollout_is_queued(store: Store) -> None:
    waiting = asyncio.create_task(store.claim("w", lease_seconds=60, wait_seconds=10))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await store.enqueue([make_rollout("r1")])
    claim = await waiting
    assert claim is not None and claim.rollout.id == "r1"
    assert time.monotonic() - started < 0.5


async def test_a_claim_whose_asker_left_is_given_back(store: Store) -> None:
    await store.enqueue([make_rollout("r1")])
    asking = asyncio.create_task(store.claim("w", lease_seconds=60, wait_seconds=5))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    claim = await store.claim("w2", lease_seconds=60)
    assert claim is not None and (claim.rollout.id, claim.attempt.number) == ("r1", 1)


async def test_an_attempt_ends_once_and_the_same_ending_again_is_harmless(store: Store, clock: StillClock) -> None:
    claim = await claimed(store)
    clock.pass_(5)
    ended = await store.end_attempt(claim.attempt.id, Outcome.OK, result={"answer": [391]})
    assert (ended.status, ended.outcome, ended.result) == (RolloutStatus.FINISHED, Outcome.OK, {"answer": [391]})
    assert ended.finished_at == clock.now
    assert await store.end_attempt(claim.attempt.id, Outcome.OK) == ended == await store.rollout("r1")
    with pytest.raises(Conflict, match="ended as ok already"):
        await store.end_attempt(claim.attempt.id, Outcome.TIMEOUT)
    with pytest.raises(NotFound):
        await store.end_attempt("nobody", Outcome.OK)


async def test_a_result_that_json_cannot_say_is_kept_as_its_repr(store: Store) -> None:
    claim = await claimed(store)
    ended = await store.end_attempt(claim.attempt.id, Outcome.OK, result={"set": {1}})
    assert ended.result == {"set": "{1}"}


@pytest.mark.parametrize("outcome", [Outcome.INFRASTRUCTURE, Outcome.LOST_WORKER])
async def test_what_was_nobodys_fault_is_tried_again_far_beyond_max_attempts(store: Store, outcome: Outcome) -> None:
    claim = await claimed(store, max_attempts=1)
    for number in range(2, RETRIES_PER_ATTEMPT + 1):
        again = await store.end_attempt(claim.attempt.id, outcome, detail="node gone")
        assert (again.status, again.outcome, again.finished_at) == (RolloutStatus.QUEUED, None, None)
        following = await store.claim("w2", lease_seconds=60)
        assert following is not None and following.attempt.number == number and following.key != claim.key
        claim = following
    last = await store.end_attempt(claim.attempt.id, outcome)
    assert (last.status, last.outcome, last.attempts) == (RolloutStatus.FINISHED, outcome, RETRIES_PER_ATTEMPT)


async def test_lost_workers_leave_an_agents_own_attempts_untouched(store: Store) -> None:
    claim = await claimed(store, max_attempts=2)
    await store.end_attempt(claim.attempt.id, Outcome.LOST_WORKER)
    for expected in (RolloutStatus.QUEUED, RolloutStatus.FINISHED):
        following = await store.claim("w", lease_seconds=60)
        assert following is not None
        assert (await store.end_attempt(following.attempt.id, Outcome.AGENT_ERROR)).status is expected


async def test_attempts_of_dead_workers_are_given_back_at_once_and_count_nowhere(store: Store) -> None:
    await store.enqueue([make_rollout("r1", max_attempts=1), make_rollout("r2")])
    lost = await store.claim("here/7/0", lease_seconds=60)
    kept = await store.claim("here/8/0", lease_seconds=60)
    live = await store.start_live(make_rollout("live", mode="live"), "here/7/1", lease_seconds=60)
    assert lost is not None and kept is not None
    running = (await store.admit(make_call(lost))).call
    assert await store.give_back(lambda worker: worker.startswith("here/7/")) == [lost.attempt.id]
    assert await store.give_back(lambda worker: worker.startswith("here/7/")) == []
    with pytest.raises(Fenced):
        await store.complete(answered(running))
    with pytest.raises(Fenced, match="given back"):
        await store.end_attempt(lost.attempt.id, Outcome.OK)
    access = await store.access(lost.key)
    assert access is not None and not access.calls_open
    again = await store.claim("here/9/0", lease_seconds=60)
    assert again is not None and again.rollout.id == "r1"
    assert (await store.end_attempt(again.attempt.id, Outcome.LOST_WORKER)).status is RolloutStatus.QUEUED
    assert (await store.rollout("r2")).status is (await store.rollout("live")).status is RolloutStatus.RUNNING
    await store.heartbeat(live.attempt.id, lease_seconds=60)


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.NO_CALL, Outcome.NO_REWARD, Outcome.OVER_LONG_PROMPT])
async def test_a_failure_of_the_agent_is_final(store: Store, outcome: Outcome) -> None:
    claim = await claimed(store)
    assert (await store.end_attempt(claim.attempt.id, outcome)).outcome is outcome
    assert await store.claim("w", lease_seconds=60) is None


async def test_an_agent_error_is_tried_again_only_before_a_trained_call_completed(store: Store) -> None:
    first = await claimed(store)
    await store.complete(answered((await store.admit(make_call(first))).call, trainable=False))
    again = await store.end_attempt(first.attempt.id, Outcome.AGENT_ERROR)
    assert again.status is RolloutStatus.QUEUED
    second = await store.claim("w", lease_seconds=60)
    assert second is not None
    await store.complete(answered((await store.admit(make_call(second))).call))
    last = await store.end_attempt(second.attempt.id, Outcome.AGENT_ERROR, detail="KeyError")
    assert (last.status, last.outcome, last.detail) == (RolloutStatus.FINISHED, Outcome.AGENT_ERROR, "KeyError")


async def test_an_attempt_whose_lease_ran_out_is_fenced(store: Store, clock: StillClock) -> None:
    claim = await claimed(store)
    running = (await store.admit(make_call(claim))).call
    clock.pass_(30)
    assert await store.heartbeat(claim.attempt.id, lease_seconds=60) == clock.now + 60
    clock.pass_(59)
    assert await store.expire_leases() == []
    clock.pass_(2)
    assert await store.expire_leases() == [claim.attempt.id]
    second = await store.claim("w2", lease_seconds=60)
    assert second is not None and second.attempt.number == 2
    with pytest.raises(Fenced, match="lease ran out"):
        await store.heartbeat(claim.attempt.id, lease_seconds=60)
    with pytest.raises(Fenced):
        await store.end_attempt(claim.attempt.id, Outcome.OK)
    with pytest.raises(Fenced):
        await store.complete(answered(running))
    with pytest.raises(Fenced):
        await store.admit(make_call(claim, "c2"))
    assert (await store.rollout("r1")).status is RolloutStatus.RUNNING
    assert [c.status for c in await store.calls("r1", attempt_id=claim.attempt.id)] == [CallStatus.SEALED]
    assert await store.calls("r1") == []


async def test_cancelling_seals_what_runs_and_leaves_what_has_finished(store: Store) -> None:
    done = await claimed(store, "done")
    await store.end_attempt(done.attempt.id, Outcome.OK)
    running = await claimed(store, "running")
    call = (await store.admit(make_call(running))).call
    await store.enqueue([make_rollout("queued")])
    assert await store.cancel(["done", "running", "queued", "unknown"]) == 2
    assert await store.finished(["done", "running", "queued"]) == {"done", "running", "queued"}
    assert (await store.rollout("done")).status is RolloutStatus.FINISHED
    with pytest.raises(Fenced):
        await store.complete(answered(call))
    with pytest.raises(Fenced, match="cancelled"):
        await store.end_attempt(running.attempt.id, Outcome.OK)
    assert await store.claim("w", lease_seconds=60) is None


async def test_a_live_rollout_runs_at_once_and_is_never_tried_again(store: Store) -> None:
    claim = await store.start_live(make_rollout("live", mode="live"), "w", lease_seconds=60)
    assert (claim.rollout.status, claim.attempt.status) == (RolloutStatus.RUNNING, AttemptStatus.RUNNING)
    repeated = await store.start_live(make_rollout("live", mode="live"), "w", lease_seconds=60)
    assert repeated.attempt.id == claim.attempt.id
    assert await store.access(claim.key) is None, "the first key was never seen by anyone"
    assert await store.access(repeated.key) is not None
    with pytest.raises(Conflict):
        await store.start_live(make_rollout("live", mode="live"), "another worker", lease_seconds=60)
    ended = await store.end_attempt(claim.attempt.id, Outcome.INFRASTRUCTURE)
    assert ended.status is RolloutStatus.FINISHED


async def test_rollouts_are_listed_by_step_group_and_sibling(store: Store) -> None:
    where = [(1, "b", 0), (0, "b", 1), (0, "b", 0), (0, "a", 0)]
    await store.enqueue([make_rollout(f"{s}{g}{n}", step=s, group_id=g, sibling=n) for s, g, n in where])
    await store.enqueue([make_rollout("v", step=0, group_id="z", mode="val"), make_rollout("x", run_id="other")])
    assert [r.id for r in await store.rollouts("run")] == ["0a0", "0b0", "0b1", "v", "1b0"]
    assert [r.id for r in await store.rollouts("run", step=0, mode="train")] == ["0a0", "0b0", "0b1"]
    assert [r.id for r in await store.rollouts("run", ids=["v", "1b0", "x"])] == ["v", "1b0"]


async def test_finished_waits_for_one_more(store: Store) -> None:
    first = await claimed(store, "r1")
    second = await claimed(store, "r2")
    await store.end_attempt(first.attempt.id, Outcome.OK)
    assert await store.finished(["r1", "r2"]) == {"r1"}
    waiting = asyncio.create_task(store.finished(["r1", "r2"], wait_seconds=10))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await store.end_attempt(second.attempt.id, Outcome.OK)
    started = time.monotonic()
    assert await waiting == {"r1", "r2"}
    assert await store.finished(["r1", "r2"], wait_seconds=10) == {"r1", "r2"}
    assert time.monotonic() - started < 0.5


async def test_finished_gives_up_when_the_time_is_up(store: Store) -> None:
    await store.enqueue([make_rollout("r1")])
    assert await store.finished(["r1"], wait_seconds=0.05) == set()


# --- keys -------------------------------------------------------------------------------------------------------


async def test_a_key_opens_calls_and_rewards_until_the_attempt_ends(store: Store) -> None:
    claim = await claimed(store)
    access = await store.access(claim.key)
    assert access is not None
    assert (access.rollout.id, access.attempt_id) == ("r1", claim.attempt.id)
    assert (access.calls_open, access.rewards_open) == (True, True)
    await store.end_attempt(claim.attempt.id, Outcome.OK)
    access = await store.access(claim.key)
    assert access is not None and (access.calls_open, access.rewards_open) == (False, False)


async def test_a_live_key_takes_rewards_until_the_deadline(store: Store, clock: StillClock) -> None:
    claim = await store.start_live(make_rollout("live", mode="live"), "w", lease_seconds=60)
    await store.end_attempt(claim.attempt.id, Outcome.OK)
    clock.pass_(24 * 3600 - 1)
    access = await store.access(claim.key)
    assert access is not None and (access.calls_open, access.rewards_open) == (False, True)
    assert not (await store.add_reward(make_reward(claim, "in time"))).stale
    clock.pass_(2)
    access = await store.access(claim.key)
    assert access is not None and not access.rewards_open
    assert (await store.add_reward(make_reward(claim, "late"))).stale


@pytest.mark.parametrize(
    "change", [lambda k: k + "x", lambda k: k[:-1], lambda k: k[4:], lambda k: "", lambda k: "alr-."]
)
async def test_another_key_opens_nothing(store: Store, change) -> None:
    claim = await claimed(store)
    assert await store.access(change(claim.key)) is None
