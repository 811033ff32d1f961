"""The official OpenAI client's text completions against a gateway on a real socket."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gateway_rig import rig


async def test_a_text_is_continued_as_it_is():
    async with rig(lambda request: " sat on the mat") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            answer = await client.completions.create(model="m", prompt="the cat", max_tokens=20)
        (call,) = await here.store.calls(claim.rollout.id)
        assert (answer.object, answer.model, answer.choices[0].text) == ("text_completion", "m", " sat on the mat")
        assert here.tokenizer.decode(call.suffix_ids) == "the cat"  # no template around it
        assert answer.choices[0].model_extra["token_ids"] == list(call.sampled_ids)
        assert (call.dialect, call.trainable, answer.choices[0].finish_reason) == ("completions", True, "stop")
        assert answer.usage.completion_tokens == len(call.sampled_ids)


async def test_ids_that_go_on_from_an_earlier_call_are_its_branch_also_after_a_restart():
    answers = iter([" one", " two", " three"])
    async with rig(lambda request: next(answers)) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            ids = list(here.tokenizer.encode("the cat"))
            for _ in range(3):
                answer = await client.completions.create(model="m", prompt=ids, max_tokens=20)
                ids += [*answer.choices[0].model_extra["token_ids"], *here.tokenizer.encode(" and")]
                here.gateway.forget(claim.attempt.id)
        one, two, three = await here.store.calls(claim.rollout.id)
        assert [call.parent_call_id for call in (one, two, three)] == [None, one.id, two.id]
        assert list(here.engine.requests[2].prompt_ids) == ids[: len(here.engine.requests[2].prompt_ids)]


async def test_a_stream_brings_the_same_text_and_log_probabilities():
    async with rig(lambda request: " sat on the mat") as here:
        claim = await here.claim()
        asked: Any = {"model": "m", "prompt": ["the cat"], "max_tokens": 20, "logprobs": 2}
        async with here.client(claim) as client:
            plain = await client.completions.create(**asked)
            stream = await client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
            chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == plain.choices[0].text
        assert chunks[-1].usage == plain.usage
        told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices and chunk.choices[0].logprobs]
        whole = plain.choices[0].logprobs
        assert [token for part in told for token in part.tokens] == whole.tokens
        assert [offset for part in told for offset in part.text_offset] == whole.text_offset
        assert whole.token_logprobs == [-0.5] * len(whole.tokens)
        assert "".join(whole.tokens) == plain.choices[0].text


async def test_several_choices_and_a_stop_text():
    async with rig(lambda request: "one two three") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            answer = await client.completions.create(model="m", prompt="x", n=3, stop=" three", max_tokens=30)
        assert [(made.index, made.text) for made in answer.choices] == [(i, "one two") for i in range(3)]
        assert answer.choices[0].model_extra["stop_reason"] == " three"
        assert len(await here.store.calls(claim.rollout.id)) == 3


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 4}, "best_of"),
        ({"logprobs": 99}, "logprobs"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_field(asked: dict[str, Any], field: str):
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.completions.create(**{"model": "m", "prompt": "x", **asked})
        assert refused.value.param == field
        assert await here.store.calls(claim.rollout.id) == []
