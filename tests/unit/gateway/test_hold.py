"""The gate between agents and weights."""

from __future__ import annotations

import asyncio

import pytest

from agent_lightning.errors import EngineBusy, EngineError
from agent_lightning.gateway.hold import Hold
from gateway_rig import rig

USER = [{"role": "user", "content": "hello"}]


async def test_requests_wait_while_weights_change_and_go_on_afterwards():
    hold, order = Hold(lambda: 0.0), []

    async def request(name: str) -> None:
        async with hold.passing(name):
            order.append(name)

    async with hold.changing("new weights", drain_seconds=1):
        waiting = asyncio.create_task(request("late"))
        await asyncio.sleep(0.02)
        order.append("changed")
    await waiting
    assert order == ["changed", "late"]


async def test_a_change_waits_for_those_inside():
    hold, order = Hold(lambda: 0.0), []

    async def request() -> None:
        async with hold.passing("early"):
            await asyncio.sleep(0.05)
            order.append("done")

    inside = asyncio.create_task(request())
    await asyncio.sleep(0)
    async with hold.changing("new weights", drain_seconds=1):
        order.append("changing")
    await inside
    assert order == ["done", "changing"]


async def test_a_drain_that_takes_too_long_names_the_oldest_call_and_opens_the_gate_again():
    now = [0.0]
    hold = Hold(lambda: now[0])
    async with hold.passing("call a of rollout r"):
        now[0] = 5.0
        async with hold.passing("call b of rollout r"):
            with pytest.raises(
                EngineError, match=r"2 calls in flight; the oldest is call a of rollout r, running for 5"
            ):
                async with hold.changing("publishing version 4", drain_seconds=0.02):
                    pass
    async with hold.passing("another"):
        assert hold.in_flight == 1


async def test_a_request_that_waits_too_long_is_told_to_come_back():
    hold = Hold(lambda: 0.0, wait_seconds=0.02)
    async with hold.changing("version 4 is published", drain_seconds=1):
        with pytest.raises(EngineBusy, match="version 4 is published"):
            async with hold.passing("call c"):
                pass


async def test_a_held_gateway_says_503_with_retry_after_and_then_serves():
    async with rig(lambda request: "x", hold_seconds=0.05) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            async with here.gateway.hold.changing("new weights", drain_seconds=1):
                raw = None
                try:
                    await client.chat.completions.create(model="m", messages=USER)
                except Exception as error:  # the SDK's class for a 503
                    raw = error.response
                assert raw is not None
                assert (raw.status_code, raw.headers["retry-after"]) == (503, "1")
            assert (await client.chat.completions.create(model="m", messages=USER)).choices[0].message.content == "x"
