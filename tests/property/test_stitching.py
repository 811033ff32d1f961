"""Whatever order agents speak in, a branch spells exactly what the policy saw."""

from __future__ import annotations

import asyncio
import itertools
import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_lightning.gateway.gateway import Asked, Gateway, GatewayConfig
from agent_lightning.models.chat_template import CHATML, ChatTemplate
from agent_lightning.records import CallStatus, Rollout, Task
from agent_lightning.store.sqlite import SqliteStore
from gateway_rig import NOW, GatedEngine, chatml_tokenizer

TOKENIZER = chatml_tokenizer()
END = TOKENIZER.stop_ids[0]
TEMPLATE = ChatTemplate(CHATML, TOKENIZER.special_tokens, NOW)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"b":2,   "a": 1}}\n</tool_call>'

# ids drawn one by one: few of these spellings are what the tokenizer itself would write
SAMPLED = st.lists(st.integers(0, TOKENIZER.vocabulary - 3), max_size=12)
TEXT = st.text(alphabet="ab 1é🎉\n", max_size=8)


@dataclass
class Agent:
    """One conversation: it sends back what it was told, written its own way, and adds to it."""

    tools: bool
    messages: list[dict[str, Any]] = field(default_factory=list)


def rewritten(message: dict[str, Any], how: int) -> dict[str, Any]:
    """The reply as some framework sends it back."""
    back = dict(message)
    if how == 1 and back["content"]:
        back["content"] = [{"type": "text", "text": back["content"]}]
    if how == 2:
        back |= {"name": "solver", "reasoning_content": "hm", "content": (back["content"] or "").rstrip() or None}
    if back.get("tool_calls"):
        back["tool_calls"] = [
            {
                "id": f"other-{position}",
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=how, sort_keys=how == 2),
                },
            }
            for position, call in enumerate(back["tool_calls"])
        ]
    return back


TURN = st.fixed_dictionaries(
    {
        "agent": st.integers(0, 2),
        "said": TEXT,
        "sampled": st.one_of(SAMPLED.map(lambda ids: [*ids, END]), SAMPLED.filter(bool), st.just("call")),
        "how": st.integers(0, 2),
        "limit": st.sampled_from([3, 50]),
        "rewrites": st.integers(0, 9),
    }
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(TURN, min_size=1, max_size=8), tools=st.lists(st.booleans(), min_size=3, max_size=3))
def test_a_branch_spells_exactly_what_the_model_saw(turns: list[dict[str, Any]], tools: list[bool]):
    asyncio.run(_conversations(turns, tools))


async def _conversations(turns: list[dict[str, Any]], tools: list[bool]) -> None:
    store = await SqliteStore.open()
    said: list[Any] = []
    engine = GatedEngine(TOKENIZER, lambda request: said.pop())
    numbers = itertools.count()

    def fresh() -> Gateway:
        return Gateway(
            store, engine, TOKENIZER, TEMPLATE, GatewayConfig(), clock=lambda: 1.0, new_id=lambda: f"c{next(numbers)}"
        )

    gateway = fresh()
    await store.enqueue([Rollout(id="r", run_id="run", task=Task(id="t", input=0), mode="train", group_id="g")])
    claim = await store.claim("w", lease_seconds=60)
    assert claim is not None
    agents = [Agent(tools=flag) for flag in tools]
    expected: list[tuple[int, bool]] = []  # (which agent, is it the first call of its branch)
    for position, turn in enumerate(turns):
        agent = agents[turn["agent"]]
        if turn["rewrites"] == 0 and agent.messages:  # history is rewritten: a new branch starts
            agent.messages = [{"role": "user", "content": f"summary {position}"}]
        begins = not any(message["role"] == "assistant" for message in agent.messages)
        begins = begins or turn["rewrites"] == 0
        last = agent.messages[-1] if agent.messages else {}
        if last.get("tool_calls"):
            agent.messages.append({"role": "tool", "tool_call_id": "x", "content": turn["said"]})
        else:
            # agents tell themselves apart by what they ask, as their prompts do
            agent.messages.append({"role": "user", "content": f"{turn['agent']} {turn['said']}"})
        said.append(CALL if turn["sampled"] == "call" else array("i", turn["sampled"]))
        body = {
            "model": "m",
            "messages": agent.messages,
            "max_tokens": 50 if turn["sampled"] == "call" else turn["limit"],
        }
        if agent.tools:
            body["tools"] = TOOLS
        answer = await gateway.answer(Asked(key=claim.key, body=json.dumps(body).encode()))
        assert answer.body is not None
        assert answer.body["prompt_token_ids"] == list(engine.requests[-1].prompt_ids)
        agent.messages = [*agent.messages, rewritten(answer.body["choices"][0]["message"], turn["how"])]
        expected.append((turn["agent"], begins))
        if turn["rewrites"] == 1:
            gateway = fresh()  # restarted: the branches come back from the store
    await _check(store, engine, expected)
    await store.close()


async def _check(store: SqliteStore, engine: GatedEngine, expected: list[tuple[int, bool]]) -> None:
    calls = await store.calls("r")
    assert len(calls) == len(engine.requests) == len(expected)
    full: dict[str, array[int]] = {}
    newest: dict[int, str] = {}
    for call, request, (agent, begins) in zip(calls, engine.requests, expected, strict=True):
        assert call.status is CallStatus.COMPLETED
        assert (call.parent_call_id is None) == begins
        if call.parent_call_id is None:
            assert call.suffix_ids == request.prompt_ids
        else:
            assert call.parent_call_id == newest[agent]
            parent = full[call.parent_call_id]
            assert call.prompt_offset == len(parent)
            assert parent + call.suffix_ids == request.prompt_ids
            # the reply's end is there once: sampled, or added as context
            assert (parent[-1] == END) != (call.suffix_ids[0] == END)
        full[call.id] = request.prompt_ids + call.sampled_ids
        newest[agent] = call.id
