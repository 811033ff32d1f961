"""Both HTTP libraries, other SDKs, and the edges of what is taken for an LLM call."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from client_loopback import FakeServer, claim

from agent_lightning.client import profiling
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.outbox import OUTBOX
from agent_lightning.client.session import claimed
from agent_lightning.wire import protocol

pytestmark = pytest.mark.usefixtures("installed")
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_both_libraries_are_routed_sync_and_async(
    library: Any, gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    url = f"{provider.url}/openai/deployments/d/chat/completions?api-version=1"
    with claimed(claim(), config=config):
        with library.Client(auth=("user", "password")) as client:
            assert client.post(url, json=BODY).json()["choices"][0]["message"]["content"] == "gateway: hi"
        async with library.AsyncClient(auth=("user", "password")) as client:
            assert (await client.post(url, json=BODY)).status_code == 200
    assert provider.seen == []
    assert [call.path for call in gateway.calls] == ["/v1/chat/completions"] * 2, "the provider's query is dropped"
    assert {call.headers["authorization"] for call in gateway.calls} == {"Bearer alr-1"}, "not the client's own auth"


def test_the_anthropic_sdk_keeps_its_dialect_and_loses_its_key(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    sdk = anthropic.Anthropic(base_url=provider.url, api_key="sk-ant-secret", max_retries=0)
    with sdk as client, claimed(claim(), config=config) as record:
        client.post("/v1/messages", body={**BODY, "max_tokens": 5}, cast_to=object)
    (call,) = gateway.on("/v1/messages")
    assert "sk-ant-secret" not in str(call.headers)
    assert call.headers["anthropic-version"]
    assert record.calls_sent == 1


def test_a_call_that_a_layer_above_has_routed_is_left_alone(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    with httpx2.Client() as client, claimed(claim(), config=config) as record:
        client.post(f"{provider.url}/v1/chat/completions", json=BODY, headers={protocol.CALL_ID: "call-above"})
    assert record.calls_sent == 0
    assert len(provider.calls) == 1


def test_a_body_that_is_still_a_stream_is_not_read(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    content = iter([b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'])
    with httpx2.Client() as client, claimed(claim(), config=config):
        headers = {"Content-Length": "63"}
        client.post(f"{provider.url}/v1/chat/completions", content=content, headers=headers)
    assert gateway.calls == []


def test_the_callers_own_request_stays_whole(gateway: FakeServer, provider: FakeServer, config: ClientConfig) -> None:
    with httpx2.Client(headers={"Authorization": "Bearer own"}) as client, claimed(claim(), config=config):
        request = client.build_request("POST", f"{provider.url}/v1/chat/completions", json=BODY)
        client.send(request)
    assert request.url.port == int(provider.url.rsplit(":", 1)[1])
    assert request.headers["authorization"] == "Bearer own"
    assert protocol.CALL_ID not in request.headers


def test_a_failure_of_our_own_leaves_the_call_alone(
    provider: FakeServer, config: ClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("agent_lightning.client.calls.plan", broken)
    with httpx2.Client() as client, claimed(claim(), config=config):
        assert client.post(f"{provider.url}/v1/chat/completions", json=BODY).status_code == 200
    assert "lost interception: " in profiling.table(OUTBOX.lost())


def test_a_library_that_is_imported_later_is_patched_then(gateway: FakeServer, provider: FakeServer) -> None:
    program = """
import sys
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.install import install
from agent_lightning.client.outbox import OUTBOX
from agent_lightning.client.session import claimed
installed = install()
assert "httpx2" not in sys.modules
import httpx2
claim = {"rollout_id": "ro", "attempt_id": "at", "mode": "train", "key": "alr-x"}
body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
with claimed(claim, config=ClientConfig(endpoint=sys.argv[1], profiling_mode=True)):
    httpx2.post(sys.argv[2] + "/v1/chat/completions", json=body).raise_for_status()
installed.remove()
assert not hasattr(httpx2.Client.send, "__wrapped__")
again = install()
assert hasattr(httpx2.Client.send, "__wrapped__")
"""
    subprocess.run([sys.executable, "-c", program, gateway.url, provider.url], check=True, timeout=60)
    assert len(gateway.calls) == 1
    assert provider.seen == []


def test_profiling_measures_each_stage(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "_measuring", True)
    monkeypatch.setattr(profiling, "_spent", {})
    with httpx2.Client() as client, claimed(claim(), config=config):
        client.post(f"{provider.url}/v1/chat/completions", json=BODY)
        assert OUTBOX.flush(5.0)
    table = profiling.table(OUTBOX.lost())
    assert all(stage in table for stage in ("interception", "queueing", "serialising", "upload"))
