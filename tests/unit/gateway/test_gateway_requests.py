"""What a request asks for: sampling by mode, stop texts, tools, limits, refusals by the field's name."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from gateway_rig import rig

USER = [{"role": "user", "content": "hello there"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'


async def test_training_sets_the_sampling_whatever_the_client_sends():
    async with rig(lambda request: "x", train_temperature=0.9) as here:
        claim = await here.claim("train")
        async with here.client(claim) as client:
            await client.chat.completions.create(
                model="m", messages=USER, temperature=0, seed=1, top_p=0.1, logit_bias={"5": 3}, frequency_penalty=1,
                presence_penalty=1,
            )  # fmt: skip
        sampling = here.engine.requests[0].sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.9, 1.0, 0)
        assert (sampling.presence_penalty, sampling.frequency_penalty, dict(sampling.logit_bias)) == (0.0, 0.0, {})
        assert here.engine.requests[0].noise_key == f"7/{claim.rollout.task.id}@0/0/0/0"
        assert here.engine.requests[0].affinity == claim.attempt.id
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.requested_sampling["temperature"] == 0
        assert call.requested_sampling["seed"] == 1
        assert call.used_sampling["temperature"] == 0.9


@pytest.mark.parametrize("mode", ["val", "test"])
async def test_evaluation_is_greedy(mode):
    async with rig(lambda request: "x") as here:
        async with here.client(await here.claim(mode)) as client:
            await client.chat.completions.create(model="m", messages=USER, temperature=1.5)
        assert here.engine.requests[0].sampling.temperature == 0.0


async def test_live_traffic_is_sampled_as_the_client_says():
    async with rig(lambda request: "x") as here:
        async with here.client(await here.claim("live")) as client:
            for seed in (5, 5, None):
                await client.chat.completions.create(
                    model="m", messages=USER, temperature=0.3, top_p=0.8, logit_bias={"5": 3}, seed=seed
                )
        sampling = here.engine.requests[0].sampling
        assert (sampling.temperature, sampling.top_p, dict(sampling.logit_bias)) == (0.3, 0.8, {5: 3.0})
        first, second, third = (request.noise_key for request in here.engine.requests)
        assert first == second != third


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_text_cuts_the_text_but_not_the_sampled_ids(stream: bool):
    async with rig(lambda request: "the answer is STOP and more") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            if stream:
                chunks = [
                    chunk.choices[0]
                    async for chunk in await client.chat.completions.create(
                        model="m", messages=USER, stop=[" STOP"], stream=True
                    )
                ]
                text, reason = "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason
            else:
                made = (await client.chat.completions.create(model="m", messages=USER, stop=" STOP")).choices[0]
                text, reason = made.message.content, made.finish_reason
        (call,) = await here.store.calls(claim.rollout.id)
        assert (text, reason) == ("the answer is", "stop")
        assert here.tokenizer.decode(call.sampled_ids) == "the answer is STOP"
        assert call.trainable
        assert here.engine.aborted


async def test_max_tokens_is_the_smallest_of_the_limits():
    async with rig(lambda request: "a long answer without an end", max_new_tokens=8, context_length=64) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            for asked in (3, 100):
                answer = await client.chat.completions.create(model="m", messages=USER, max_tokens=asked)
                assert answer.choices[0].finish_reason == "length"
                assert answer.usage.completion_tokens == min(asked, 8)


async def test_an_over_long_prompt_is_refused_with_the_code_that_sdks_know():
    async with rig(lambda request: "x", context_length=64) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "long " * 99}])
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "messages"
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.error is not None
        assert "PromptTooLong" in call.error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"tools": [ADD], "tool_choice": "always"}, "tool_choice"),
        ({"n": 0}, "n"),
        ({"model": None}, "model"),
        ({"stop": ["a", ""]}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_name(fields, param):
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        async with httpx.AsyncClient(verify=False) as client:
            answer = await client.post(
                f"{here.url}/v1/chat/completions",
                json={"model": "m", "messages": USER, **fields},
                headers={"authorization": f"Bearer {claim.key}"},
            )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_unknown_fields_and_paths_and_methods():
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            answer = await client.chat.completions.create(
                model="m", messages=USER, extra_body={"surprise": 1}, parallel_tool_calls=True, store=True
            )
            assert answer.choices[0].message.content == "x"
            assert [model.id async for model in client.models.list()] == ["default"]
            with pytest.raises(openai.NotFoundError):
                await client.embeddings.create(model="m", input="x")


async def test_log_probabilities_are_given_when_asked_for():
    async with rig(lambda request: "hello") as here, here.client(await here.claim()) as client:
        made = (await client.chat.completions.create(model="m", messages=USER, logprobs=True, top_logprobs=2)).choices[
            0
        ]
        entries = made.logprobs.content
        assert "".join(entry.token for entry in entries) == "hello"
        assert all(entry.logprob == -0.5 and len(entry.top_logprobs) == 1 for entry in entries)
        stream = await client.chat.completions.create(model="m", messages=USER, logprobs=True, stream=True)
        streamed = [e async for c in stream if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
        assert [entry.token for entry in streamed] == [entry.token for entry in entries]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_call_in_the_text_becomes_a_tool_call(stream: bool):
    async with rig(lambda request: f"Let me see.\n{CALL}") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            if stream:
                async with client.chat.completions.stream(model="m", messages=USER, tools=[ADD]) as events:
                    async for _ in events:
                        pass
                    made = (await events.get_final_completion()).choices[0]
            else:
                made = (await client.chat.completions.create(model="m", messages=USER, tools=[ADD])).choices[0]
        assert made.finish_reason == "tool_calls"
        assert made.message.content == "Let me see."
        (call,) = made.message.tool_calls
        assert call.function.name == "add"
        assert json.loads(call.function.arguments) == {"a": 1, "b": 2}
        assert '"add"' in here.tokenizer.decode(here.engine.requests[0].prompt_ids)
        (stored,) = await here.store.calls(claim.rollout.id)
        assert stored.trainable


async def test_a_broken_tool_call_stays_text():
    async with rig(lambda request: '<tool_call>{"name": oops</tool_call>') as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            for stream in (False, True):
                answer = await client.chat.completions.create(model="m", messages=USER, tools=[ADD], stream=stream)
                if stream:
                    text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
                else:
                    text = answer.choices[0].message.content
                assert text == '<tool_call>{"name": oops</tool_call>'


async def test_langchain_calls_a_tool_and_its_rewritten_arguments_still_continue_the_branch(
    monkeypatch: pytest.MonkeyPatch,
):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    said = iter([CALL, "3 it is"])
    async with rig(lambda request: next(said)) as here:
        claim = await here.claim()

        def agent() -> str:
            model = ChatOpenAI(model="gpt-4o", base_url=f"{here.url}/v1", api_key=claim.key, max_retries=0)
            bound = model.bind_tools([ADD])
            messages = [HumanMessage("1 + 2?")]
            reply = bound.invoke(messages)
            messages += [reply, ToolMessage("3", tool_call_id=reply.tool_calls[0]["id"])]
            return bound.invoke(messages).content

        assert await asyncio.to_thread(agent) == "3 it is"
        first, second = await here.store.calls(claim.rollout.id)
        assert second.parent_call_id == first.id
        assert second.prompt_offset == len(first.suffix_ids) + len(first.sampled_ids)
        assert list(here.engine.requests[1].prompt_ids) == [*first.suffix_ids, *first.sampled_ids, *second.suffix_ids]
