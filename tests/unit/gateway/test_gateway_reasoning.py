"""Reasoning between tags, as the official clients see it: apart from the content, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import CallStatus, Claim
from chat_families import FAMILIES, QWEN
from gateway_rig import Rig, rig

OPENED = QWEN.replace(
    "'<|im_start|>assistant\\n' }}{%- endif %}\n", "'<|im_start|>assistant\\n<think>\\n' }}{%- endif %}\n"
)
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = FAMILIES["qwen"].says("so", {"name": "add", "arguments": {"a": 2}})
REPLIES = {
    "plain": ("<think>\nhm <b> 🎉 é\n\nyes\n</think>\n\nthe answer <i>", "hm <b> 🎉 é\n\nyes", "the answer <i>"),
    "a call": (f"<think>\nhm\n</think>\n\n{CALL}", "hm", "so"),
    "a call inside": (f"<think>\n{CALL}\n</think>\n\nno", CALL, "no"),
    "nothing thought": ("<think>\n\n</think>\n\nthe answer", "", "the answer"),
    "no thinking": (" the <answer>", "", " the <answer>"),
    "never closed": ("<think>\nhm and </thi", "hm and </thi", ""),
}


def qwen(source: str = QWEN) -> ChatTokenizer:
    own = FAMILIES["qwen"].tokenizer()
    return ChatTokenizer(own._tokenizer, stop_ids=own.stop_ids, special_tokens=own.special_tokens, chat_template=source)


def their(here: Rig, claim: Claim) -> anthropic.AsyncAnthropic:
    plain = anthropic.DefaultAsyncHttpxClient(verify=False)  # spares reading the certificates
    return anthropic.AsyncAnthropic(base_url=here.url, api_key=claim.key, max_retries=0, http_client=plain)


def thought_ids(tokenizer: ChatTokenizer, said: str) -> int:
    ids = list(tokenizer.encode(said))
    close = tokenizer.token_id("</think>")
    if "<think>" not in said:
        return 0
    return ids.index(close) + 1 if close in ids else len(ids) + 1  # the end of the turn too


def shown(message: Any) -> list[Any]:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return [message.content or "", message.model_extra, calls]


@pytest.mark.parametrize("case", REPLIES)
async def test_chat_tells_reasoning_and_content_apart_and_streams_to_the_same(case: str):
    said, reasoning, content = REPLIES[case]
    tools: Any = [{"type": "function", "function": ADD}]
    async with rig(lambda request: said, tokenizer=qwen()) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            asked: Any = {
                "model": "m",
                "messages": [{"role": "user", "content": "hi"}],
                "tools": tools,
                "logprobs": True,
            }
            plain = await client.chat.completions.create(**asked)
            async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                async for _ in stream:
                    pass
                streamed = await stream.get_final_completion()
        one, two = (answer.choices[0].message for answer in (plain, streamed))
        extra = one.model_extra or {}
        assert (extra.get("reasoning_content", ""), extra.get("reasoning", ""), one.content or "") == (
            reasoning,
            reasoning,
            content,
        )
        assert shown(one) == shown(two)
        assert bool(one.tool_calls) == (case == "a call")
        assert plain.usage.completion_tokens_details.reasoning_tokens == thought_ids(here.tokenizer, said)
        assert streamed.usage == plain.usage
        spelled = "".join(entry.token for entry in plain.choices[0].logprobs.content)
        assert "hm" not in spelled or case == "a call inside"
        assert "".join(entry.token for entry in getattr(streamed.choices[0].logprobs, "content", [])) == spelled
        calls = await here.store.calls(claim.rollout.id)
        assert all(call.trainable and call.status is CallStatus.COMPLETED for call in calls)


async def test_chat_streams_reasoning_token_by_token_and_each_id_once():
    said = REPLIES["plain"][0]
    async with rig(lambda request: said, tokenizer=qwen()) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            user: Any = [{"role": "user", "content": "hi"}]
            chunks = [c async for c in await client.chat.completions.create(model="m", messages=user, stream=True)]
        (call,) = await here.store.calls(claim.rollout.id)
        deltas = [chunk.choices[0].delta.model_extra or {} for chunk in chunks]
        assert sum("reasoning_content" in delta for delta in deltas) > 5
        ids = [token for chunk in chunks for token in chunk.choices[0].model_extra.get("token_ids") or []]
        assert ids == list(call.sampled_ids)


@pytest.mark.parametrize("case", REPLIES)
async def test_anthropics_client_gets_thinking_blocks_and_streams_to_the_same(case: str):
    said, reasoning, content = REPLIES[case]
    tools: Any = [{"name": "add", "input_schema": ADD["parameters"]}]
    async with rig(lambda request: said, tokenizer=qwen()) as here:
        claim = await here.claim()
        async with their(here, claim) as client:
            asked: Any = {
                "model": "m", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}], "tools": tools,
                "thinking": {"type": "enabled", "budget_tokens": 1024},
            }  # fmt: skip
            plain = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                thoughts = "".join([event.thinking async for event in stream if event.type == "thinking"])
                streamed = await stream.get_final_message()
        assert thoughts == reasoning
        made = [(block.type, getattr(block, block.type, None)) for block in plain.content]
        wanted = [("thinking", reasoning)] * bool(reasoning) + [("text", content)] * bool(content)
        assert made == wanted + [("tool_use", None)] * (case == "a call")
        one, two = ([block.model_dump(exclude={"id", "signature"}, exclude_none=True) for block in message.content]
                    for message in (plain, streamed))  # fmt: skip
        assert one == two
        signed = [
            block.signature for answer in (plain, streamed) for block in answer.content if block.type == "thinking"
        ]
        assert all(signed)
        assert plain.usage.output_tokens_details.thinking_tokens == thought_ids(here.tokenizer, said)
        assert streamed.usage.model_dump(exclude_none=True) == plain.usage.model_dump(exclude_none=True)


async def test_anthropics_client_that_did_not_ask_for_thinking_gets_its_text_first():
    async with rig(lambda request: REPLIES["plain"][0], tokenizer=qwen()) as here:
        claim = await here.claim()
        async with their(here, claim) as client:
            asked: Any = {"model": "m", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]}
            plain = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                streamed = await stream.get_final_message()
        assert plain.content[0].text == streamed.content[0].text == "the answer <i>"
        assert plain.usage.output_tokens_details.thinking_tokens > 0


@pytest.mark.parametrize("case", REPLIES)
async def test_responses_give_reasoning_items_and_stream_to_the_same(case: str):
    said, reasoning, content = REPLIES[case]
    async with rig(lambda request: said, tokenizer=qwen()) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            asked: Any = {"model": "m", "input": "hi", "tools": [{"type": "function", **ADD, "strict": False}]}
            plain = await client.responses.create(**asked)
            async with client.responses.stream(**asked) as stream:
                events = [event async for event in stream]
                streamed = await stream.get_final_response()
        assert plain.output_text == content
        items = [item for item in plain.output if item.type == "reasoning"]
        assert [part.text for item in items for part in item.content] == ([reasoning] if reasoning else [])
        one, two = ([item.model_dump(exclude={"id", "call_id", "parsed_arguments"}, exclude_none=True) for item in answer.output]
                    for answer in (plain, streamed))  # fmt: skip
        for item in two:
            for part in item.get("content", []):
                part.pop("parsed", None)
        assert one == two
        assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == reasoning
        assert [e.text for e in events if e.type == "response.reasoning_text.done"] == (
            [reasoning] if reasoning else []
        )
        done = [event.item.type for event in events if event.type == "response.output_item.done"]
        assert done == [item.type for item in plain.output]
        assert plain.usage == streamed.usage
        assert plain.usage.output_tokens_details.reasoning_tokens == thought_ids(here.tokenizer, said)


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_a_retry_of_a_streamed_answer_thinks_the_same_again(dialect: str):
    async with rig(lambda request: REPLIES["a call"][0], tokenizer=qwen()) as here:
        claim = await here.claim()
        headers = {"x-lightning-call-id": "one"}
        user: Any = [{"role": "user", "content": "hi"}]
        seen = []
        async with here.client(claim) as client, their(here, claim) as anthropics:
            for _ in range(2):
                if dialect == "chat":
                    tools: Any = [{"type": "function", "function": ADD}]
                    opened = client.chat.completions.stream(
                        model="m", messages=user, tools=tools, extra_headers=headers
                    )
                    async with opened as stream:
                        seen.append((await stream.get_final_completion()).choices[0].message.model_dump())
                elif dialect == "messages":
                    own: Any = [{"name": "add", "input_schema": ADD["parameters"]}]
                    async with anthropics.messages.stream(
                        model="m", max_tokens=2000, messages=user, tools=own, extra_headers=headers,
                        thinking={"type": "enabled", "budget_tokens": 1024},
                    ) as theirs:  # fmt: skip
                        seen.append((await theirs.get_final_message()).model_dump())
                else:
                    items: Any = [{"type": "function", **ADD, "strict": False}]
                    async with client.responses.stream(
                        model="m", input="hi", tools=items, extra_headers=headers
                    ) as last:
                        seen.append((await last.get_final_response()).output)
        assert seen[0] == seen[1]
        assert len(here.engine.requests) == 1


async def test_a_template_that_opens_the_block_begins_its_replies_inside():
    async with rig(lambda request: "hm\n</think>\n\nthe answer", tokenizer=qwen(OPENED)) as here:
        assert here.gateway.templates.thinks == "inside"
        claim = await here.claim()
        async with here.client(claim) as client:
            user: Any = [{"role": "user", "content": "hi"}]
            answer = await client.chat.completions.create(model="m", messages=user)
            cut = await client.chat.completions.create(model="m", messages=user, max_tokens=2)
            mine = await client.completions.create(model="m", prompt="<think>\n")
        message = answer.choices[0].message
        assert (message.content, message.model_extra["reasoning_content"]) == ("the answer", "hm")
        assert answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
        assert (cut.choices[0].finish_reason, cut.choices[0].message.content) == ("length", "")
        assert cut.choices[0].message.model_extra["reasoning_content"]
        assert cut.usage.completion_tokens_details.reasoning_tokens == cut.usage.completion_tokens == 2
        assert mine.choices[0].text == "hm\n</think>\n\nthe answer"  # a prompt of one's own is answered as it is


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_a_turn_that_comes_back_without_its_reasoning_goes_on_by_its_ids(dialect: str):
    answers = iter(
        [f"<think>\nhm\n</think>\n\n{CALL}", "<think>\nah\n</think>\n\nit is 5", "<think>\nbye\n</think>\n\nbye"]
    )
    async with rig(lambda request: next(answers), tokenizer=qwen()) as here:
        claim = await here.claim()
        async with here.client(claim) as client, their(here, claim) as anthropics:
            if dialect == "chat":
                await _chat(client)
            elif dialect == "messages":
                await _messages(anthropics)
            else:
                await _responses(client)
        first, second, third = await here.store.calls(claim.rollout.id)
        assert second.parent_call_id == first.id
        assert here.gateway.templates.thinks == "may"
        one, two, last = here.engine.requests
        assert two.prompt_ids[: len(one.prompt_ids) + len(first.sampled_ids)] == one.prompt_ids + first.sampled_ids
        # the next question strips the thinking of what came before: a branch of its own
        assert third.parent_call_id is None
        assert here.tokenizer.token_id("<think>") not in last.prompt_ids


async def _chat(client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "2 and 3?"}]
    tools = [{"type": "function", "function": ADD}]
    first = (await client.chat.completions.create(model="m", messages=messages, tools=tools)).choices[0].message
    calls = [call.model_dump() for call in first.tool_calls]
    messages += [{"role": "assistant", "content": first.content, "tool_calls": calls},
                 {"role": "tool", "tool_call_id": calls[0]["id"], "content": "5"}]  # fmt: skip
    second = (await client.chat.completions.create(model="m", messages=messages, tools=tools)).choices[0].message
    messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "thanks"}]
    await client.chat.completions.create(model="m", messages=messages, tools=tools)


async def _messages(client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "2 and 3?"}]
    asked: Any = {
        "model": "m", "max_tokens": 2000, "tools": [{"name": "add", "input_schema": ADD["parameters"]}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }  # fmt: skip
    first = await client.messages.create(messages=messages, **asked)
    use = first.content[-1]
    messages += [{"role": "assistant", "content": first.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "5"}]}]  # fmt: skip
    second = await client.messages.create(messages=messages, **asked)
    messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "thanks"}]
    await client.messages.create(messages=messages, **asked)


async def _responses(client: Any) -> None:
    tools: Any = [{"type": "function", **ADD, "strict": False}]
    history: list[Any] = [{"role": "user", "content": "2 and 3?"}]
    first = await client.responses.create(model="m", input=history, tools=tools)
    history += [*first.output, {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "5"}]
    second = await client.responses.create(model="m", input=history, tools=tools)
    assert json.loads(second.model_dump_json())["output"][0]["type"] == "reasoning"
    third = [{"role": "user", "content": "thanks"}]
    await client.responses.create(model="m", previous_response_id=second.id, input=third, tools=tools)
