"""Rewards, spans and messages: what is delivered, what is lost, and that nobody waits for it."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

import httpx2
import pytest
from client_loopback import FakeServer, claim

from agent_lightning import current_rollout, emit_reward
from agent_lightning.client import emit, outbox
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.link import Link
from agent_lightning.client.outbox import OUTBOX, Message, Outbox, Tempo
from agent_lightning.client.scope import Scope, in_context
from agent_lightning.client.session import claimed, scope_of
from agent_lightning.errors import AccessDenied, Fenced, RewardError, ServerUnreachable, SettingError

DEAD = "http://127.0.0.1:9"


def attributes(span: dict[str, Any]) -> dict[str, str]:
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def spans(server: FakeServer) -> list[dict[str, Any]]:
    assert OUTBOX.flush(5.0)
    exports = [seen.body for seen in server.on("/v1/traces")]
    return [span for export in exports for r in export["resourceSpans"] for s in r["scopeSpans"] for span in s["spans"]]


def call(url: str, text: str = "hi") -> None:
    with httpx2.Client() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        client.post(f"{url}/v1/chat/completions", json=body).raise_for_status()


@pytest.mark.usefixtures("installed")
def test_a_reward_reaches_the_rollout_and_is_acknowledged(gateway: FakeServer, config: ClientConfig) -> None:
    with claimed(claim(3), config=config) as record:
        call(DEAD)
        assert emit_reward(0.5)
        assert emit_reward(1, "format", step="last")
        assert emit_reward(-1.0, component="writer")
        last = record.last_call_id
        assert OUTBOX.flush(5.0)
    sent = gateway.on("/rewards")
    assert [seen.path for seen in sent] == ["/api/v1/rollouts/ro-3/rewards"] * 3
    assert {seen.headers["authorization"] for seen in sent} == {"Bearer alr-3"}
    rewards = [seen.body["rewards"][0] for seen in sent]
    assert [(r["name"], r["value"], r["target"], r["target_id"]) for r in rewards] == [
        ("reward", 0.5, "rollout", ""),
        ("format", 1.0, "step", last),
        ("reward", -1.0, "component", "writer"),
    ]
    assert len({r["id"] for r in rewards}) == 3
    assert record.rewards_sent == 3
    assert record.open_rewards() == []


def test_a_reward_that_the_server_did_not_get_is_kept_for_the_end_of_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "MESSAGE_PATIENCE", 0.1)
    with claimed(claim(), config=ClientConfig(endpoint=DEAD)) as record:
        began = time.monotonic()
        assert emit_reward(1.0)
        assert time.monotonic() - began < 0.1, "nobody waits"
        assert OUTBOX.flush(5.0), "it is given up in the background"
    assert [reward["value"] for reward in record.open_rewards()] == [1.0]
    assert record.rewards_sent == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", None, True])
def test_what_is_no_finite_number_is_refused_at_the_call(value: Any, config: ClientConfig) -> None:
    with claimed(claim(), config=config), pytest.raises(RewardError, match="finite number"):
        emit_reward(value)


def test_a_reward_without_a_target_is_refused(config: ClientConfig) -> None:
    with claimed(claim(), config=config):
        with pytest.raises(RewardError, match="no LLM call"):
            emit_reward(1.0, step="last")
        with pytest.raises(RewardError, match="not both"):
            emit_reward(1.0, step="c", component="d")


def test_outside_of_a_rollout_a_reward_is_harmless_and_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "_warned", False)
    with caplog.at_level(logging.WARNING, logger="agent_lightning"):
        assert [emit_reward(1.0), emit_reward(2.0)] == [False, False]
    assert len(caplog.records) == 1
    assert current_rollout() is None


def test_the_current_rollout_shows_its_task_and_hides_its_key(config: ClientConfig) -> None:
    with claimed(claim(5, mode="val"), config=config):
        now = current_rollout()
    assert now is not None
    assert (now.id, now.attempt_id, now.mode, now.task["input"]) == ("ro-5", "at-5", "val", {"n": 5})
    assert now.seconds_left is not None
    assert 29 < now.seconds_left <= 30
    assert "alr-5" not in repr(scope_of(claim(5), config=config))


def test_a_claim_of_another_version_is_named(config: ClientConfig) -> None:
    broken = claim()
    del broken["key"], broken["mode"]
    with pytest.raises(SettingError, match="lacks mode, key"), claimed(broken, config=config):
        pass


def test_an_agent_does_not_see_what_it_is_judged_by(config: ClientConfig) -> None:
    task = {"id": "t", "input": "2+2", "split": "train", "meta": {"answer": 4}, "answer": 4}
    with claimed(claim(task=task), config=config):
        now, inner = current_rollout(), in_context()
    assert now is not None
    assert inner is not None
    assert dict(now.task) == dict(inner.task) == {"id": "t", "input": "2+2", "split": "train"}


@pytest.mark.usefixtures("installed")
def test_every_call_and_rollout_leaves_a_span_that_names_it(gateway: FakeServer) -> None:
    config = ClientConfig(endpoint=gateway.url, debug_trace=True, redact=[r"secret \w+"])
    with claimed(claim(), config=config) as record:
        call(DEAD, "my secret word")
        call_id = record.last_call_id
    leaf, root = spans(gateway)
    assert leaf["traceId"] == root["traceId"]
    assert leaf["parentSpanId"] == root["spanId"]
    assert attributes(leaf) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "server.address": "127.0.0.1:9",
        "gen_ai.input.messages": json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": "my [redacted]"}]}]
        ),
        "agent_lightning.call_id": call_id,
        "agent_lightning.component": "",
        "agent_lightning.kind": "call",
        "agent_lightning.rollout_id": "ro-1",
        "agent_lightning.attempt_id": "at-1",
    }
    assert attributes(root)["agent_lightning.kind"] == "agent"
    assert int(leaf["startTimeUnixNano"]) <= int(leaf["endTimeUnixNano"])


def test_a_full_outbox_loses_and_counts_and_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "CAPACITY", 5)
    monkeypatch.setattr(Outbox, "_wake", lambda self: None)
    box = Outbox()
    scope: Scope = scope_of(claim(), config=ClientConfig(endpoint=DEAD))
    for _ in range(8):
        box.put_span(scope, dict)
    assert box.lost() == {"span": 3}
    assert scope.record.lost == {"span": 3}
    assert not box.flush(0.05)


def test_spans_that_no_collector_takes_are_counted() -> None:
    box = Outbox()
    scope = scope_of(claim(), config=ClientConfig(endpoint=DEAD, async_data_upload=True))
    for _ in range(3):
        box.put_span(scope, lambda: {"attributes": []})
    assert box.flush(5.0)
    assert box.lost() == {"span": 3}


def test_uploads_are_batched_when_many_come_and_not_when_few_do() -> None:
    now = 0.0
    tempo = Tempo(clock=lambda: now)

    def second(count: int) -> bool:
        nonlocal now
        for _ in range(count):
            now += 1.0001 / count
            tempo.arrived("auto")
        return tempo.batching

    assert [second(n) for n in (50, 200, 200, 120, 120, 60, 60, 120)] == [
        False, True, True, True, True, False, False, False
    ]  # fmt: skip
    tempo.arrived(True)
    assert tempo.batching


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("an object of the agent's")


def test_what_cannot_be_written_is_counted_and_the_next_is_delivered(
    gateway: FakeServer, config: ClientConfig, caplog: pytest.LogCaptureFixture
) -> None:
    box = Outbox()
    scope = scope_of(claim(), config=config)

    def end(result: Any) -> Message:
        return Message(
            kind="end",
            endpoint=gateway.url,
            api_key=None,
            send=lambda link: link.end("at-1", key="alr-1", outcome="ok", result=result) and None,
        )

    for value in (Unwritable(), "fine"):
        box.put_message(end(value))
        box.put_span(scope, lambda value=value: {"name": value})
        assert box.flush(5.0)
    assert box.lost() == {"end": 1, "span": 1}
    assert scope.record.lost == {"span": 1}
    assert [seen.body["result"] for seen in gateway.on("/end")] == ["fine"]
    (export,) = gateway.on("/v1/traces")
    assert export.body["resourceSpans"][0]["scopeSpans"][0]["spans"] == [{"name": "fine"}]
    assert len(caplog.records) == 2, "the first reason of each kind is said"
    box.close()


@pytest.mark.usefixtures("installed")
def test_a_body_of_a_shape_that_nobody_expects_is_sent_all_the_same(gateway: FakeServer) -> None:
    odd = [{"role": "assistant", "content": 5, "tool_calls": ["x", {"function": "y"}]}, {"tool_calls": 7}, "z"]
    with claimed(claim(), config=ClientConfig(endpoint=gateway.url, debug_trace=True)), httpx2.Client() as client:
        asked = client.post(
            f"{DEAD}/v1/messages", json={"model": "m", "messages": odd}, headers={"anthropic-version": "1"}
        )
    assert asked.status_code == 200
    assert len(spans(gateway)) == 2


def test_a_batch_waits_for_company(gateway: FakeServer) -> None:
    box = Outbox()
    scope = scope_of(claim(), config=ClientConfig(endpoint=gateway.url, async_data_upload=True))
    for number in range(40):
        box.put_span(scope, lambda number=number: {"name": str(number)})
        time.sleep(0.001)
    assert box.flush(5.0)
    exports = [seen.body["resourceSpans"][0]["scopeSpans"][0]["spans"] for seen in gateway.on("/v1/traces")]
    assert len(exports) <= 2
    assert [span["name"] for spans in exports for span in spans] == [str(number) for number in range(40)]
    box.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_sends_what_is_its_own_and_nothing_of_its_parents(gateway: FakeServer) -> None:
    import subprocess
    import sys

    program = """
