"""What every store promises about turns between runs, pages of what has ended, and transitions that are not allowed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from agent_lightning.errors import Conflict, Fenced, NotFound
from agent_lightning.records import Outcome, RolloutStatus, Task
from agent_lightning.store.store import Store
from store_cases import answered, make_call, make_reward, make_rollout

# --- turns ------------------------------------------------------------------------------------------------------


async def test_a_run_with_many_rollouts_does_not_starve_one_with_three(store: Store) -> None:
    await store.enqueue([make_rollout(f"many{n}", run_id="many") for n in range(10_000)])
    await store.enqueue([make_rollout(f"few{n}", run_id="few") for n in range(3)])
    order = []
    for _ in range(8):
        claim = await store.claim("w", lease_seconds=60)
        assert claim is not None
        order.append(claim.rollout.run_id)
    assert order == ["few", "many", "few", "many", "few", "many", "many", "many"]


async def test_the_run_with_the_fewest_at_work_comes_first(store: Store) -> None:
    await store.enqueue([make_rollout(f"{run}{n}", run_id=run) for run in "ab" for n in range(4)])
    held = [await store.claim("w", lease_seconds=60, run_id="a") for _ in range(2)]
    await store.start_live(make_rollout("live", mode="live", run_id="b"), "w", lease_seconds=60)
    ahead = [await store.claim("w", lease_seconds=60) for _ in range(2)]
    assert [claim and claim.rollout.run_id for claim in ahead] == ["b", "b"], "live traffic takes nobody's turn"
    assert held[0] is not None
    await store.end_attempt(held[0].attempt.id, Outcome.OK)
    following = await store.claim("w", lease_seconds=60)
    assert following is not None and following.rollout.run_id == "a"


async def test_turns_are_taken_among_those_of_the_highest_priority(store: Store) -> None:
    await store.enqueue([make_rollout(f"low{n}", run_id="low") for n in range(2)])
    await store.enqueue([make_rollout(f"high{n}", run_id="high", priority=1) for n in range(2)])
    claims = [await store.claim("w", lease_seconds=60) for _ in range(4)]
    assert [claim and claim.rollout.id for claim in claims] == ["high0", "high1", "low0", "low1"]


# --- pages ------------------------------------------------------------------------------------------------------


async def test_pages_stay_whole_while_rollouts_end_beside_them(store: Store) -> None:
    names = [f"r{n}" for n in range(120)]
    await store.enqueue([make_rollout(name) for name in names])
    cursor, seen = 0, []

    async def work(worker: str) -> None:
        while (claim := await store.claim(worker, lease_seconds=60)) is not None:
            await store.end_attempt(claim.attempt.id, Outcome.OK)

    workers = asyncio.gather(*(work(f"w{n}") for n in range(6)))
    while not workers.done() or len(seen) < len(names):
        page = await store.page("run", after=cursor, limit=7)
        seen += [rollout.id for rollout in page.rollouts]
        cursor = page.next
        await asyncio.sleep(0)
    await workers
    assert Counter(seen) == Counter(names)
    assert (await store.page("run", after=cursor)).rollouts == ()
    assert (await store.page("run", after=cursor)).next == cursor


async def test_what_has_not_ended_is_on_no_page(store: Store) -> None:
    await store.enqueue([make_rollout("queued"), make_rollout("other", run_id="other")])
    await store.start_live(make_rollout("running", mode="live"), "w", lease_seconds=60)
    assert (await store.page("run")).rollouts == ()


# --- transitions that are not allowed ---------------------------------------------------------------------------


async def test_an_id_means_one_rollout(store: Store) -> None:
    await store.enqueue([make_rollout("r1")])
    for other in (
        make_rollout("r1", run_id="other"),
        make_rollout("r1", mode="val"),
        make_rollout("r1", task=Task(id="another", input=1)),
    ):
        with pytest.raises(Conflict, match="'r1' exists already"):
            await store.enqueue([make_rollout("new"), other])
    assert [rollout.id for rollout in await store.rollouts("run")] == ["r1"], "none of a refused list is queued"


async def test_what_has_finished_cannot_be_cancelled_ended_otherwise_or_begun_again(store: Store) -> None:
    await store.enqueue([make_rollout("r1")])
    claim = await store.claim("w", lease_seconds=60)
    assert claim is not None
    await store.end_attempt(claim.attempt.id, Outcome.OK)
    before = await store.rollout("r1")
    with pytest.raises(Conflict, match="finished as ok"):
        await store.cancel_one("r1")
    assert await store.cancel(["r1"]) == 0
    with pytest.raises(Conflict, match="ended as ok already"):
        await store.end_attempt(claim.attempt.id, Outcome.AGENT_ERROR)
    with pytest.raises(Conflict, match="exists already"):
        await store.start_live(make_rollout("r1", mode="live"), "w", lease_seconds=60)
    with pytest.raises(Fenced):
        await store.heartbeat(claim.attempt.id, lease_seconds=60)
    assert await store.claim("w", lease_seconds=60) is None
    assert await store.enqueue([make_rollout("r1")]) == 0
    assert await store.rollout("r1") == before


async def test_a_cancelled_rollout_stays_cancelled(store: Store) -> None:
    await store.enqueue([make_rollout("r1"), make_rollout("r2")])
    claim = await store.claim("w", lease_seconds=60)
    assert claim is not None
    call = (await store.admit(make_call(claim))).call
    cancelled = await store.cancel_one("r1")
    assert cancelled.status is RolloutStatus.CANCELLED
    assert await store.cancel_one("r1") == cancelled
    for refused in (
        store.end_attempt(claim.attempt.id, Outcome.OK),
        store.heartbeat(claim.attempt.id, lease_seconds=60),
        store.admit(make_call(claim, "c2")),
        store.complete(answered(call)),
    ):
        with pytest.raises(Fenced):  # taken from its worker, which is told to stop: 410
            await refused
    assert (await store.add_reward(make_reward(claim))).stale
    await store.cancel_one("r2")
    with pytest.raises(Conflict, match=r"is queued|exists already"):
        await store.start_live(make_rollout("r2", mode="live"), "w", lease_seconds=60)
    assert await store.claim("w", lease_seconds=60) is None


async def test_nothing_happens_to_what_nobody_made(store: Store) -> None:
    await store.enqueue([make_rollout("queued")])
    claim = await store.start_live(make_rollout("live", mode="live"), "w", lease_seconds=60)
    for unknown in (
        store.cancel_one("nobody"),
        store.rollout("nobody"),
        store.end_attempt("nobody", Outcome.OK),
        store.heartbeat("nobody", lease_seconds=60),
        store.add_reward(make_reward(claim, attempt_id="nobody")),
        store.add_reward(make_reward(claim, attempt_id="nobody", rollout_id="nobody")),
    ):
        with pytest.raises(NotFound):
            await unknown
    with pytest.raises(Conflict):
        await store.add_reward(make_reward(claim, rollout_id="queued"))
