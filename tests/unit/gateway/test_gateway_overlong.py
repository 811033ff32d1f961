"""A prompt that does not fit is refused in the words of the caller's vendor, and the rollout's outcome says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from agent_lightning.client.scope import RolloutRecord
from agent_lightning.records import CallStatus, Claim, Outcome
from agent_lightning.runner.endings import ending_of
from gateway_rig import Rig, rig

LONG = "hello there " * 60


@asynccontextmanager
async def anthropics(here: Rig, claim: Claim) -> AsyncIterator[anthropic.AsyncAnthropic]:
    plain = anthropic.DefaultAsyncHttpxClient(verify=False)
    async with anthropic.AsyncAnthropic(
        base_url=here.url, api_key=claim.key, max_retries=0, http_client=plain
    ) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("dialect", "field"),
    [("chat", "messages"), ("completions", "prompt"), ("responses", "input"), ("messages", "messages")],
)
async def test_it_is_refused_by_the_vendors_code_and_ends_the_rollout_by_its_name(
    dialect: str, field: str, stream: bool
):
    async with rig(lambda request: "never said", max_prompt_tokens=64) as here:
        claim = await here.claim()
        user: Any = [{"role": "user", "content": LONG}]
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as caught:
            async with here.client(claim) as client, anthropics(here, claim) as theirs:
                if dialect == "chat":
                    await client.chat.completions.create(model="m", messages=user, stream=stream)
                elif dialect == "completions":
                    await client.completions.create(model="m", prompt=LONG, stream=stream)
                elif dialect == "responses":
                    await client.responses.create(model="m", input=LONG, stream=stream)
                else:
                    await theirs.messages.create(model="m", max_tokens=9, messages=user, stream=stream)
        error: Any = caught.value
        assert error.status_code == 400
        assert "> 64 maximum" in str(error)
        if dialect == "messages":
            assert error.body["error"]["type"] == "invalid_request_error"
            assert error.body["error"]["message"].startswith("prompt is too long: ")
        else:
            assert (error.code, error.type, error.param) == ("context_length_exceeded", "invalid_request_error", field)
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.status is CallStatus.BROKEN
        assert "prompt is too long" in (call.error or "")
        assert here.engine.requests == []
        ending = ending_of(error, RolloutRecord())
        assert ending is not None
        assert ending.outcome is Outcome.OVER_LONG_PROMPT


async def test_truncation_is_never_done_in_silence():
    async with rig(lambda request: "said", max_prompt_tokens=64) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            fits = await client.responses.create(model="m", input="hello", truncation="auto")
            with pytest.raises(openai.BadRequestError, match=r"`truncation`: 'auto' cannot be honoured") as caught:
                await client.responses.create(model="m", input=LONG, truncation="auto")
        assert fits.output_text == "said"
        assert caught.value.code == "context_length_exceeded"


async def test_a_conversation_that_grows_too_long_is_refused_where_it_does():
    async with rig(lambda request: "said", max_prompt_tokens=64) as here:
        claim = await here.claim()
        messages: list[Any] = [{"role": "user", "content": "hello"}]
        async with here.client(claim) as client:
            with pytest.raises(openai.BadRequestError, match="too long"):
                for _ in range(50):
                    answer = await client.chat.completions.create(model="m", messages=messages)
                    messages += [answer.choices[0].message, {"role": "user", "content": "and then?"}]
        assert 1 < len(here.engine.requests) < 50
        assert all(len(request.prompt_ids) <= 64 for request in here.engine.requests)
