"""The default model's own template: it ignores tools and fails on a message without text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent_lightning.gateway.gateway import Asked, Gateway, GatewayConfig
from agent_lightning.models.chat_template import load_template
from agent_lightning.models.probe import probe
from agent_lightning.models.source import resolve
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Rollout, Task
from agent_lightning.store.sqlite import SqliteStore
from gateway_rig import NOW, GatedEngine

USER = {"role": "user", "content": "1 + 2?"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(resolve("smollm2"))


def test_its_template_only_grows_but_knows_no_tools(tokenizer: ChatTokenizer):
    own = load_template(tokenizer, NOW)
    seen = probe(own, tokenizer)
    assert seen.append_only
    assert (seen.tools, seen.tools_reason) == (False, "the chat template ignores tools")
    assert tokenizer.token_text(seen.end_of_turn or 0) == "<|im_end|>"
    assert "named SmolLM" in own.render([USER])
    assert own.render([USER, {"role": "assistant", "content": None}, USER])


async def test_requests_with_tools_are_shown_through_the_shipped_template(tokenizer: ChatTokenizer):
    said: Iterator[str] = iter([CALL, "It is 3.", "plain"])
    store = await SqliteStore.open()
    engine = GatedEngine(tokenizer, lambda request: next(said))
    names = iter("abc")
    own = load_template(tokenizer, NOW)
    gateway = Gateway(store, engine, tokenizer, own, GatewayConfig(), clock=lambda: 1.0, new_id=lambda: next(names))
    await store.enqueue([Rollout(id="r", run_id="run", task=Task(id="t", input=0), mode="train", group_id="g")])
    claim = await store.claim("w", lease_seconds=60)
    assert claim is not None

    async def ask(*messages: dict, **more: object) -> dict:
        body = {"model": "m", "messages": list(messages), **more}
        answer = await gateway.answer(Asked(key=claim.key, body=json.dumps(body).encode()))
        assert answer.body is not None
        return dict(answer.body["choices"][0]["message"])

    reply = await ask(USER, tools=[TOOL])
    assert reply["tool_calls"][0]["function"]["name"] == "add"
    result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "3"}
    assert (await ask(USER, reply, result, tools=[TOOL]))["content"] == "It is 3."
    assert (await ask(USER))["content"] == "plain"
    first, second, third = await store.calls("r")
    assert (second.parent_call_id, third.parent_call_id) == (first.id, None)
    assert '"add"' in tokenizer.decode(first.suffix_ids)
    assert "named SmolLM" in tokenizer.decode(third.suffix_ids)
    assert tokenizer.decode(second.suffix_ids) == "\nuser\n<tool_response>\n3\n</tool_response>\nassistant\n"
    await store.close()
