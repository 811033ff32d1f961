"""Whatever order agents speak in and whatever their model's template does, a branch spells what the policy saw."""

from __future__ import annotations

import asyncio
import itertools
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent_lightning import trajectory
from agent_lightning.gateway.gateway import Asked, Gateway, GatewayConfig
from agent_lightning.models.chat_template import ChatTemplate
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Call, CallStatus, Rollout, Task
from agent_lightning.store.sqlite import SqliteStore
from chat_families import FAMILIES, Family
from gateway_rig import NOW, GatedEngine

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
ADD = {"name": "add", "arguments": {"b": 2, "a": "x y"}}
THOUGHT = "<think>\nlet me see\n</think>\n\n"
TEXT = st.text(alphabet="ab 1é🎉\n", max_size=8)
TURN = st.fixed_dictionaries(
    {
        "agent": st.integers(0, 2),
        "said": TEXT,
        # ids drawn one by one: few of these spellings are what the tokenizer itself would write
        "sampled": st.one_of(
            st.lists(st.integers(0, 300), min_size=1, max_size=12),
            TEXT.map(lambda text: f"so {text}"),
            st.sampled_from(["call", "text and calls"]),
        ),
        "ends": st.booleans(),  # the odd spelling, with an end of turn
        "how": st.integers(0, 2),
        "limit": st.sampled_from([3, 200, 200]),
        "event": st.sampled_from([*[None] * 4, "rewrites", "restart", "tools", "again", "twice", "fork"]),
    }
)


@dataclass
class Agent:
    """One conversation: it sends back what it was told, written its own way, and adds to it."""

    tools: bool
    messages: list[dict[str, Any]]
    faithful: bool = True  # the template would write every reply as it was sampled


@dataclass
class Seen:
    """What one call should have come to, worked out apart from the gateway."""

    key: list[Any]  # tools and messages, the reply included
    root: int  # messages of the request that began the branch
    full: list[int] = field(default_factory=list)  # prompt and answer


@dataclass
class World:
    family: Family
    store: SqliteStore
    said: list[Any] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.tokenizer: ChatTokenizer = self.family.tokenizer()
        self.template = ChatTemplate(self.family.source, self.tokenizer.special_tokens, NOW)
        self.engine = GatedEngine(self.tokenizer, lambda request: self.said.pop())
        self.restart()

    def restart(self) -> None:
        """The branches come back from the store."""
        self.gateway = Gateway(
            self.store,
            self.engine,
            self.tokenizer,
            self.template,
            GatewayConfig(context_length=4096),
            clock=lambda: 1.0,
            new_id=lambda: f"c{next(self.numbers)}",
        )

    def parent(self, key: list[Any], roles: Sequence[str]) -> int | None:
        """The newest of the calls whose conversation is the longest beginning of this one."""
        known = [place for place, seen in enumerate(self.seen) if seen.key == key[: len(seen.key)]]
        best = max(known, key=lambda place: (len(self.seen[place].key), place), default=None)
        # Qwen strips the thinking of replies before the last question
        if best is not None and self.family.name == "qwen" and "user" in roles[self.seen[best].root :]:
            return None
        return best


def plain_key(message: dict[str, Any]) -> Any:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or ()]
    return (message["role"], text.rstrip(), calls)


def rewritten(message: dict[str, Any], how: int) -> dict[str, Any]:
    """The reply as some framework sends it back."""
    back = dict(message)
    if how == 1 and back["content"]:
        back["content"] = [{"type": "text", "text": back["content"]}]
    if how == 2:
        back |= {"name": "solver", "reasoning_content": "hm", "content": (back["content"] or "").rstrip() or None}
    if how and back.get("tool_calls"):
        back["tool_calls"] = [
            {
                "id": f"other{position:04}",
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=how, sort_keys=how == 2),
                },
            }
            for position, call in enumerate(back["tool_calls"])
        ]
    return back


@pytest.mark.parametrize("name", FAMILIES)
def test_a_branch_spells_exactly_what_the_model_saw(name: str):
    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # shrinking takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(turns=st.lists(TURN, min_size=1, max_size=9), tools=st.lists(st.booleans(), min_size=3, max_size=3))
    def run(turns: list[dict[str, Any]], tools: list[bool]) -> None:
        asyncio.run(_conversations(FAMILIES[name], turns, tools))

    run()


async def _conversations(family: Family, turns: list[dict[str, Any]], tools: list[bool]) -> None:
    store = await SqliteStore.open()
    try:
        await _converse(World(family, store), turns, tools)
    finally:
        await store.close()


async def _converse(world: World, turns: list[dict[str, Any]], tools: list[bool]) -> None:
    store = world.store
    rollout = Rollout(id="r", run_id="run", task=Task(id="t", input=0), mode="train", group_id="g")
    await store.enqueue([rollout])
    claim = await store.claim("w", lease_seconds=60)
    assert claim is not None
    # agents tell themselves apart by their prompts; one has none
    prompts = ([], [{"role": "system", "content": "be one"}], [{"role": "developer", "content": "be two"}])
    agents = [Agent(tools=flag, messages=list(prompt)) for flag, prompt in zip(tools, prompts, strict=True)]
    for position, turn in enumerate(turns):
        agent = agents[turn["agent"]]
        _prepare(agent, agents[turn["agent"] - 1], turn, position)
        for _ in range(2 if turn["event"] == "again" else 1):
            message = await _ask(world, claim.key, agent, turn)
        agent.messages = [*agent.messages, rewritten(message, turn["how"])]
        agent.faithful &= turn["how"] == 0
        if turn["event"] == "restart":
            world.restart()
    calls = await store.calls("r")
    assert len(calls) == len(world.seen) == len(world.engine.requests)
    _check_trajectory(rollout, calls, world)


