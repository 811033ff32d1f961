"""The official OpenAI client's responses against a gateway on a real socket."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from agent_lightning.records import CallStatus
from gateway_rig import raised, rig

ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "adds two numbers",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
CALLS_ADD = 'let me see\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


async def test_a_plain_answer_carries_text_ids_usage_and_the_clients_model_name():
    async with rig(lambda request: "the answer") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            answer = await client.responses.create(model="gpt-x", instructions="be brief", input="hello there")
            again = await client.responses.retrieve(answer.id)
        (call,) = await here.store.calls(claim.rollout.id)
        assert (answer.model, answer.status, answer.output_text) == ("gpt-x", "completed", "the answer")
        assert (again.id, again.output_text, again.instructions) == (answer.id, "the answer", "be brief")
        assert answer.usage.input_tokens == len(call.suffix_ids)
        assert answer.usage.output_tokens == len(call.sampled_ids)
        assert answer.model_extra["token_ids"] == list(call.sampled_ids)
        assert answer.model_extra["prompt_token_ids"] == list(here.engine.requests[0].prompt_ids)
        assert (call.dialect, call.status, call.trainable) == ("responses", CallStatus.COMPLETED, True)
        spelled = "".join(map(here.tokenizer.token_text, call.suffix_ids))
        assert "be brief" in spelled and "hello there" in spelled


@pytest.mark.parametrize("said", ["héllo wörld 🎉 done", CALLS_ADD, '<tool_call>\n{"name": "add", "arguments": {}}\n'])
async def test_a_stream_comes_to_the_response_that_a_plain_call_gives(said: str):
    async with rig(lambda request: said) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            asked: Any = {"model": "m", "input": "hello", "tools": [ADD]}
            plain = await client.responses.create(**asked)
            async with client.responses.stream(**asked) as stream:
                events = [event async for event in stream]
                streamed = await stream.get_final_response()

        def shown(response: Any) -> list[Any]:
            return [
                item.content[0].text if item.type == "message" else (item.name, item.arguments)
                for item in response.output
            ]

        assert shown(plain) == shown(streamed)
        assert plain.usage == streamed.usage
        assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert deltas == plain.output_text


async def test_tools_go_round_by_items_and_the_conversation_is_continued_by_its_ids():
    answers = iter([CALLS_ADD, "it is 5"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            history: list[Any] = [{"role": "user", "content": "2 and 3?"}]
            first = await client.responses.create(model="m", input=history, tools=[ADD])
            message, use = first.output
            assert (message.content[0].text, use.name, use.arguments) == ("let me see", "add", '{"a": 2, "b": 3}')
            history += first.output
            history.append({"type": "function_call_output", "call_id": use.call_id, "output": "5"})
            second = await client.responses.create(model="m", input=history, tools=[ADD])
        assert second.output_text == "it is 5"
        one, two = await here.store.calls(claim.rollout.id)
        assert two.parent_call_id == one.id
        assert two.prompt_offset == len(one.suffix_ids) + len(one.sampled_ids)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_previous_response_is_gone_on_from_as_often_as_one_likes(restarted: bool):
    answers = iter(["one", "two", "other two", "three"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        async with here.client(claim) as client:

            async def ask(text: str, after: str | None) -> str:
                if restarted:
                    here.gateway.forget(claim.attempt.id)
                answer = await client.responses.create(
                    model="m", instructions="be brief", input=text, previous_response_id=after or openai.omit
                )
                return answer.id

            first = await ask("a", None)
            second = await ask("b", first)
            await ask("c", first)
            await ask("d", second)
        one, two, other, three = await here.store.calls(claim.rollout.id)
        assert [call.parent_call_id for call in (one, two, other, three)] == [None, one.id, one.id, two.id]
        spelled = "".join(map(here.tokenizer.token_text, here.engine.requests[3].prompt_ids))
        assert spelled.count("be brief") == 1
        places = [spelled.index(text) for text in ("be brief", ">user\na", "one", ">user\nb", "two", ">user\nd")]
        assert places == sorted(places)


async def test_new_instructions_take_the_place_of_the_old_ones():
    answers = iter(["one", "two"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            first = await client.responses.create(model="m", instructions="old words", input="a")
            await client.responses.create(model="m", instructions="new words", input="b", previous_response_id=first.id)
        spelled = "".join(map(here.tokenizer.token_text, here.engine.requests[1].prompt_ids))
        assert "new words" in spelled and "old words" not in spelled and "one" in spelled


async def test_a_limit_makes_an_incomplete_response():
    async with rig(lambda request: "one two three four five") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            answer = await client.responses.create(model="m", input="x", max_output_tokens=2)
            async with client.responses.stream(model="m", input="x", max_output_tokens=2) as stream:
                last = [event async for event in stream][-1]
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


async def test_logprobs_come_where_they_are_asked_for():
    async with rig(lambda request: "x y") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            answer = await client.responses.create(
                model="m", input="x", include=["message.output_text.logprobs"], top_logprobs=2
            )
        entries = answer.output[0].content[0].logprobs
        assert "".join(entry.token for entry in entries) == "x y" and entries[0].logprob == -0.5


async def test_reasoning_that_comes_back_is_left_out():
    answers = iter(["one", "two"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            first = await client.responses.create(model="m", input="a", reasoning={"effort": "low"})
            history: list[Any] = [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                *first.output,
                {"role": "user", "content": "b"},
            ]
            await client.responses.create(model="m", input=history)
        one, two = await here.store.calls(claim.rollout.id)
        assert two.parent_call_id == one.id


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}, "input[0].arguments"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [ADD], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_nobody"}, "previous_response_id"),
        ({"previous_response_id": "else"}, "previous_response_id"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_field(asked: dict[str, Any], field: str):
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(**{"model": "m", "input": "x", **asked})
        assert refused.value.param == field
        assert await here.store.calls(claim.rollout.id) == []


async def test_another_rollouts_response_is_neither_shown_nor_gone_on_from():
    async with rig(lambda request: "secret") as here:
        mine, other = await here.claim(), await here.claim()
        async with here.client(mine) as client:
            answer = await client.responses.create(model="m", input="x")
        async with here.client(other) as client:
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(answer.id)
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(model="m", input="x", previous_response_id=answer.id)


async def test_a_failure_within_a_stream_is_its_last_event(monkeypatch: pytest.MonkeyPatch):
    async with rig(lambda request: raised(RuntimeError("boom"))) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            with pytest.raises(openai.InternalServerError):
                await client.responses.create(model="m", input="x")
    async with rig(lambda request: "fine words") as here:
        claim = await here.claim()

        async def full(*_: Any) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(here.store, "complete", full)
        async with here.client(claim) as client:
            events = [event async for event in await client.responses.create(model="m", input="x", stream=True)]
        assert events[-1].type == "error" and events[0].type == "response.created"


async def test_a_retry_of_a_streamed_call_is_answered_once_with_the_same_response():
    async with rig(lambda request: CALLS_ADD) as here:
        claim = await here.claim()
        asked: Any = {"model": "m", "input": "x", "tools": [ADD], "extra_headers": {"x-lightning-call-id": "c-1"}}
        async with here.client(claim) as client:
            responses = []
            for _ in range(2):
                async with client.responses.stream(**asked) as stream:
                    responses.append(await stream.get_final_response())
        assert responses[0].output == responses[1].output
        assert len(here.engine.requests) == 1 and len(await here.store.calls(claim.rollout.id)) == 1
