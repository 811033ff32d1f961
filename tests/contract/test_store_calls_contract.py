"""What every store promises about calls, rewards, spans and training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_lightning.errors import Conflict, NotFound, RunInUse
from agent_lightning.records import (
    CallStatus,
    Claim,
    Outcome,
    PolicyVersion,
    Span,
    nats,
    token_ids,
)
from agent_lightning.store.store import BatchRecord, Store
from store_cases import StillClock, answered, make_call, make_reward, make_rollout


async def claimed(store: Store, rollout_id: str = "r1", **given: object) -> Claim:
    await store.enqueue([make_rollout(rollout_id, **given)])
    claim = await store.claim("worker", lease_seconds=60)
    assert claim is not None and claim.rollout.id == rollout_id
    return claim


# --- calls ------------------------------------------------------------------------------------------------------


async def test_a_completed_call_comes_back_whole(store: Store, clock: StillClock) -> None:
    claim = await claimed(store)
    admission = await store.admit(make_call(claim, request={"deep": [1, {"x": None}], "text": "grüß \ud800"}))
    assert (admission.kind, admission.call.order, admission.call.index) == ("new", 0, 0)
    clock.pass_(2)
    done = answered(
        admission.call,
        suffix_ids=token_ids([0, 2**31 - 1, -1]),
        sampled_ids=token_ids([7]),
        logprobs=nats([-3.4e38]),
        parent_call_id="c0",
        prompt_offset=12,
        first_token_at=clock.now - 1,
        error="a check failed",
        trainable=False,
        meta={"engine": "scripted"},
    )
    await store.complete(done)
    [kept] = await store.calls("r1")
    assert kept == replace(done, status=CallStatus.COMPLETED, finished_at=clock.now)
    assert (kept.suffix_ids.typecode, kept.logprobs.typecode) == ("i", "f")
    await store.complete(done)


async def test_order_is_the_order_of_admission_and_overlapping_calls_share_an_index(store: Store) -> None:
    claim = await claimed(store)

    async def admit(call_id: str, span: str | None) -> tuple[int, int]:
        call = (await store.admit(make_call(claim, call_id, parent_span=span))).call
        return call.order, call.index

    async def finish(call_id: str) -> None:
        await store.complete(answered(make_call(claim, call_id)))

    assert await admit("a", "s") == (0, 0)
    assert await admit("b", "s") == (1, 0), "overlaps with a under one span"
    assert await admit("c", "t") == (2, 1), "another span"
    assert await admit("d", None) == (3, 2), "no span"
    assert await admit("e", None) == (4, 3), "no span is not one span"
    await finish("a")
    assert await admit("f", "s") == (5, 0), "b is still running"
    await finish("b")
    await finish("f")
    assert await admit("g", "s") == (6, 4), "nothing overlaps any more"
    assert [c.id for c in await store.calls("r1")] == list("abcdefg")


async def test_a_duplicate_joins_a_running_call_and_replays_a_completed_one(store: Store) -> None:
    claim = await claimed(store)
    first = await store.admit(make_call(claim))
    joined = await store.admit(make_call(claim))
    assert (joined.kind, joined.call) == ("joined", first.call)
    await store.complete(answered(first.call))
    replayed = await store.admit(make_call(claim))
    assert replayed.kind == "replay"
    assert replayed.call.response == answered(first.call).response
    with pytest.raises(Conflict, match="another body"):
        await store.admit(make_call(claim, request_hash="another"))
    assert len(await store.calls("r1")) == 1


async def test_a_broken_call_is_made_anew_in_its_old_place(store: Store) -> None:
    claim = await claimed(store)
    await store.admit(make_call(claim, "a"))
    await store.admit(make_call(claim, "b"))
    await store.break_call(claim.attempt.id, "a", "engine died")
    assert (await store.calls("r1"))[0].error == "engine died"
    with pytest.raises(Conflict, match="broken"):
        await store.complete(answered(make_call(claim, "a")))
    again = await store.admit(make_call(claim, "a"))
    assert (again.kind, again.call.order, again.call.index) == ("new", 0, 0)
    await store.complete(answered(again.call))
    kept = await store.calls("r1")
    assert [(c.id, c.order, c.status) for c in kept] == [("a", 0, CallStatus.COMPLETED), ("b", 1, CallStatus.RUNNING)]
    assert kept[0].error is None
    with pytest.raises(Conflict):
        await store.break_call(claim.attempt.id, "a", "too late")


async def test_calls_of_nobody_are_refused(store: Store) -> None:
    claim = await claimed(store)
    with pytest.raises(NotFound):
        await store.admit(make_call(claim, attempt_id="nobody"))
    with pytest.raises(Conflict, match="belongs to rollout"):
        await store.admit(make_call(claim, rollout_id="r2"))
    with pytest.raises(NotFound):
        await store.complete(answered(make_call(claim, "never admitted")))
    with pytest.raises(NotFound):
        await store.break_call(claim.attempt.id, "never admitted", "x")


async def test_every_rollout_that_was_asked_for_has_its_entry(store: Store) -> None:
    claim = await claimed(store)
    await store.admit(make_call(claim))
    await store.add_reward(make_reward(claim))
    calls, rewards = await store.calls_of(["r1", "r2"]), await store.rewards_of(["r2", "r1"])
    assert {k: len(v) for k, v in calls.items()} == {"r1": 1, "r2": 0}
    assert {k: len(v) for k, v in rewards.items()} == {"r1": 1, "r2": 0}


# --- rewards and spans ------------------------------------------------------------------------------------------


async def test_a_reward_sent_twice_is_one_and_they_come_oldest_first(store: Store, clock: StillClock) -> None:
    claim = await claimed(store)
    await store.add_reward(make_reward(claim, "w1", 0.5))
    clock.pass_(1)
    await store.add_reward(make_reward(claim, "w2", 0.75, target="step", target_id="c1", source="judge"))
    kept = await store.add_reward(make_reward(claim, "w1", 9.0))
    assert kept.value == 0.5
    found = (await store.rewards_of(["r1"]))["r1"]
    assert [(r.id, r.value, r.target, r.target_id, r.source) for r in found] == [
        ("w1", 0.5, "rollout", "", "agent"),
        ("w2", 0.75, "step", "c1", "judge"),
    ]


async def test_rewards_after_the_end_or_after_the_freeze_are_stale(store: Store) -> None:
    claim = await claimed(store)
    assert not (await store.add_reward(make_reward(claim, "in time"))).stale
    await store.end_attempt(claim.attempt.id, Outcome.OK)
    assert (await store.add_reward(make_reward(claim, "after the end"))).stale
    live = await store.start_live(make_rollout("live", mode="live"), "w", lease_seconds=60)
    assert not (await store.add_reward(make_reward(live, "before"))).stale
    await store.freeze(["live"])
    assert (await store.add_reward(make_reward(live, "after"))).stale
    assert (await store.rollout("live")).frozen_at is not None
    access = await store.access(live.key)
    assert access is not None and (access.calls_open, access.rewards_open) == (True, False)
    found = await store.rewards_of(["r1", "live"])
    assert {k: [r.id for r in v] for k, v in found.items()} == {"r1": ["in time"], "live": ["before"]}


async def test_rewards_of_a_fenced_attempt_do_not_count(store: Store) -> None:
    first = await claimed(store)
    await store.add_reward(make_reward(first, "w1", 5.0))
    await store.end_attempt(first.attempt.id, Outcome.INFRASTRUCTURE)
    second = await store.claim("w", lease_seconds=60)
    assert second is not None
    await store.add_reward(make_reward(second, "w2", 1.0))
    assert (await store.add_reward(make_reward(first, "w3", 7.0))).stale
    assert [r.id for r in (await store.rewards_of(["r1"]))["r1"]] == ["w2"]
    with pytest.raises(NotFound):
        await store.add_reward(replace(make_reward(second, "w4"), attempt_id="nobody"))
    with pytest.raises(Conflict):
        await store.add_reward(replace(make_reward(second, "w4"), rollout_id="r2"))


async def test_a_span_is_sent_again_when_it_ends(store: Store) -> None:
    span = Span(
        trace_id="1" * 32, span_id="2" * 16, parent_span_id=None, rollout_id="r1", attempt_id="a", name="solve",
        kind="agent", start_ns=1_700_000_000_000_000_123, end_ns=0, attributes={"k": [1, 2]},
    )  # fmt: skip
    ended = replace(span, end_ns=1_700_000_000_000_000_999, status="ok", call_id="c1")
    await store.add_spans([span, replace(span, span_id="3" * 16, start_ns=5)])
    await store.add_spans([ended])
    assert await store.spans("r1") == [replace(span, span_id="3" * 16, start_ns=5), ended]


# --- training ---------------------------------------------------------------------------------------------------


async def test_a_run_has_one_holder(store: Store, clock: StillClock) -> None:
    await store.open_run("run", {"seed": 1}, holder="trainer A", lease_seconds=30)
    with pytest.raises(RunInUse, match="trainer A since 1970-01-01 00:16:40"):
        await store.open_run("run", {"seed": 1}, holder="trainer B", lease_seconds=30)
    await store.open_run("another", {}, holder="trainer B", lease_seconds=30)
    clock.pass_(20)
    await store.hold_run("run", holder="trainer A", lease_seconds=30)
    clock.pass_(31)
    await store.open_run("run", {"seed": 2}, holder="trainer B", lease_seconds=30)
    with pytest.raises(RunInUse, match="trainer B"):
        await store.hold_run("run", holder="trainer A", lease_seconds=30)
    await store.release_run("run", holder="trainer A")
    with pytest.raises(RunInUse):
        await store.open_run("run", {}, holder="trainer A", lease_seconds=30)
    await store.release_run("run", holder="trainer B")
    [first, second] = sorted(await store.runs(), key=lambda r: r["id"])
    assert (first["id"], first["ended_at"]) == ("another", None)
    assert (second["settings"], second["created_at"], second["ended_at"]) == ({"seed": 2}, 1000.0, clock.now)
    with pytest.raises(RunInUse, match="released"):
        await store.hold_run("run", holder="trainer B", lease_seconds=30)
    with pytest.raises(NotFound):
        await store.hold_run("nothing", holder="trainer B", lease_seconds=30)


async def test_a_batch_is_replaced_until_it_is_applied(store: Store, clock: StillClock) -> None:
    record = BatchRecord(
        run_id="run", policy="p", step=3, version=4, rollout_ids=("r1", "r2"), payload=b"\x00\xff" * 9, rate=1e-5,
        state={"random": [1, 2]}, applied=False,
    )  # fmt: skip
    await store.commit_batch(record)
    better = replace(record, payload=b"other")
    await store.commit_batch(better)
    await store.commit_batch(replace(record, version=5))
    assert await store.batches("run", "p", after_version=3) == [
        replace(better, created_at=clock.now),
        replace(record, version=5, created_at=clock.now),
    ]
    await store.mark_applied("run", "p", 4, {"learner.kl": 0.25})
    with pytest.raises(Conflict, match="applied"):
        await store.commit_batch(record)
    assert [b.applied for b in await store.batches("run", "p", after_version=0)] == [True, False]
    with pytest.raises(NotFound):
        await store.mark_applied("run", "p", 9, {})


async def test_versions_carry_the_metrics_of_their_update(store: Store, clock: StillClock) -> None:
    base = PolicyVersion(run_id="run", policy="p", version=0, parent=None, checkpoint=None)
    first = PolicyVersion(run_id="run", policy="p", version=1, parent=0, checkpoint="v1", metrics={"val": 0.5})
    other = PolicyVersion(run_id="run", policy="q", version=0, parent=None, checkpoint=None, created_at=5.0)
    await store.commit_batch(
        BatchRecord(run_id="run", policy="p", step=0, version=1, rollout_ids=(), payload=b"", rate=0.0, state={},
                    applied=False)
    )  # fmt: skip
    await store.mark_applied("run", "p", 1, {"loss": 2.0, "val": 0.1})
    for version in (base, first, other, first):
        await store.add_version(version)
    expected = [
        replace(base, created_at=clock.now),
        replace(first, created_at=clock.now, metrics={"loss": 2.0, "val": 0.5}),
    ]
    assert await store.versions("run", "p") == expected
    assert await store.versions("run") == [*expected, other]


async def test_events_come_oldest_first(store: Store, clock: StillClock) -> None:
    await store.add_event("run", "metrics", 1, {"reward.mean": 0.5})
    await store.add_event("run", "alert", 1, {"what": "flat"})
    await store.add_event("other", "metrics", 1, {})
    await store.add_event("run", "metrics", 2, {"reward.mean": 0.75})
    assert [e["step"] for e in await store.events("run", "metrics")] == [1, 2]
    assert (await store.events("run"))[1] == {
        "kind": "alert", "step": 1, "body": {"what": "flat"}, "created_at": clock.now,
    }  # fmt: skip