def _prepare(agent: Agent, other: Agent, turn: dict[str, Any], position: int) -> None:
    """What the agent does to its conversation before it asks."""
    if turn["event"] == "rewrites":
        agent.messages, agent.faithful = [{"role": "user", "content": f"summary {position}"}], True
        return
    if turn["event"] == "tools":
        agent.tools = not agent.tools
    if turn["event"] == "fork" and other.messages and other.messages[-1]["role"] == "assistant":
        agent.messages, agent.tools, agent.faithful = list(other.messages), other.tools, other.faithful
    if agent.messages and agent.messages[-1].get("tool_calls"):
        results = [{"role": "tool", "tool_call_id": call["id"], "content": turn["said"]}
                   for call in agent.messages[-1]["tool_calls"]]  # fmt: skip
        agent.messages = [*agent.messages, *results]
    elif not agent.messages or agent.messages[-1]["role"] != "user":
        agent.messages = [*agent.messages, {"role": "user", "content": f"{turn['agent']} {turn['said']}"}]


async def _ask(world: World, key: str, agent: Agent, turn: dict[str, Any]) -> dict[str, Any]:
    """One request; what the gateway made of it is held against what should have come."""
    family, choices = world.family, 2 if turn["event"] == "twice" else 1
    said: Any = turn["sampled"]
    if said == "call":
        said = family.says("", ADD)
    elif said == "text and calls":
        said = family.says("I add", ADD, {**ADD, "arguments": {}})
    if isinstance(said, str) and family.name == "qwen":
        said = THOUGHT + said
    elif isinstance(said, list):
        said = array("i", [*said, *world.tokenizer.stop_ids[-1:]] if turn["ends"] else said)
    world.said += [said] * choices
    body = {"model": "m", "messages": agent.messages, "max_tokens": turn["limit"], "n": choices}
    body |= {"tools": TOOLS} if agent.tools else {}
    before, asked = len(world.seen), [bool(agent.tools), *map(plain_key, agent.messages)]
    parent = world.parent(asked, [message["role"] for message in agent.messages])
    answer = await world.gateway.answer(Asked(key=key, body=json.dumps(body).encode()))
    assert answer.body is not None
    for made, request in zip(answer.body["choices"], world.engine.requests[before:], strict=True):
        prompt, sampled = list(request.prompt_ids), made["token_ids"]
        assert answer.body["prompt_token_ids"] == prompt
        root = len(agent.messages) if parent is None else world.seen[parent].root
        world.seen.append(Seen([*asked, plain_key(made["message"])], root, prompt + sampled))
        _check_prompt(world, parent, prompt, agent)
        assert made["message"]["content"] != "" or not made["message"].get("tool_calls")
    finished = answer.body["choices"][0]["finish_reason"] != "length"
    plainly = agent.tools or turn["sampled"] not in ("call", "text and calls")  # without tools a call is odd text
    agent.faithful &= isinstance(said, str) and finished and plainly
    return answer.body["choices"][0]["message"]


def _check_prompt(world: World, parent: int | None, prompt: list[int], agent: Agent) -> None:
    stops = world.gateway.templates.stop_ids
    if parent is not None:
        known = world.seen[parent].full
        assert prompt[: len(known)] == known
        # the reply's end is there once: sampled, or added as context
        assert (known[-1] in stops) != (prompt[len(known)] in stops)
    if parent is None or agent.faithful:
        template = world.gateway.templates.of(agent.messages, TOOLS if agent.tools else [])
        plain = [
            {**m, "role": "system" if m["role"] == "developer" else m["role"], "content": plain_text(m)}
            for m in agent.messages
        ]
        rendered = template.render(plain, TOOLS if agent.tools else [])
        typed = json.dumps(plain, ensure_ascii=False)
        if parent is None and not any(mark in typed for mark in world.family.control):  # a mark sent back is text
            assert prompt == list(world.tokenizer.encode(rendered))
        spelled = world.tokenizer.decode(prompt, frozenset(range(world.tokenizer.vocabulary)))
        for end in world.family.ends:  # a policy may end its turn with another token than the template writes
            spelled = spelled.replace(end, world.family.ends[0])
        assert "".join(spelled.split()) == "".join(rendered.split())


def plain_text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _check_trajectory(rollout: Rollout, calls: Sequence[Call], world: World) -> None:
    """What is stored spells what the engine was given, and each sampled token is trained once."""
    assert all(call.status is CallStatus.COMPLETED and call.trainable for call in calls)
    prompts = trajectory.prompts(calls)
    for call, request in zip(calls, world.engine.requests, strict=True):
        assert prompts[call.id] == request.prompt_ids
    built = trajectory.build(rollout, calls, [], policy="default")
    full = {tuple(seen.full) for seen in world.seen}
    trained: list[str] = []
    for branch in trajectory.branches(built):
        assert tuple(branch.tokens) in full
        for span in branch.trained:
            trained.append(span.step.call_id)
            assert branch.tokens[: span.start] == prompts[span.step.call_id]
            assert branch.tokens[span.start : span.end] == span.step.action
    assert sorted(trained) == sorted(call.id for call in calls if call.sampled_ids)
