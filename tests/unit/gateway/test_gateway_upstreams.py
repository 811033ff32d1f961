"""Components that are not trained: their own provider answers through the gateway, untouched and recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agent_lightning.errors import EngineBusy, SettingError
from agent_lightning.gateway import upstreams as room
from agent_lightning.gateway.upstreams import UpstreamConfig, Upstreams
from agent_lightning.records import CallStatus
from agent_lightning.server.serving import bind, serving
from agent_lightning.trajectory.trajectory import trained_calls
from gateway_rig import rig, until

ASKED: Any = {"model": "gpt-theirs", "messages": [{"role": "user", "content": "hello"}], "their_own_field": {"x": 1}}
PLAIN = {
    "id": "theirs-1", "object": "chat.completion", "created": 1, "model": "big", "service_tier": "odd",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "from afar"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}  # fmt: skip
REVIEWER = {"x-lightning-component": "team/reviewer"}


def chunk(content: str | None, finish: str | None = None) -> bytes:
    delta = {} if content is None else {"content": content}
    made = {"id": "s", "object": "chat.completion.chunk", "created": 1, "model": "big"}
    made["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps(made).encode() + b"\n\n"


STREAM = [chunk("from "), chunk("afar"), chunk(None, "stop"), b"data: [DONE]\n\n"]


@dataclass
class Provider:
    """A provider on a socket: says what `answers` hold, the last one again and again."""

    answers: list[tuple[int, Mapping[str, str], Sequence[bytes | float]]]  # a number is a wait in seconds
    requests: list[tuple[str, Mapping[str, str], Any]] = field(default_factory=list)
    looks: int = 0
    well: bool = True
    break_after: int | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            self.looks += 1
            await self._send(send, 200 if self.well else 503, {}, [b"{}"])
            return
        body, more = b"", True
        while more:
            came = await receive()
            body, more = body + came.get("body", b""), came.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((scope["path"], headers, json.loads(body)))
        status, theirs, chunks = self.answers[min(len(self.requests), len(self.answers)) - 1]
        await self._send(send, status, theirs, chunks)

    async def _send(self, send: Any, status: int, headers: Mapping[str, str], chunks: Sequence[bytes | float]) -> None:
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": named})
        for part in chunks:
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def plain(body: Any = PLAIN, status: int = 200, **headers: str) -> tuple[int, Mapping[str, str], Sequence[bytes]]:
    return status, {"content-type": "application/json", **headers}, [json.dumps(body).encode()]


def streamed(chunks: Sequence[bytes | float]) -> tuple[int, Mapping[str, str], Sequence[bytes | float]]:
    return 200, {"content-type": "text/event-stream"}, chunks


@asynccontextmanager
async def providers(*all_of_them: Provider) -> AsyncIterator[list[str]]:
    listeners = [bind("127.0.0.1", 0) for _ in all_of_them]
    servers = [serving(provider, listener) for provider, listener in zip(all_of_them, listeners, strict=True)]
    urls = [await server.__aenter__() for server in servers]
    try:
        yield urls
    finally:
        for server in servers:
            await server.__aexit__(None, None, None)


def served_by(*urls: str, **given: Any) -> Upstreams:
    config = UpstreamConfig(urls=urls, components=("review*",), **{"key_env": "THEIR_KEY", **given})
    return Upstreams({"big": config}, {"THEIR_KEY": "sk-theirs"})


async def test_a_providers_component_gets_its_answer_untouched_and_the_policy_the_others():
    provider = Provider([plain(**{"x-request-id": "req-7"})])
    async with (
        providers(provider) as (url,),
        rig(lambda request: "by the policy", upstreams=served_by(f"{url}/v1", model="big-one")) as here,
    ):
        claim = await here.claim()
        async with here.client(claim) as client:
            raw = await client.chat.completions.with_raw_response.create(**ASKED_SDK, extra_headers=REVIEWER)
            own = await client.chat.completions.create(
                model="m", messages=ASKED["messages"], extra_headers={"x-lightning-component": "team/writer"}
            )
        assert json.loads(raw.content) == PLAIN and raw.headers["x-request-id"] == "req-7"
        assert own.choices[0].message.content == "by the policy"
        ((path, headers, body),) = provider.requests
        assert path == "/v1/chat/completions" and body == {**ASKED, "model": "big-one"}
        assert headers["authorization"] == "Bearer sk-theirs"
        assert not any(name.startswith("x-lightning") for name in headers) and claim.key not in str(headers)
        theirs, policys = await here.store.calls(claim.rollout.id)
        assert (theirs.component, theirs.policy, theirs.status) == (
            "team/reviewer",
            "upstream big",
            CallStatus.COMPLETED,
        )
        assert json.loads(theirs.response["relayed"]["text"]) == PLAIN
        assert theirs.request == ASKED
        assert trained_calls([theirs, policys], "default") == [policys]


ASKED_SDK: Any = {
    "model": "gpt-theirs", "messages": ASKED["messages"], "extra_body": {"their_own_field": {"x": 1}},
}  # fmt: skip


async def test_a_stream_comes_chunk_by_chunk_and_ends_when_it_is_recorded():
    waits = asyncio.Event()
    provider = Provider([streamed([STREAM[0], 0.3, *STREAM[1:]])])
    async with providers(provider) as (url,), rig(lambda request: "", upstreams=served_by(f"{url}/v1")) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            stream = await client.chat.completions.create(**ASKED_SDK, stream=True, extra_headers=REVIEWER)
            said = []
            async for event in stream:
                said.append(event.choices[0].delta.content)
                if not waits.is_set():  # the first text is here while the provider still waits
                    waits.set()
                    (call,) = await here.store.calls(claim.rollout.id)
                    assert call.status is CallStatus.RUNNING
        assert said == ["from ", "afar", None]
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.status is CallStatus.COMPLETED
        assert call.response["relayed"]["text"].encode() == b"".join(STREAM)


async def test_anthropics_dialect_goes_to_a_provider_of_its_own():
    said = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-big", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": "hello from afar"}],
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }  # fmt: skip
    provider = Provider([plain(said)])
    async with providers(provider) as (url,), rig(lambda request: "", upstreams=served_by(url)) as here:
        claim = await here.claim()
        async with anthropic.AsyncAnthropic(
            base_url=here.url, api_key=claim.key, http_client=anthropic.DefaultAsyncHttpxClient(verify=False)
        ) as client:
            answer = await client.messages.create(
                model="claude", max_tokens=9, messages=ASKED["messages"], extra_headers=REVIEWER
            )
        assert answer.content[0].text == "hello from afar"
        ((path, headers, _),) = provider.requests
        assert path == "/v1/messages" and headers["x-api-key"] == "sk-theirs" and "authorization" not in headers
        assert headers["anthropic-version"]
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.dialect == "messages"


@pytest.mark.parametrize("answer", [plain(), streamed(STREAM)])
async def test_a_retry_of_a_completed_call_gets_the_same_bytes_and_the_provider_is_asked_once(answer: Any):
    provider = Provider([answer, plain(status=500)])
    async with providers(provider) as (url,), rig(lambda request: "", upstreams=served_by(f"{url}/v1")) as here:
        claim = await here.claim()
        headers = {**REVIEWER, "authorization": f"Bearer {claim.key}", "x-lightning-call-id": "c1"}
        async with httpx.AsyncClient(base_url=here.url) as client:
            answers = [await client.post("/v1/chat/completions", headers=headers, json=ASKED) for _ in range(2)]
            other = await client.post("/v1/chat/completions", headers=headers, json={**ASKED, "messages": []})
        first, again = answers
        assert (first.content, first.headers["content-type"]) == (again.content, again.headers["content-type"])
        assert first.status_code == again.status_code == 200
        assert len(provider.requests) == 1
        assert other.status_code == 409


async def test_what_the_provider_refuses_is_handed_on_and_a_retry_asks_anew():
    refusal = {"error": {"message": "slow down", "type": "rate_limit", "code": "their_code"}}
    provider = Provider([plain(refusal, status=429, **{"retry-after-ms": "1"}), plain()])
    async with providers(provider) as (url,), rig(lambda request: "", upstreams=served_by(f"{url}/v1")) as here:
        claim = await here.claim()
        async with here.client(claim) as client:
            with pytest.raises(openai.RateLimitError, match="slow down") as caught:
                await client.chat.completions.create(
                    **ASKED_SDK, extra_headers={**REVIEWER, "x-lightning-call-id": "c"}
                )
            assert caught.value.code == "their_code"
            (call,) = await here.store.calls(claim.rollout.id)
            assert call.status is CallStatus.BROKEN and "429" in (call.error or "")
            again = await client.chat.completions.create(
                **ASKED_SDK, extra_headers={**REVIEWER, "x-lightning-call-id": "c"}
            )
        assert again.choices[0].message.content == "from afar"
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.status is CallStatus.COMPLETED


async def test_a_client_that_leaves_ends_the_request_to_the_provider():
    provider = Provider([streamed([STREAM[0], 1.5, *STREAM[1:]])])
    upstreams = served_by("http://127.0.0.1:9/v1")
    async with providers(provider) as (url,), rig(lambda request: "", upstreams=upstreams) as here:
        endpoint = upstreams.of("reviewer").endpoints[0]
        endpoint.url = f"{url}/v1"
        claim = await here.claim()
        async with here.client(claim) as client:
            stream = await client.chat.completions.create(**ASKED_SDK, stream=True, extra_headers=REVIEWER)
            assert (await anext(aiter(stream))).choices[0].delta.content == "from "
            assert endpoint.running == 1
            await stream.close()
        await until(lambda: endpoint.running == 0)
        (call,) = await here.store.calls(claim.rollout.id)
        assert call.status is CallStatus.BROKEN


async def test_a_rollout_stays_at_one_address_and_new_ones_go_where_the_fewest_calls_run():
    first, second = (Provider([streamed([STREAM[0], 0.2, *STREAM[1:]])]) for _ in range(2))
    async with providers(first, second) as urls:
        upstreams = served_by(*(f"{url}/v1" for url in urls))
        async with rig(lambda request: "", upstreams=upstreams) as here:
            claims = [await here.claim() for _ in range(4)]

            async def three_calls(key: str) -> None:
                async with here.client(key) as client:
                    for _ in range(3):
                        stream = await client.chat.completions.create(**ASKED_SDK, stream=True, extra_headers=REVIEWER)
                        assert len([event async for event in stream]) == 3

            await asyncio.gather(*(three_calls(claim.key) for claim in claims))
    assert len(first.requests) == len(second.requests) == 6


async def test_an_address_that_fails_is_ejected_and_taken_back_when_it_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "PROBE_SECONDS", 0.05)
    ill, well = Provider([plain(status=503)] * room.FAILURES + [plain()], well=False), Provider([plain()])
    async with providers(ill, well) as urls:
        upstreams = served_by(*(f"{url}/v1" for url in urls))
        upstream = upstreams.of("reviewer")
        assert upstream is not None
        async with rig(lambda request: "", upstreams=upstreams) as here:
            claim = await here.claim()
            async with here.client(claim) as client:
                for _ in range(room.FAILURES):
                    with pytest.raises(openai.InternalServerError):
                        await client.chat.completions.create(**ASKED_SDK, extra_headers=REVIEWER)
                assert upstream.endpoints[0].ejected
                await client.chat.completions.create(**ASKED_SDK, extra_headers=REVIEWER)
                assert len(well.requests) == 1
                await until(lambda: ill.looks >= 2)
                assert upstream.endpoints[0].ejected
                ill.well = True
                await until(lambda: not upstream.endpoints[0].ejected)
                assert upstream.choose("another rollout") in upstream.endpoints


async def test_an_address_that_takes_no_connection_is_passed_over_and_none_is_a_retryable_error():
    closed = bind("127.0.0.1", 0)
    port = closed.getsockname()[1]
    closed.close()
    provider = Provider([plain()])
    async with providers(provider) as (url,):
        upstreams = served_by(f"http://127.0.0.1:{port}/v1", f"{url}/v1")
        async with rig(lambda request: "", upstreams=upstreams) as here, here.client(await here.claim()) as client:
            answer = await client.chat.completions.create(**ASKED_SDK, extra_headers=REVIEWER)
            assert answer.choices[0].message.content == "from afar"
    upstreams = served_by(f"http://127.0.0.1:{port}/v1")
    async with rig(lambda request: "", upstreams=upstreams) as here, here.client(await here.claim()) as client:
        with pytest.raises(openai.InternalServerError, match="cannot be reached") as caught:
            await client.chat.completions.create(**ASKED_SDK, extra_headers=REVIEWER)
        assert caught.value.response.headers["retry-after"] == "1"


async def test_the_key_of_an_ended_attempt_opens_no_provider():
    from agent_lightning.records import Outcome

    provider = Provider([plain()])
    async with providers(provider) as (url,), rig(lambda request: "", upstreams=served_by(f"{url}/v1")) as here:
        claim = await here.claim()
        await here.store.end_attempt(claim.attempt.id, Outcome.OK)
        async with here.client(claim) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(**ASKED_SDK, extra_headers=REVIEWER)
        assert caught.value.status_code == 410 and not provider.requests


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"urls": ()}, "urls and components"),
        ({"urls": ("api.example.com/v1",)}, "http://HOST/v1"),
        ({"timeout": 0.0}, "timeout"),
    ],
)
def test_an_upstream_that_cannot_be_is_refused(given: Any, said: str):
    with pytest.raises(SettingError, match=said):
        UpstreamConfig(**{"urls": ("https://api.example.com/v1",), "components": ("a",), **given})


def test_a_provider_without_its_key_in_the_environment_is_refused():
    config = UpstreamConfig(urls=("https://api.example.com/v1",), components=("a",), key_env="NOT_THERE")
    with pytest.raises(SettingError, match="NOT_THERE"):
        Upstreams({"big": config}, {})


def test_a_rollout_without_a_well_address_is_told_so():
    upstream = Upstreams({"big": UpstreamConfig(urls=("http://h/v1",), components=("*",))}, {}).of("any")
    assert upstream is not None
    upstream.endpoints[0].ejected = True
    with pytest.raises(EngineBusy, match="'big'"):
        upstream.choose("r")
