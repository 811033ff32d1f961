"""The official OpenAI client against a gateway on a real socket."""

from __future__ import annotations

import asyncio

import openai
import pytest

from agent_lightning.records import CallStatus
from gateway_rig import rig

USER = [{"role": "user", "content": "hello there"}]


async def test_a_plain_answer_carries_text_ids_usage_and_the_clients_model_name():
    async with rig(lambda request: "the answer") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            raw = await client.chat.completions.with_raw_response.create(model="gpt-4o", messages=USER)
        answer = raw.parse()
        assert answer.model == "gpt-4o"
        assert answer.choices[0].message.content == "the answer"
        assert answer.choices[0].finish_reason == "stop"
        (call,) = await here.store.calls(claim.rollout.id)
        assert (
            answer.model_extra["prompt_token_ids"] == list(here.engine.requests[0].prompt_ids) == list(call.suffix_ids)
        )
        assert answer.choices[0].model_extra["token_ids"] == list(call.sampled_ids)
        assert answer.usage.completion_tokens == len(call.sampled_ids)
        assert raw.headers["x-lightning-rollout"] == claim.rollout.id
        assert raw.headers["x-lightning-version"] == "3"
        assert call.status is CallStatus.COMPLETED
        assert call.trainable
        assert list(call.logprobs) == [-0.5] * len(call.sampled_ids)


async def test_a_stream_brings_the_same_text_token_by_token():
    async with rig(lambda request: "héllo wörld 🎉 done") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            stream = await client.chat.completions.create(
                model="m", messages=USER, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        ids = [token for chunk in chunks for made in chunk.choices for token in made.model_extra.get("token_ids", [])]
        (call,) = await here.store.calls(claim.rollout.id)
        assert text == "héllo wörld 🎉 done"
        assert ids == list(call.sampled_ids)
        assert len(chunks) > 8
        assert chunks[-1].usage.completion_tokens == len(ids)
        assert chunks[-2].choices[0].finish_reason == "stop"


async def test_the_sync_client_is_served_too():
    async with rig(lambda request: "fine") as here:
        claim = await here.claim()

        def ask() -> tuple[str | None, str]:
            with here.sync_client(claim) as client:
                plain = client.chat.completions.create(model="m", messages=USER)
                chunks = list(client.chat.completions.create(model="m", messages=USER, stream=True))
                return plain.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in chunks)

        assert await asyncio.to_thread(ask) == ("fine", "fine")


async def test_a_wrong_key_is_told_so():
    async with rig(lambda request: "x") as here, here.client("alr-nobody") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=USER)
