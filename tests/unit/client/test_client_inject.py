"""`inject_runtime` on plain agents: live rollouts, joining, copies, detaching."""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import openai
import pytest
from client_loopback import FakeServer, claim

from agent_lightning import Handle, current_rollout, emit_reward, inject_runtime
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.outbox import OUTBOX
from agent_lightning.client.session import claimed
from agent_lightning.errors import AgentError, SettingError
from agent_lightning.wire import protocol


class Agent:
    """An agent as its owner wrote it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, text: str) -> str:
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="sk-secret") as client:
            answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return answer.choices[0].message.content or ""

    def run(self, text: str) -> str:
        return self.ask(text)

    def invoke(self, text: str) -> str:
        return self.run(text)

    async def arun(self, text: str) -> str:
        return await asyncio.to_thread(self.ask, text)

    def stream(self, text: str) -> Iterator[str]:
        yield self.ask(text)
        yield self.ask(f"{text} again")

    async def astream(self, text: str) -> AsyncIterator[str]:
        yield await self.arun(text)


class Failing(Agent):
    def run(self, text: str) -> str:
        raise ValueError("broken agent")


@pytest.fixture
def agent(provider: FakeServer) -> Agent:
    return Agent(provider.url)


def injected(agent: Any, gateway: FakeServer, **settings: Any) -> Handle:
    return inject_runtime(agent, endpoint=gateway.url, trace_sampling_rate=1.0, **settings)


def ends(gateway: FakeServer) -> list[Any]:
    assert OUTBOX.flush(5.0)
    return [seen.body for seen in gateway.on("/end")]


def test_each_outermost_entry_is_one_live_rollout(agent: Agent, gateway: FakeServer, provider: FakeServer) -> None:
    with injected(agent, gateway):
        assert agent.invoke("a") == "gateway: a"
        assert agent.run("b") == "gateway: b"
    assert [call.headers["authorization"] for call in gateway.calls] == ["Bearer alr-live-1", "Bearer alr-live-2"]
    assert [seen.body["input"] for seen in gateway.on("/live")] == ["a", "b"]
    assert [(end["outcome"], end["result"]) for end in ends(gateway)] == [("ok", "gateway: a"), ("ok", "gateway: b")]
    assert provider.seen == []


async def test_coroutines_and_generators_are_one_rollout_to_their_end(
    agent: Agent, gateway: FakeServer, provider: FakeServer
) -> None:
    with injected(agent, gateway):
        assert await agent.arun("a") == "gateway: a"
        assert [item async for item in agent.astream("b")] == ["gateway: b"]
        steps = agent.stream("c")
        assert next(steps) == "gateway: c"
        assert current_rollout() is None, "between two steps the caller is outside"
        assert agent.ask("outside") == "provider: outside"
        assert list(steps) == ["gateway: c again"]
    assert len(gateway.on("/live")) == 3
    assert [end["outcome"] for end in ends(gateway)] == ["ok"] * 3


def test_a_generator_left_early_ends_its_rollout(agent: Agent, gateway: FakeServer) -> None:
    with injected(agent, gateway):
        for _ in agent.stream("a"):
            break
        import gc

        gc.collect()
    assert len(ends(gateway)) == 1


async def test_what_is_thrown_into_a_generator_reaches_the_agents_own_code(
    gateway: FakeServer, provider: FakeServer
) -> None:
    class Catching:
        def stream(self, text: str) -> Iterator[str]:
            try:
                yield text
            except KeyError:
                yield "caught"

        async def astream(self, text: str) -> AsyncIterator[str]:
            try:
                yield text
            except KeyError:
                yield "caught"

    agent: Any = Catching()
    with injected(agent, gateway):
        steps, later = agent.stream("a"), agent.astream("b")
        assert [next(steps), steps.throw(KeyError())] == ["a", "caught"]
        assert [await anext(later), await later.athrow(KeyError())] == ["b", "caught"]
        steps.close()
        await later.aclose()
    assert [end["outcome"] for end in ends(gateway)] == ["ok", "ok"]


def test_an_agent_that_makes_no_call_is_pointed_out_once(gateway: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    class Silent:
        def run(self, text: str) -> str:
            return text

    agent = Silent()
    with injected(agent, gateway), caplog.at_level("WARNING", logger="agent_lightning"):
        agent.run("a")
        agent.run("b")
    assert [record.message for record in caplog.records if "saw no LLM call" in record.message] != []
    assert len(caplog.records) == 1


def test_an_agents_own_error_passes_through_and_is_reported(gateway: FakeServer, provider: FakeServer) -> None:
    agent = Failing(provider.url)
    with injected(agent, gateway), pytest.raises(ValueError, match="broken agent"):
        agent.run("a")
    (end,) = ends(gateway)
    assert (end["outcome"], end["detail"]) == ("agent_error", "ValueError: broken agent")


def test_inside_a_claimed_rollout_the_entry_joins_it(agent: Agent, gateway: FakeServer, config: ClientConfig) -> None:
    with injected(agent, gateway), claimed(claim(7), config=config) as record:
        agent.invoke("a")
    assert gateway.on("/live") == []
    assert gateway.calls[0].headers["authorization"] == "Bearer alr-7"
    assert record.calls_sent == 1


def test_without_a_server_the_agent_runs_to_its_own_provider(agent: Agent, provider: FakeServer) -> None:
    with inject_runtime(agent, endpoint="http://127.0.0.1:9", trace_sampling_rate=1.0):
        assert agent.invoke("a") == "provider: a"
        assert agent.invoke("b") == "provider: b"
    assert len(provider.calls) == 2
    assert provider.calls[0].headers["authorization"] == "Bearer sk-secret"


def test_an_endpoint_that_is_no_training_server_does_not_hurt(
    agent: Agent, gateway: FakeServer, provider: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_loopback.claim", lambda *_, **__: {"task": 5, "rollout_id": "x"})
    with injected(agent, gateway):
        assert agent.run("a") == "provider: a"
    with inject_runtime(
        agent, endpoint=f"http://{'a' * 70}.invalid", trace_sampling_rate=1.0
    ):  # a label has 63 letters
        assert agent.run("b") == "provider: b"


def test_a_gateway_that_fails_in_the_middle_of_a_live_rollout_does_not_hurt(
    agent: Agent, gateway: FakeServer, provider: FakeServer
) -> None:
    gateway.script = [(500, {}, 0.0)]
    with injected(agent, gateway):
        assert agent.run("a") == "provider: a"
        assert agent.run("b") == "gateway: b"
    assert provider.calls[0].headers["authorization"] == "Bearer sk-secret"
    assert not [name for name in provider.calls[0].headers if name.startswith("x-lightning")]


def test_an_unsampled_live_rollout_is_left_alone(
    agent: Agent, gateway: FakeServer, provider: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.random", lambda: 0.9)
    with inject_runtime(agent, endpoint=gateway.url, trace_sampling_rate=0.5):
        assert agent.invoke("a") == "provider: a"
        assert emit_reward(1.0) is False
    assert gateway.seen == []
    assert len(provider.calls) == 1


def test_detaching_restores_the_class_and_both_libraries(agent: Agent, gateway: FakeServer) -> None:
    before = {name: vars(Agent)[name] for name in ("run", "invoke", "arun", "stream", "astream")}
    sends = (httpx2.Client.send, httpx2.AsyncClient.send, threading.Thread.start)
    handle = injected(agent, gateway)
    assert vars(Agent)["run"] is not before["run"]
    handle.detach()
    handle.detach()
    assert {name: vars(Agent)[name] for name in before} == before
    assert (httpx2.Client.send, httpx2.AsyncClient.send, threading.Thread.start) == sends
    assert "__deepcopy__" not in vars(Agent)
    assert agent.run("a") == "provider: a"


def test_injections_nest_and_the_inner_one_leaves_the_outer_whole(agent: Agent, gateway: FakeServer) -> None:
    outer = injected(agent, gateway)
    assert injected(agent, gateway) is outer, "the same again is the same"
    inner = injected(agent, gateway, component="writer")
    agent.run("a")
    inner.detach()
    agent.run("b")
    outer.detach()
    assert agent.run("c") == "provider: c"
    assert [call.headers.get(protocol.COMPONENT) for call in gateway.calls] == ["writer", None]


def test_only_the_injected_object_is_meant_not_its_class(
    agent: Agent, gateway: FakeServer, provider: FakeServer
) -> None:
    with injected(agent, gateway):
        assert Agent(provider.url).run("a") == "provider: a"


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_a_copy_of_an_injected_agent_is_injected(agent: Agent, gateway: FakeServer, copier: Any) -> None:
    with injected(agent, gateway):
        twin = copier(agent)
        assert type(twin) is Agent
        assert vars(twin) == vars(agent)
        assert twin.run("a") == "gateway: a"
    assert twin.run("b") == "provider: b"


def test_an_object_with_slots_and_only_a_call_is_injected(gateway: FakeServer, provider: FakeServer) -> None:
    class Slotted:
        __slots__ = ("url",)

        def __call__(self, text: str) -> str:
            return Agent(self.url).ask(text)

    agent = Slotted()
    agent.url = provider.url
    with injected(agent, gateway):
        assert agent("a") == "gateway: a"
    assert agent("b") == "provider: b"


def test_a_module_level_function_is_injected_by_its_name(
    gateway: FakeServer, provider: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("owner_of_answer")
    module.Agent, module.url = Agent, provider.url  # type: ignore[attr-defined]
    exec("def answer(text):\n    return Agent(url).ask(text)", vars(module))
    monkeypatch.setitem(sys.modules, "owner_of_answer", module)
    with injected(module.answer, gateway):
        assert module.answer("a") == "gateway: a"
    assert module.answer("b") == "provider: b"
    with pytest.raises(AgentError, match="top of a module"):
        injected(lambda text: text, gateway)


def test_switched_off_it_does_nothing_at_all(agent: Agent) -> None:
    before = dict(vars(Agent))
    handle = inject_runtime(agent, runtime_injection=False)
    assert dict(vars(Agent)) == before
    assert not handle.attached
    handle.detach()


def test_what_cannot_be_injected_is_said(agent: Agent, gateway: FakeServer) -> None:
    with pytest.raises(AgentError, match="run, invoke or __call__"):
        injected(object(), gateway)
    with pytest.raises(SettingError, match="exposes no named parts"):
        injected(agent, gateway, component="sql_*")
    with pytest.raises(SettingError, match="unknown client setting 'colour'"):
        injected(agent, gateway, colour="red")
    assert "__wrapped__" not in dir(vars(Agent)["run"])
