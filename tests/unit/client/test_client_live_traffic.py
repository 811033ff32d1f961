"""Live traffic: how much is recorded, two providers, and a server that fails and comes back."""

from __future__ import annotations

import pickle
from typing import Any

import httpx2
import pytest
from client_loopback import FakeServer, claim, serve

from agent_lightning import inject_runtime
from agent_lightning.client import link
from agent_lightning.client.breaker import FAILURES, OPEN_SECONDS, Breaker, breaker_of
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.link import Link
from agent_lightning.client.live import LiveSource
from agent_lightning.client.outbox import OUTBOX
from agent_lightning.client.session import claimed
from agent_lightning.wire import protocol


def ask(url: str, key: str, text: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    with httpx2.Client(headers={"Authorization": f"Bearer {key}"}) as client:
        return client.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]


class Asking:
    def __init__(self, url: str, key: str = "sk-secret") -> None:
        self.url, self.key = url, key

    def run(self, text: str) -> str:
        return ask(self.url, self.key, text)


def spans(server: FakeServer) -> list[dict[str, Any]]:
    assert OUTBOX.flush(5.0)
    exports = [seen.body for seen in server.on("/v1/traces")]
    found = [span for e in exports for r in e["resourceSpans"] for s in r["scopeSpans"] for span in s["spans"]]
    return [{a["key"]: next(iter(a["value"].values())) for a in span["attributes"]} for span in found]


def test_untrained_components_reach_their_own_providers_and_are_recorded(gateway: FakeServer) -> None:
    """A graph of three nodes, each with a provider and a key of its own."""
    from langgraph.graph import END, START, StateGraph

    servers = [serve("first"), serve("second")]
    first, second = (next(server) for server in servers)
    builder: Any = StateGraph(dict)
    builder.add_node("planner", lambda state: {"plan": ask(first.url, "sk-first", "plan")})
    builder.add_node("writer", lambda state: {**state, "text": ask(first.url, "sk-first", "write")})
    builder.add_node("judge", lambda state: {**state, "verdict": ask(second.url, "sk-second", "judge")})
    for before, after in ((START, "planner"), ("planner", "writer"), ("writer", "judge"), ("judge", END)):
        builder.add_edge(before, after)
    graph = builder.compile()
    with inject_runtime(graph, endpoint=gateway.url, component="writer", trace_sampling_rate=1.0):
        result = graph.invoke({})
    assert result == {"plan": "first: plan", "text": "gateway: write", "verdict": "second: judge"}
    for server, key in ((first, "sk-first"), (second, "sk-second")):
        (seen,) = server.calls
        assert seen.headers["authorization"] == f"Bearer {key}"
        assert not [name for name in seen.headers if name.startswith("x-lightning")]
    calls = [span for span in spans(gateway) if span["agent_lightning.kind"] == "call"]
    assert [span["agent_lightning.component"] for span in calls] == ["planner", "writer", "judge"]
    assert ["agent_lightning.call_id" in span for span in calls] == [False, True, False], "trained calls have an id"
    assert [f"http://{span['server.address']}" for span in calls] == [first.url, first.url, second.url]
    for server in servers:
        next(server, None)


def test_two_agents_with_two_components_do_not_mix(gateway: FakeServer, provider: FakeServer) -> None:
    one, two, alone = Asking(provider.url), Asking(provider.url), Asking(provider.url)
    settings: dict[str, Any] = {"endpoint": gateway.url, "trace_sampling_rate": 1.0}
    with (
        inject_runtime(one, component="one", **settings) as first,
        inject_runtime(two, component="two", **settings) as second,
    ):
        assert [one.run("a"), two.run("b"), alone.run("c")] == ["gateway: a", "gateway: b", "provider: c"]
        first.detach()
        assert [one.run("d"), two.run("e")] == ["provider: d", "gateway: e"]
        assert (first.attached, second.attached) == (False, True)
    assert [call.headers[protocol.COMPONENT] for call in gateway.calls] == ["one", "two", "two"]
    assert not hasattr(Asking.run, "__wrapped__")


def test_an_injected_agent_is_pickled_as_itself(gateway: FakeServer, provider: FakeServer) -> None:
    agent = Asking(provider.url)
    with inject_runtime(agent, endpoint=gateway.url, trace_sampling_rate=1.0):
        twin = pickle.loads(pickle.dumps(agent))
        assert vars(twin) == vars(agent)
        assert twin.run("a") == "provider: a", "what comes out of a pickle is an object that nobody injected"
        assert agent.run("a") == "gateway: a"


@pytest.mark.parametrize(("told", "rate"), [("0", 0.5), ("0.5", 0.3), ("1", 0.1), ("7", 0.1), ("much", 0.3)])
def test_under_auto_the_servers_load_decides_how_much_is_recorded(
    gateway: FakeServer, told: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_loads", {})
    source = LiveSource(ClientConfig(endpoint=gateway.url, trace_sampling_rate="auto"))
    assert source.rate() == pytest.approx(0.3), "nobody has told yet"
    monkeypatch.setattr("client_loopback.ANSWER_HEADERS", {protocol.LOAD: told})
    posts = Link(gateway.url)
    posts.rewards("ro-1", [], key="alr-1")
    posts.close()
    assert source.rate() == pytest.approx(rate)
    assert LiveSource(ClientConfig(endpoint=gateway.url)).rate() == pytest.approx(0.3)
    monkeypatch.setattr(link, "LOAD_SECONDS", 0.0)
    assert source.rate() == pytest.approx(0.3), "an old word counts no more"


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_through_in_time() -> None:
    now = [0.0]
    it = Breaker(clock=lambda: now[0])
    for _ in range(FAILURES - 1):
        it.failed()
    it.succeeded()
    for _ in range(FAILURES - 1):
        it.failed()
    assert it.allows(), "not in a row"
    it.failed()
    assert (it.allows(), it.rests()) == (False, True)
    now[0] = OPEN_SECONDS
    assert [it.allows(), it.allows()] == [True, False], "one finds out for all"
    it.failed()
    now[0] = 2 * OPEN_SECONDS
    assert it.allows()
    it.succeeded()
    assert [it.allows(), it.allows()] == [True, True]


def test_live_calls_leave_a_failing_server_alone_and_come_back(
    gateway: FakeServer, provider: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Asking(provider.url)
    gateway.script = [(503, {}, 0.0)] * FAILURES
    with inject_runtime(agent, endpoint=gateway.url, trace_sampling_rate=1.0):
        assert [agent.run("a") for _ in range(FAILURES + 2)] == ["provider: a"] * (FAILURES + 2)
        assert len(gateway.calls) == FAILURES, "then it is left alone"
        assert len(gateway.on("/live")) == FAILURES
        monkeypatch.setattr(breaker_of(gateway.url, "calls"), "_clock", lambda: 1e12)
        assert [agent.run("b"), agent.run("c")] == ["gateway: b", "gateway: c"]


def test_queued_rollouts_never_fall_back(gateway: FakeServer, provider: FakeServer) -> None:
    breaker_of(gateway.url, "calls").open()
    agent = Asking(provider.url)
    config = ClientConfig(endpoint=gateway.url)
    with inject_runtime(agent, endpoint=gateway.url), claimed(claim(), config=config):
        assert agent.run("a") == "gateway: a"
    assert provider.seen == []
