"""The official Anthropic client against a gateway on a real socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import pytest

from agent_lightning.records import CallStatus, Claim
from gateway_rig import Rig, raised, rig, until

USER: Any = [{"role": "user", "content": "hello there"}]
ADD: Any = {
    "name": "add",
    "description": "adds two numbers",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
CALLS_ADD = 'let me see\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def client(here: Rig, claim: Claim | str) -> anthropic.AsyncAnthropic:
    key = claim if isinstance(claim, str) else claim.key
    plain = anthropic.DefaultAsyncHttpxClient(verify=False)  # spares reading the certificates
    return anthropic.AsyncAnthropic(base_url=here.url, api_key=key, max_retries=0, http_client=plain)


async def test_a_plain_answer_carries_text_ids_usage_and_the_clients_model_name():
    async with rig(lambda request: "the answer") as here:
        claim = await here.claim()
        async with client(here, claim) as theirs:
            raw = await theirs.messages.with_raw_response.create(
                model="claude-x", max_tokens=50, messages=USER, system="be brief"
            )
        answer = await raw.parse()
        (call,) = await here.store.calls(claim.rollout.id)
        assert (answer.model, answer.role, answer.stop_reason, answer.stop_sequence) == (
            "claude-x", "assistant", "end_turn", None,
        )  # fmt: skip
        assert [block.text for block in answer.content] == ["the answer"]
        assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == len(call.suffix_ids)
        assert answer.usage.output_tokens == len(call.sampled_ids)
        assert answer.model_extra["token_ids"] == list(call.sampled_ids)
        assert answer.model_extra["prompt_token_ids"] == list(here.engine.requests[0].prompt_ids)
        assert raw.headers["x-lightning-rollout"] == claim.rollout.id
        assert (call.dialect, call.status, call.trainable) == ("messages", CallStatus.COMPLETED, True)
        spelled = "".join(map(here.tokenizer.token_text, call.suffix_ids))
        assert "be brief" in spelled and "hello there" in spelled


@pytest.mark.parametrize("said", ["héllo wörld 🎉 done", CALLS_ADD, '<tool_call>\n{"name": "add", "arguments": {}}\n'])
async def test_a_stream_comes_to_the_message_that_a_plain_call_gives(said: str):
    async with rig(lambda request: said) as here:
        claim = await here.claim()
        async with client(here, claim) as theirs:
            asked: Any = {"model": "m", "max_tokens": 200, "messages": USER, "tools": [ADD]}
            plain = await theirs.messages.create(**asked)
            async with theirs.messages.stream(**asked) as stream:
                events = [event async for event in stream]
                streamed = await stream.get_final_message()
        one, two = (
            [block.model_dump(exclude={"id", "citations"}, exclude_none=True) for block in message.content]
            for message in (plain, streamed)
        )
        assert one == two
        assert (plain.stop_reason, plain.usage.output_tokens) == (streamed.stop_reason, streamed.usage.output_tokens)
        assert "".join(event.text for event in events if event.type == "text") == "".join(
            block.text for block in plain.content if block.type == "text"
        )


@pytest.mark.parametrize("said", ["héllo wörld 🎉 done", CALLS_ADD, '<tool_call>\n{"name": "add", "arguments": {}}\n'])
async def test_every_sampled_id_travels_with_the_stream_also_where_no_text_is_shown(said: str):
    async with rig(lambda request: said) as here:
        claim = await here.claim()
        async with (
            client(here, claim) as theirs,
            theirs.messages.with_streaming_response.create(
                model="m", max_tokens=200, messages=USER, tools=[ADD], stream=True
            ) as answer,
        ):
            lines = [line async for line in answer.iter_lines()]
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        (call,) = await here.store.calls(claim.rollout.id)
        assert [token for event in events for token in event.get("token_ids", [])] == list(call.sampled_ids)
        assert [line.removeprefix("event: ") for line in lines if line.startswith("event: ")] == [
            event["type"] for event in events
        ]


async def test_tools_go_round_and_the_conversation_is_continued_by_its_ids():
    answers = iter([CALLS_ADD, "it is 5"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        async with client(here, claim) as theirs:
            first = await theirs.messages.create(model="m", max_tokens=200, messages=USER, tools=[ADD])
            text, use = first.content
            assert (text.text, use.name, use.input) == ("let me see", "add", {"a": 2, "b": 3})
            assert first.stop_reason == "tool_use"
            result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "5"}]}
            history = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            second = await theirs.messages.create(model="m", max_tokens=50, messages=history, tools=[ADD])
        assert second.content[0].text == "it is 5"
        one, two = await here.store.calls(claim.rollout.id)
        assert two.parent_call_id == one.id
        assert two.prompt_offset == len(one.suffix_ids) + len(one.sampled_ids)


async def test_a_conversation_may_begin_in_one_dialect_and_go_on_in_another():
    answers = iter(["first", "second", "third"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        history: list[Any] = [*USER]
        async with client(here, claim) as theirs, here.client(claim) as openai_client:
            for turn in range(3):
                if turn % 2:
                    chat = await openai_client.chat.completions.create(model="m", messages=history)
                    said = chat.choices[0].message.content
                else:
                    message = await theirs.messages.create(model="m", max_tokens=9, messages=history)
                    said = message.content[0].text
                history += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
        calls = await here.store.calls(claim.rollout.id)
        assert [call.dialect for call in calls] == ["messages", "chat", "messages"]
        assert [call.parent_call_id for call in calls] == [None, calls[0].id, calls[1].id]


async def test_stop_sequences_and_limits_are_told_in_their_words():
    async with rig(lambda request: "one two three four five") as here:
        claim = await here.claim("live")
        async with client(here, claim) as theirs:
            stopped = await theirs.messages.create(
                model="m", max_tokens=90, messages=USER, stop_sequences=["zzz", " three"]
            )
            cut = await theirs.messages.create(model="m", max_tokens=2, messages=USER)
        assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == (
            "stop_sequence", " three", "one two",
        )  # fmt: skip
        assert (cut.stop_reason, cut.stop_sequence, cut.usage.output_tokens) == ("max_tokens", None, 2)


async def test_live_traffic_brings_its_own_sampling_and_training_does_not():
    async with rig(lambda request: "x", train_temperature=0.9) as here:
        for mode in ("live", "train"):
            claim = await here.claim(mode)  # type: ignore[arg-type]
            async with client(here, claim) as theirs:
                await theirs.messages.create(
                    model="m", max_tokens=5, messages=USER, extra_body={"temperature": 0.3, "top_k": 4, "top_p": 0.5}
                )
        live, train = (request.sampling for request in here.engine.requests)
        assert (live.temperature, live.top_k, live.top_p) == (0.3, 4, 0.5)
        assert (train.temperature, train.top_k, train.top_p) == (0.9, 0, 1.0)


async def test_thinking_that_comes_back_is_left_out_and_asking_for_it_is_no_error():
    answers = iter(["one", "two"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        async with client(here, claim) as theirs:
            first = await theirs.messages.create(
                model="m", max_tokens=9, messages=USER, thinking={"type": "enabled", "budget_tokens": 1024}
            )
            thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
            history: Any = [
                *USER, {"role": "assistant", "content": [thought, *first.content]}, {"role": "user", "content": "more"},
            ]  # fmt: skip
            await theirs.messages.create(model="m", max_tokens=9, messages=history)
        one, two = await here.store.calls(claim.rollout.id)
        assert two.parent_call_id == one.id


async def test_tokens_are_counted_and_nothing_is_recorded():
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        async with client(here, claim) as theirs:
            counted = await theirs.messages.count_tokens(model="m", messages=USER, system="s", tools=[ADD])
            assert await here.store.calls(claim.rollout.id) == []
            await theirs.messages.create(model="m", max_tokens=5, messages=USER, system="s", tools=[ADD])
        (call,) = await here.store.calls(claim.rollout.id)
        assert counted.input_tokens == len(call.suffix_ids)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": 3}]}]},
         "messages[0].content[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format.schema"),
        ({"extra_body": {"temperature": "hot"}}, "temperature"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_by_its_field_in_their_shape(asked: dict[str, Any], field: str):
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        async with client(here, claim) as theirs:
            with pytest.raises(anthropic.BadRequestError) as refused:
                await theirs.messages.create(**{"model": "m", "max_tokens": 5, "messages": USER, **asked})
        told = refused.value.body
        assert told["type"] == "error"
        assert (told["error"]["type"], told["error"]["param"]) == ("invalid_request_error", field)
        assert await here.store.calls(claim.rollout.id) == []


async def test_errors_have_their_classes():
    async with rig(lambda request: raised(RuntimeError("boom"))) as here:
        claim = await here.claim()
        async with client(here, "alr-unknown") as theirs:
            with pytest.raises(anthropic.AuthenticationError):
                await theirs.messages.create(model="m", max_tokens=5, messages=USER)
        async with client(here, claim) as theirs:
            with pytest.raises(anthropic.InternalServerError) as failed:
                await theirs.messages.create(model="m", max_tokens=5, messages=USER)
            assert failed.value.body["error"]["type"] == "api_error"
            with pytest.raises(anthropic.NotFoundError):
                await theirs.post("/v1/messages/batches", body={}, cast_to=object)


async def test_a_retry_of_a_streamed_call_is_answered_once_with_the_same_events():
    async with rig(lambda request: CALLS_ADD) as here:
        claim = await here.claim()
        named = {"x-lightning-call-id": "c-1"}
        asked: Any = {"model": "m", "max_tokens": 200, "messages": USER, "tools": [ADD], "extra_headers": named}
        async with client(here, claim) as theirs:
            messages = []
            for _ in range(2):
                async with theirs.messages.stream(**asked) as stream:
                    messages.append(await stream.get_final_message())
        assert messages[0].content == messages[1].content
        assert len(here.engine.requests) == 1 and len(await here.store.calls(claim.rollout.id)) == 1


async def test_a_gateway_that_was_restarted_reads_their_conversations_back():
    answers = iter(["one", "two"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        async with client(here, claim) as theirs:
            first = await theirs.messages.create(model="m", max_tokens=9, messages=USER, system="s")
            here.gateway.forget(claim.attempt.id)
            history: Any = [*USER, {"role": "assistant", "content": first.content}, *USER]
            await theirs.messages.create(model="m", max_tokens=9, messages=history, system="s")
        one, two = await here.store.calls(claim.rollout.id)
        assert two.parent_call_id == one.id


async def test_a_client_that_leaves_its_stream_frees_the_engine():
    async with rig(lambda request: "a very long answer indeed") as here:
        here.engine.gate = asyncio.Event()
        claim = await here.claim()
        async with client(here, claim) as theirs:
            asking = asyncio.create_task(theirs.messages.create(model="m", max_tokens=90, messages=USER))
            await until(lambda: here.engine.requests)
            asking.cancel()
            await until(lambda: not here.gateway.in_flight)
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.status is CallStatus.BROKEN


def test_arguments_stay_json():
    from agent_lightning.wire.messages import parse_messages

    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": "é"}}
    request = parse_messages(
        {"model": "m", "max_tokens": 1, "messages": [{"role": "assistant", "content": [use]}], "top_k": 3}
    )
    (message,) = request.messages
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"x": "é"}
    assert (message["content"], request.top_k) == (None, 3)
