"""Calls of the real OpenAI SDK inside and outside of a rollout."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import openai
import pytest
from client_loopback import FakeServer, claim

from agent_lightning.client.config import ClientConfig
from agent_lightning.client.install import install
from agent_lightning.client.scope import outside
from agent_lightning.client.session import claimed
from agent_lightning.wire import protocol

pytestmark = pytest.mark.usefixtures("installed")
SECRET = "sk-provider-secret"


def sdk(provider: FakeServer, **settings: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{provider.url}/v1", api_key=SECRET, organization="org-1", project="p-1", **settings)


def async_sdk(provider: FakeServer, **settings: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key=SECRET, **settings)


def ask(client: openai.OpenAI, text: str) -> str:
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content or ""


async def ask_async(client: openai.AsyncOpenAI, text: str) -> str:
    messages: Any = [{"role": "user", "content": text}]
    answer = await client.chat.completions.create(model="gpt-x", messages=messages)
    return answer.choices[0].message.content or ""


def test_a_call_in_a_rollout_reaches_the_gateway_and_nothing_reaches_the_provider(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    with sdk(provider) as client, claimed(claim(), config=config) as record:
        assert ask(client, "hello") == "gateway: hello"
    assert provider.seen == []
    (call,) = gateway.calls
    assert call.path == "/v1/chat/completions"
    assert call.headers["authorization"] == "Bearer alr-1"
    assert call.headers["host"] == gateway.url.removeprefix("http://")
    assert 0 < int(call.headers[protocol.DEADLINE]) <= 30_000
    assert len(call.headers[protocol.PARENT_SPAN]) == 16
    assert len(call.headers[protocol.CALL_ID]) <= 64
    assert call.body == {"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}]}
    assert (record.calls_seen, record.calls_sent, record.last_call_id) == (1, 1, call.headers[protocol.CALL_ID])


def test_the_providers_secrets_never_reach_the_gateway(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    extra = {"x-api-key": SECRET, "api-key": SECRET, "Cookie": f"session={SECRET}"}
    with sdk(provider, default_headers=extra) as client, claimed(claim(), config=config):
        ask(client, "hello")
    (call,) = gateway.calls
    assert SECRET not in json.dumps(call.headers)
    assert not {"openai-organization", "openai-project"} & set(call.headers)


def test_a_call_outside_of_a_rollout_reaches_its_provider_without_a_trace_of_us(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    with sdk(provider) as client:
        assert ask(client, "before") == "provider: before"
        with claimed(claim(), config=config), outside():
            assert ask(client, "judge") == "provider: judge"
    assert gateway.calls == []
    for call in provider.calls:
        assert call.headers["authorization"] == f"Bearer {SECRET}"
        assert not [name for name in call.headers if name.startswith("x-lightning")]
        assert "alr-" not in json.dumps(call.headers)


def test_a_streamed_call_comes_back_chunk_by_chunk(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    with sdk(provider) as client, claimed(claim(), config=config):
        stream = client.chat.completions.create(
            model="gpt-x", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        texts = [chunk.choices[0].delta.content for chunk in stream]
    assert texts == ["gateway: ", "hi", None]
    assert gateway.calls[0].body["stream"] is True


def test_a_raw_response_shows_the_gateways_extra_fields(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    with sdk(provider) as client, claimed(claim(), config=config):
        raw = client.chat.completions.with_raw_response.create(
            model="gpt-x", messages=[{"role": "user", "content": "hi"}]
        )
        assert json.loads(raw.text)["choices"][0]["token_ids"] == [1, 2]
        assert raw.parse().choices[0].message.content == "gateway: hi"


async def test_the_async_sdk_is_routed_plain_and_streamed(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    async with async_sdk(provider) as client:
        with claimed(claim(), config=config):
            assert await ask_async(client, "a") == "gateway: a"
            stream = await client.chat.completions.create(
                model="gpt-x", messages=[{"role": "user", "content": "b"}], stream=True
            )
            texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert await ask_async(client, "c") == "provider: c"
    assert texts == ["gateway: ", "b", None]
    assert [len(gateway.calls), len(provider.calls)] == [2, 1]


def test_what_is_no_llm_call_goes_where_it_was_going(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    with sdk(provider) as client, claimed(claim(), config=config) as record:
        client.post("/threads/x/messages", body={"model": "m", "messages": []}, cast_to=object)
        client.post("/embeddings", body={"model": "m", "input": "x"}, cast_to=object)
        client.post("/batch/completions", body={"no": "model"}, cast_to=object)
    assert gateway.on("s") == []
    assert len(provider.seen) == 3
    assert record.calls_seen == 0


def test_retries_of_one_call_keep_its_id_and_its_body(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    gateway.script = [(503, {"Retry-After": "0.01"}, 0.0)] * 2
    with sdk(provider) as client, claimed(claim(), config=config) as record:
        assert ask(client, "a") == "gateway: a"
        assert ask(client, "a") == "gateway: a"
    ids = [call.headers[protocol.CALL_ID] for call in gateway.calls]
    assert len(ids) == 4
    assert ids[0] == ids[1] == ids[2] != ids[3], "a new call with the same body is a new call"
    assert (record.calls_sent, record.retries) == (2, 2)


def test_the_sdks_own_retry_is_the_same_call(gateway: FakeServer, provider: FakeServer, config: ClientConfig) -> None:
    headers = {protocol.RETRY_COUNT: "1"}
    messages: Any = [{"role": "user", "content": "a"}]
    with sdk(provider) as client, claimed(claim(), config=config) as record:
        ask(client, "a")
        client.chat.completions.create(model="gpt-x", messages=messages, extra_headers=headers)
        messages = [{"role": "user", "content": "other"}]
        client.chat.completions.create(model="gpt-x", messages=messages, extra_headers=headers)
    first, again, other = (call.headers[protocol.CALL_ID] for call in gateway.calls)
    assert first == again != other
    assert record.calls_sent == 2


def test_the_last_failure_is_not_multiplied_by_the_sdk(gateway: FakeServer, provider: FakeServer) -> None:
    config = ClientConfig(endpoint=gateway.url, retry_strategy="none")
    gateway.script = [(503, {}, 0.0)] * 5
    with sdk(provider) as client, claimed(claim(), config=config) as record:
        with pytest.raises(openai.InternalServerError, match="told to"):
            ask(client, "a")
        assert record.calls_sent == 1
    assert len(gateway.calls) == 1
    assert record.failures == 1


def test_a_dead_gateway_is_named_at_once_and_the_provider_is_not_asked(provider: FakeServer) -> None:
    config = ClientConfig(endpoint="http://127.0.0.1:9", retry_strategy="none")
    with (
        sdk(provider) as client,
        claimed(claim(), config=config),
        pytest.raises(openai.InternalServerError, match=r"training server at http://127.0.0.1:9 cannot be reached"),
    ):
        ask(client, "a")
    assert provider.seen == []


def test_a_step_that_takes_too_long_is_the_sdks_timeout_and_counts_once(
    gateway: FakeServer, provider: FakeServer
) -> None:
    config = ClientConfig(endpoint=gateway.url, max_step_timeout="100ms")
    gateway.script = [(504, {"x-should-retry": "false"}, 0.3)]
    with sdk(provider, max_retries=1) as client, claimed(claim(), config=config) as record:
        with pytest.raises(openai.APITimeoutError):
            ask(client, "a")
        assert ask(client, "b") == "gateway: b"
    assert gateway.calls[0].headers[protocol.DEADLINE] == "100", "the gateway measures it, from admission on"
    assert record.timeouts == 1
    assert len(gateway.calls) == 2, "the SDK's retry of an expired call is not sent"


def test_a_silent_gateway_is_left_when_the_rollout_is_over(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    gateway.script = [(200, {}, 1.5)]
    with sdk(provider, max_retries=0) as client, claimed(claim(deadline_seconds=0.2), config=config) as record:
        began = time.monotonic()
        with pytest.raises(openai.APITimeoutError):
            ask(client, "a")
        assert time.monotonic() - began < 1.0
    assert record.timeouts == 1


def test_a_rollouts_deadline_bounds_the_retries(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    gateway.script = [(503, {"Retry-After": "5"}, 0.0)]
    with sdk(provider) as client, claimed(claim(deadline_seconds=1), config=config):
        with pytest.raises(openai.InternalServerError):
            ask(client, "a")
        assert len(gateway.calls) == 1


async def test_eight_rollouts_at_once_do_not_mix(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    async def rollout(client: openai.AsyncOpenAI, number: int) -> int:
        with claimed(claim(number), config=config) as record:
            for turn in range(5):
                await asyncio.gather(*(ask_async(client, f"{number}.{turn}.{part}") for part in range(2)))
            return record.calls_sent

    async with async_sdk(provider) as client:
        assert await asyncio.gather(*(rollout(client, n) for n in range(8))) == [10] * 8
    assert len({call.headers[protocol.CALL_ID] for call in gateway.calls}) == 80
    for call in gateway.calls:
        owner = call.body["messages"][0]["content"].split(".")[0]
        assert call.headers["authorization"] == f"Bearer alr-{owner}"


def test_threads_and_pools_begun_in_a_rollout_belong_to_it(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    with sdk(provider) as client, ThreadPoolExecutor(2) as pool:
        with claimed(claim(1), config=config):
            assert list(pool.map(lambda text: ask(client, text), ["a", "b"])) == ["gateway: a", "gateway: b"]
            thread = Thread(target=ask, args=(client, "c"))
            thread.start()
            thread.join()
        assert pool.submit(ask, client, "d").result() == "provider: d", "a pool's thread outlives the rollout"
        with claimed(claim(2), config=config):
            assert pool.submit(ask, client, "e").result() == "gateway: e"
    keys = {call.body["messages"][0]["content"]: call.headers["authorization"] for call in gateway.calls}
    assert keys == {text: f"Bearer alr-{n}" for text, n in {"a": 1, "b": 1, "c": 1, "e": 2}.items()}


async def test_run_in_executor_carries_the_rollout(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    loop = asyncio.get_running_loop()
    with sdk(provider) as client, claimed(claim(), config=config):
        assert await loop.run_in_executor(None, ask, client, "a") == "gateway: a"
        assert await asyncio.to_thread(ask, client, "b") == "gateway: b"


def test_a_worker_thread_older_than_the_rollout_falls_back_to_the_only_one(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    with sdk(provider) as client:
        pool = ThreadPoolExecutor(1)
        go = Event()

        def old_thread() -> str:
            go.wait(10)
            return ask(client, "a")

        future = pool.submit(old_thread)
        with claimed(claim(1), config=config):
            go.set()
            assert future.result(10) == "gateway: a"
        pool.shutdown()


def test_removing_the_patches_restores_the_libraries() -> None:
    import httpx
    import httpx2

    owners = (httpx.Client, httpx2.Client, httpx.AsyncClient, httpx2.AsyncClient)
    assert all(hasattr(owner.send, "__wrapped__") for owner in owners)
    second = install()
    second.remove()
    second.remove()
    assert all(hasattr(owner.send, "__wrapped__") for owner in owners), "the first user still needs them"
