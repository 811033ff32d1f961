"""Who speaks to the engine next."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_lightning.errors import EngineBusy
from agent_lightning.gateway import gateway as room
from agent_lightning.gateway.admission import Admission
from gateway_rig import rig, until

USER = [{"role": "user", "content": "hello there"}]


async def test_a_rollout_with_a_hundred_calls_does_not_keep_one_with_a_single_call_waiting():
    admission, order = Admission(2, 1000), []

    async def call(rollout: str) -> None:
        async with admission.turn(rollout):
            order.append(rollout)
            await asyncio.sleep(0)

    calls = [asyncio.create_task(call("greedy")) for _ in range(100)]
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(call("modest")))
    await asyncio.gather(*calls)
    assert order.index("modest") <= 4
    assert (admission.inside, admission.waiting, admission._rollouts) == (0, 0, {})


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), places=st.integers(1, 4), rollouts=st.integers(1, 5))
def test_places_are_never_exceeded_nor_lost_whoever_leaves_when(seed: int, places: int, rollouts: int):
    async def live() -> None:
        chance, admission, most = random.Random(seed), Admission(places, 8), Counter()

        async def call(rollout: str) -> None:
            try:
                async with admission.turn(rollout):
                    most["inside"] = max(most["inside"], admission.inside)
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
                    if chance.random() < 0.2:
                        raise ValueError
            except EngineBusy:
                most["refused"] += 1

        calls: list[asyncio.Task[None]] = []
        for _ in range(60):
            calls.append(asyncio.create_task(call(f"r{chance.randrange(rollouts)}")))
            if chance.random() < 0.3:
                chance.choice(calls).cancel()
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, ValueError | asyncio.CancelledError | None) for end in ended)
        assert 1 <= most["inside"] <= places
        assert (admission.inside, admission.waiting, admission._rollouts) == (0, 0, {})
        async with admission.turn("after all"):
            assert admission.inside == 1

    asyncio.run(live())


async def test_when_too_many_wait_the_client_is_told_when_to_come_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "WAITING", 1)
    async with rig(lambda request: "yes", capacity=1) as here:
        here.engine.gate = asyncio.Event()
        claim = await here.claim()
        async with here.client(claim) as client:
            asked = [asyncio.create_task(client.chat.completions.create(model="m", messages=USER)) for _ in range(2)]
            await until(lambda: here.gateway.admission.waiting == 1)
            with pytest.raises(openai.InternalServerError, match="wait for the engine") as caught:
                await client.chat.completions.create(model="m", messages=USER)
            assert caught.value.response.headers["retry-after"] == "1"
            here.engine.gate.set()
            answers = await asyncio.gather(*asked)
        assert [answer.choices[0].message.content for answer in answers] == ["yes", "yes"]


async def test_waiting_for_a_place_is_not_counted_as_the_steps_own_time():
    async with rig(lambda request: "yes", capacity=1) as here:
        here.engine.gate = asyncio.Event()
        claim = await here.claim()
        async with here.client(claim) as client:
            first = asyncio.create_task(client.chat.completions.create(model="m", messages=USER))
            await until(lambda: here.gateway.admission.inside == 1)
            short = {"x-lightning-deadline-ms": "200"}
            second = asyncio.create_task(client.chat.completions.create(model="m", messages=USER, extra_headers=short))
            await until(lambda: here.gateway.admission.waiting == 1)
            await asyncio.sleep(0.4)
            here.engine.gate.set()
            assert (await second).choices[0].message.content == "yes"
            await first
