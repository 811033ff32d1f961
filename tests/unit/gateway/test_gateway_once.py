"""Exactly once: retries join, replay or begin anew; what was not committed was not answered."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from agent_lightning.errors import EngineBusy, EngineError, StoreError
from agent_lightning.gateway.gateway import Asked
from agent_lightning.records import CallStatus, Claim, Outcome
from agent_lightning.wire import protocol
from gateway_rig import Rig, raised, rig, until

USER = [{"role": "user", "content": "hello there"}]


def body(**fields: object) -> dict[str, object]:
    return {"model": "m", "messages": USER, **fields}


def headers(claim: Claim, call_id: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {claim.key}", protocol.CALL_ID: call_id, **more}


async def post(here: Rig, claim: Claim, call_id: str, **fields: object) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20, verify=False) as client:
        return await client.post(
            f"{here.url}/v1/chat/completions", json=body(**fields), headers=headers(claim, call_id)
        )


def events(text: str) -> list[dict]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_a_retry_of_a_finished_call_gets_the_stored_answer_and_samples_nothing():
    async with rig(lambda request: "once") as here:
        claim = await here.claim()
        first = await post(here, claim, "c1")
        second = await post(here, claim, "c1")
        assert first.json() == second.json()
        assert len(here.engine.requests) == 1
        assert len(await here.store.calls(claim.rollout.id)) == 1


async def test_a_retry_of_a_finished_stream_is_streamed_the_same_answer():
    async with rig(lambda request: "once more") as here:
        claim = await here.claim()
        first = await post(here, claim, "c1", stream=True)
        second = await post(here, claim, "c1", stream=True)
        text = ["".join(e["choices"][0]["delta"].get("content", "") for e in events(r.text)) for r in (first, second)]
        assert text == ["once more", "once more"]
        assert second.text.endswith("data: [DONE]\n\n")
        assert len(here.engine.requests) == 1


async def test_a_retry_after_the_gateway_was_restarted_is_replayed_from_the_store():
    async with rig(lambda request: "kept") as here:
        claim = await here.claim()
        first = await post(here, claim, "c1")
        here.gateway.forget(claim.attempt.id)
        second = await post(here, claim, "c1")
        assert first.json() == second.json()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_of_a_running_call_joins_it(stream: bool):
    async with rig(lambda request: "shared") as here:
        here.engine.gate = asyncio.Event()
        claim = await here.claim()
        asked = [asyncio.create_task(post(here, claim, "c1", stream=stream)) for _ in range(3)]
        await until(lambda: here.gateway.counts.joined == 2)
        here.engine.gate.set()
        answers = [(await each).text for each in asked]
        assert len(set(answers)) == 1
        assert len(here.engine.requests) == 1


async def test_the_same_id_with_another_body_is_a_conflict_that_sdks_do_not_repeat():
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        await post(here, claim, "c1")
        other = await post(here, claim, "c1", temperature=0.5)
        assert other.status_code == 409
        assert other.headers["x-should-retry"] == "false"


async def test_a_broken_call_is_generated_anew_in_its_own_place():
    said = iter([lambda: raised(EngineError("the engine fell over")), lambda: "second try"])
    async with rig(lambda request: next(said)()) as here:
        claim = await here.claim()
        first = await post(here, claim, "c1")
        assert first.status_code == 500
        assert first.json()["error"]["code"] == "engine_error"
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.status is CallStatus.BROKEN
        second = await post(here, claim, "c1")
        assert second.json()["choices"][0]["message"]["content"] == "second try"
        (call,) = await here.store.calls(claim.rollout.id)
        assert (call.order, call.status) == (0, CallStatus.COMPLETED)


async def test_the_sdk_itself_gets_through_a_busy_engine():
    said = iter([lambda: raised(EngineBusy("all places are taken")), lambda: "made it"])
    async with rig(lambda request: next(said)()) as here:
        claim = await here.claim()
        async with here.client(claim, max_retries=2) as client:
            answer = await client.chat.completions.create(
                model="m", messages=USER, extra_headers={protocol.CALL_ID: "c1"}
            )
        assert answer.choices[0].message.content == "made it"
        assert len(await here.store.calls(claim.rollout.id)) == 1


async def test_the_end_of_a_stream_is_held_until_the_call_is_committed(monkeypatch: pytest.MonkeyPatch):
    async with rig(lambda request: "told") as here:
        claim = await here.claim()
        may_commit, complete = asyncio.Event(), here.store.complete

        async def slowly(call):
            await may_commit.wait()
            await complete(call)

        monkeypatch.setattr(here.store, "complete", slowly)
        async with here.client(claim) as client:
            stream = await client.chat.completions.create(model="m", messages=USER, stream=True)
            text, reasons = "", []
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                reasons.append(chunk.choices[0].finish_reason)
                if text == "told" and not may_commit.is_set():
                    (call,) = await here.store.calls(claim.rollout.id)
                    assert call.status is CallStatus.RUNNING
                    assert set(reasons) == {None}
                    may_commit.set()
        assert reasons[-1] == "stop"


async def test_a_stream_that_cannot_be_committed_ends_in_an_error_event(monkeypatch: pytest.MonkeyPatch):
    async with rig(lambda request: "lost") as here:
        claim = await here.claim()

        async def fails(call):
            raise StoreError("the disk is full")

        monkeypatch.setattr(here.store, "complete", fails)
        answer = await post(here, claim, "c1", stream=True)
        assert events(answer.text)[-1]["error"]["message"] == "the disk is full"
        assert "[DONE]" not in answer.text
        assert not any(e["choices"][0]["finish_reason"] for e in events(answer.text) if "choices" in e)
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.status is CallStatus.BROKEN
        async with here.client(claim) as client:
            with pytest.raises(openai.APIError, match="disk is full"):
                async for _ in await client.chat.completions.create(model="m", messages=USER, stream=True):
                    pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_the_sequence_and_breaks_the_call(stream: bool):
    async with rig(lambda request: "a very long answer") as here:
        here.engine.gate = asyncio.Event()
        claim = await here.claim()
        asking = asyncio.create_task(post(here, claim, "c1", stream=stream))
        await until(lambda: here.engine.requests)
        asking.cancel()
        await until(lambda: not here.gateway.in_flight)
        assert here.engine.aborted == [f"{claim.attempt.id}/c1"]
        (call,) = await here.store.calls(claim.rollout.id)
        assert (call.status, call.error) == (CallStatus.BROKEN, "the client left")
        here.engine.gate.set()
        assert (await post(here, claim, "c1", stream=stream)).status_code == 200


async def test_the_deadline_aborts_the_sequence_and_is_counted():
    async with rig(lambda request: "slow") as here:
        here.engine.gate = asyncio.Event()
        claim = await here.claim()
        async with httpx.AsyncClient(verify=False) as client:
            late = await client.post(
                f"{here.url}/v1/chat/completions",
                json=body(),
                headers=headers(claim, "c1", **{protocol.DEADLINE: "50"}),
            )
        assert late.status_code == 504
        assert late.json()["error"]["code"] == "step_timeout"
        assert here.engine.aborted == [f"{claim.attempt.id}/c1"]
        assert here.gateway.counts.timeout_rate == 1.0


async def test_calls_of_an_ended_attempt_are_gone_for_good():
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        await post(here, claim, "c1")
        await here.store.end_attempt(claim.attempt.id, Outcome.OK)
        for call_id in ("c2", "c1"):
            late = await post(here, claim, call_id)
            assert late.status_code == 410
            assert late.headers["x-should-retry"] == "false"
        async with here.client(claim, max_retries=2) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(model="m", messages=USER)
        assert caught.value.status_code == 410


async def test_a_call_whose_attempt_ends_meanwhile_is_sealed_and_not_answered():
    async with rig(lambda request: "late") as here:
        here.engine.gate = asyncio.Event()
        claim = await here.claim()
        asked = asyncio.create_task(post(here, claim, "c1"))
        await until(lambda: here.engine.requests)
        await here.store.end_attempt(claim.attempt.id, Outcome.OK)
        here.engine.gate.set()
        assert (await asked).status_code == 410
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.status is CallStatus.SEALED


async def test_a_rollouts_key_opens_no_other_rollouts_calls():
    said = iter(["of the first", "of the second"])
    async with rig(lambda request: next(said)) as here:
        first, second = await here.claim(), await here.claim()
        await post(here, first, "c1")
        answer = await post(here, second, "c1")
        assert answer.json()["choices"][0]["message"]["content"] == "of the second"
        assert [c.attempt_id for c in await here.store.calls(second.rollout.id)] == [second.attempt.id]


async def test_identical_prompts_stay_distinct_calls_with_noise_of_their_own():
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        await asyncio.gather(*(post(here, claim, f"c{i}") for i in range(4)))
        assert len(await here.store.calls(claim.rollout.id)) == 4
        assert len({request.noise_key for request in here.engine.requests}) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_n_choices_are_n_calls_and_replay_together(stream: bool):
    async with rig(lambda request: f"choice {request.noise_key[-1]}") as here:
        claim = await here.claim()
        first = await post(here, claim, "c1", n=3, stream=stream)
        second = await post(here, claim, "c1", n=3, stream=stream)
        for answer in (first, second):
            texts = ["", "", ""]
            parts = [answer.json()] if not stream else events(answer.text)
            for made in (made for part in parts for made in part["choices"]):
                texts[made["index"]] += (made.get("message") or made["delta"]).get("content") or ""
            assert texts == ["choice 0", "choice 1", "choice 2"]
        calls = await here.store.calls(claim.rollout.id)
        assert sorted(call.id for call in calls) == ["c1", "c1.1", "c1.2"]
        assert {call.index for call in calls} == {0}
        assert len(here.engine.requests) == 3


async def test_choices_that_were_committed_before_a_crash_are_said_again(monkeypatch: pytest.MonkeyPatch):
    async with rig(lambda request: f"choice {request.noise_key[-1]}") as here:
        claim = await here.claim()
        complete = here.store.complete

        async def crashes(call):
            if call.id == "c1":
                raise StoreError("power cut")
            await complete(call)

        monkeypatch.setattr(here.store, "complete", crashes)
        assert (await post(here, claim, "c1", n=2)).status_code == 500
        monkeypatch.setattr(here.store, "complete", complete)
        answer = await post(here, claim, "c1", n=2)
        assert [made["message"]["content"] for made in answer.json()["choices"]] == ["choice 0", "choice 1"]
        assert len(here.engine.requests) == 3


async def test_a_request_that_is_cancelled_at_once_leaves_nothing_behind():
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        asked = Asked(key=claim.key, call_id="c1", body=json.dumps(body()).encode())
        for steps in range(12):
            task = asyncio.create_task(here.gateway.answer(asked))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        answer = await asyncio.wait_for(here.gateway.answer(asked), 5)
        assert answer.body is not None
        await until(lambda: not here.gateway.in_flight)
        assert [call.id for call in await here.store.calls(claim.rollout.id)] == ["c1"]
