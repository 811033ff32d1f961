"""How conversations are continued, seen from outside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_lightning.errors import SettingError
from agent_lightning.gateway.gateway import Gateway, GatewayConfig
from agent_lightning.gateway.latency import Counts, Latencies
from agent_lightning.gateway.stitch import message_key
from agent_lightning.models.chat_template import CHATML, ChatTemplate
from agent_lightning.records import CallStatus, token_ids
from agent_lightning.store.sqlite import SqliteStore
from chat_families import FAMILIES
from gateway_rig import NOW, GatedEngine, chatml_tokenizer, rig

USER = {"role": "user", "content": "hello"}
FORGETFUL = CHATML.replace("(message.content or '')", "(message.content or '').split('</think>')[-1]", 1)


async def talk(here, claim, *messages):
    async with here.client(claim) as client:
        return (await client.chat.completions.create(model="m", messages=list(messages))).choices[0].message


async def test_a_conversation_goes_on_from_the_ids_that_were_sampled():
    async with rig(lambda request: "hello there") as here:
        claim = await here.claim()
        reply = await talk(here, claim, USER)
        await talk(here, claim, USER, {"role": "assistant", "content": reply.content}, USER)
        first, second = here.engine.requests
        call = (await here.store.calls(claim.rollout.id))[0]
        known = first.prompt_ids + call.sampled_ids
        assert second.prompt_ids[: len(known)] == known
        assert here.tokenizer.decode(second.prompt_ids).count("hello") == 3


async def test_spelling_that_the_tokenizer_would_not_choose_is_kept():
    tokenizer = chatml_tokenizer()
    odd = token_ids([tokenizer.token_id(letter) for letter in "hello"] + list(tokenizer.stop_ids))
    assert odd[:-1] != tokenizer.encode("hello")
    async with rig(lambda request: odd) as here:
        claim = await here.claim()
        reply = await talk(here, claim, USER)
        await talk(here, claim, USER, {"role": "assistant", "content": reply.content}, USER)
        prompt = list(here.engine.requests[1].prompt_ids)
        at = len(here.engine.requests[0].prompt_ids)
        assert prompt[at : at + len(odd)] == list(odd)


async def test_rewritten_history_starts_a_new_branch():
    async with rig(lambda request: "hello there") as here:
        claim = await here.claim()
        await talk(here, claim, USER)
        await talk(here, claim, USER, {"role": "assistant", "content": "hello again"}, USER)
        assert [call.parent_call_id for call in await here.store.calls(claim.rollout.id)] == [None, None]


async def test_a_tie_goes_to_the_newest_call():
    async with rig(lambda request: "same") as here:
        claim = await here.claim()
        for _ in range(2):
            await talk(here, claim, USER)
        await talk(here, claim, USER, {"role": "assistant", "content": "same"}, USER)
        first, second, third = await here.store.calls(claim.rollout.id)
        assert third.parent_call_id == second.id != first.id


async def test_another_set_of_tools_is_another_branch():
    async with rig(lambda request: "same") as here:
        claim = await here.claim()
        await talk(here, claim, USER)
        tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
        async with here.client(claim) as client:
            await client.chat.completions.create(
                model="m", messages=[USER, {"role": "assistant", "content": "same"}, USER], tools=[tool]
            )
        assert (await here.store.calls(claim.rollout.id))[1].parent_call_id is None


async def test_attempts_of_one_rollout_do_not_share_branches():
    async with rig(lambda request: "same") as here:
        first, second = await here.claim(), await here.claim()
        await talk(here, first, USER)
        await talk(here, second, USER, {"role": "assistant", "content": "same"}, USER)
        assert (await here.store.calls(second.rollout.id))[0].parent_call_id is None


async def test_what_is_kept_of_attempts_is_bounded_and_comes_back():
    async with rig(lambda request: "same", attempts_kept=2) as here:
        claims = [await here.claim() for _ in range(6)]
        for claim in claims:
            await talk(here, claim, USER)
        assert len(here.gateway._attempts) <= 2
        await talk(here, claims[0], USER, {"role": "assistant", "content": "same"}, USER)
        first, second = await here.store.calls(claims[0].rollout.id)
        assert second.parent_call_id == first.id


async def test_a_template_that_rewrites_history_makes_each_call_its_own_branch_and_says_so():
    tokenizer = chatml_tokenizer()
    store = await SqliteStore.open()
    template = ChatTemplate(FORGETFUL, {}, NOW)
    engine = GatedEngine(tokenizer, lambda request: "x")
    parts = {"clock": lambda: 1.0, "new_id": lambda: "c"}
    gateway = Gateway(store, engine, tokenizer, template, GatewayConfig(), **parts)
    assert gateway.templates.history == "rendered"
    assert "thinking" in (gateway.templates.reason or "")
    with pytest.raises(SettingError, match="thinking"):
        Gateway(store, engine, tokenizer, template, GatewayConfig(history="stitched"), **parts)
    await store.close()


@pytest.mark.parametrize(
    ("name", "asked", "history", "said"),
    [
        ("qwen", "auto", "checked", "continued by ids within a loop of tools"),
        ("qwen", "rendered", "rendered", "each call is a branch of its own"),
        ("llama3", "auto", "stitched", None),
        ("mistral", "auto", "stitched", None),
        ("smollm2", "stitched", "stitched", None),
    ],
)
async def test_how_far_conversations_go_on_by_ids_is_said(name: str, asked: Any, history: str, said: str | None):
    async with rig(lambda request: "x", tokenizer=FAMILIES[name].tokenizer(), history=asked) as here:
        templates = here.gateway.templates
        assert (templates.history, (templates.reason or "None").find(said or "None") >= 0) == (history, True)


async def test_text_that_does_not_match_its_ids_is_answered_but_not_trained(monkeypatch: pytest.MonkeyPatch):
    async with rig(lambda request: "hello") as here:
        claim = await here.claim()
        monkeypatch.setattr("agent_lightning.models.tokenizer.TextStream.push", lambda self, *tokens: "?")
        async with here.client(claim) as client:
            async for _ in await client.chat.completions.create(model="m", messages=[USER], stream=True):
                pass
        (call,) = await here.store.calls(claim.rollout.id)
        assert (call.status, call.trainable) == (CallStatus.COMPLETED, False)
        assert "differs" in (call.error or "")


def test_the_key_of_a_message_ignores_what_frameworks_change():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": "é"}'}}
    same = {"id": "2", "function": {"name": "f", "arguments": json.dumps({"a": "é", "b": 1}, indent=2)}}
    first = {"role": "assistant", "content": None, "tool_calls": [call]}
    second = {"role": "assistant", "content": " \n", "tool_calls": [same], "name": "x", "reasoning_content": "y"}
    assert message_key(first) == message_key(second)
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]}
    assert message_key(parts) == message_key({"role": "user", "content": "ab"})
    image = {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "image_url", "image_url": {}}]}
    assert message_key(image) != message_key(parts)
    assert message_key({"role": "user", "content": " a"}) != message_key({"role": "user", "content": "a"})
    assert message_key({"role": "user", "content": "a"}) != message_key({"role": "assistant", "content": "a"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_temperature": 0.0},
        {"max_new_tokens": 0},
        {"max_prompt_tokens": 5000},
        {"history": "sometimes"},
        {"attempts_kept": 0},
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        GatewayConfig(**wrong)


def test_latencies_and_counts():
    latencies, counts = Latencies(), Counts()
    assert latencies.quantile(0.5) is None
    for milliseconds in range(100):
        latencies.add(milliseconds / 1000)
    assert latencies.quantile(0.5) == 0.05
    assert latencies.quantile(1.0) == 0.099
    assert counts.timeout_rate == 0.0
    counts.completed, counts.timeouts = 3, 1
    assert counts.timeout_rate == 0.25