import os, sys, time
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.outbox import OUTBOX
from agent_lightning.client.session import claimed
from agent_lightning import emit_reward
claim = {"rollout_id": "ro", "attempt_id": "at", "mode": "train", "key": "alr-x"}
with claimed(claim, config=ClientConfig(endpoint=sys.argv[1])):
    emit_reward(1.0, "parent")
    assert OUTBOX.flush(5.0)
    child = os.fork()
    emit_reward(2.0, "child" if child == 0 else "parent again")
    assert OUTBOX.flush(5.0)
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", program, gateway.url], check=True, timeout=30)
    names = sorted(seen.body["rewards"][0]["name"] for seen in gateway.on("/rewards"))
    assert names == ["child", "parent", "parent again"]


def test_what_is_queued_is_flushed_when_the_process_ends(gateway: FakeServer) -> None:
    import subprocess
    import sys

    program = """
import sys
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.session import claimed
from agent_lightning import emit_reward
claim = {"rollout_id": "ro", "attempt_id": "at", "mode": "train", "key": "alr-x"}
with claimed(claim, config=ClientConfig(endpoint=sys.argv[1], async_data_upload=True)):
    emit_reward(1.0)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program, gateway.url], check=True, timeout=30)
    assert len(gateway.on("/rewards")) == 1
    assert len(gateway.on("/v1/traces")) == 1


def test_the_link_names_the_endpoint_and_the_remedy_when_nobody_answers() -> None:
    with pytest.raises(
        ServerUnreachable, match=r"http://127.0.0.1:9 did not answer /api/v1/claims.*agent-lightning serve"
    ):
        Link(DEAD).claim(worker="w")


@pytest.mark.parametrize(("status", "error"), [(401, AccessDenied), (410, Fenced), (500, ServerUnreachable)])
def test_the_link_raises_what_the_server_said(gateway: FakeServer, status: int, error: type[Exception]) -> None:
    gateway.script = [(status, {}, 0.0)]
    link = Link(gateway.url)
    with pytest.raises(error, match=f"{status}: told to"):
        link.post("/v1/chat/completions", {"messages": []})
    link.close()


def test_the_link_keeps_its_connection_and_survives_the_server_closing_it(gateway: FakeServer) -> None:
    link = Link(gateway.url, "alw-1")
    assert link.heartbeat("at-1", key="alr-1") == 1.0
    (kept,) = link._idle
    assert link.heartbeat("at-1", key="alr-1") == 1.0
    assert link._idle == [kept]
    assert kept.sock is not None
    kept.sock.close()
    kept.sock = type(kept.sock)()  # a socket that is not connected, as after the server's close
    assert link.heartbeat("at-1", key="alr-1") == 1.0
    assert {seen.headers["authorization"] for seen in gateway.seen} == {"Bearer alr-1"}
    link.close()
