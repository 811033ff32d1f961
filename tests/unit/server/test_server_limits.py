"""Hostile and slow clients over a real socket: a clear refusal, no 5xx, and memory that stays flat."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import psutil
import pytest

from agent_lightning.records import Claim
from agent_lightning.server.front import Front
from agent_lightning.server.limits import MIB, Gate, Gates, Limits
from agent_lightning.server.state import ServerState
from agent_lightning.store.sqlite import SqliteStore
from server_rig import bearer, claimed, on_a_socket, rig_state, sent

LIMITS = Limits(head_seconds=0.3, body_seconds=0.3, write_seconds=0.3)


@dataclass
class Rig:
    state: ServerState
    where: tuple[str, int]
    claim: Claim
    http: httpx.AsyncClient


@pytest.fixture(params=[Limits()])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    store = await SqliteStore.open()
    state = rig_state(store, limits=request.param)
    async with on_a_socket(state) as where:
        claim = await claimed(store)
        base, headers = f"http://{where[0]}:{where[1]}", bearer(claim.key)
        async with httpx.AsyncClient(base_url=base, headers=headers, verify=False, timeout=30) as http:
            yield Rig(state, where, claim, http)
    await store.close()


async def is_well(rig: Rig) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert (await rig.http.post("/v1/chat/completions", json=body)).status_code == 200


def head(rig: Rig, *lines: str, path: str = "/v1/traces") -> bytes:
    own = f"Authorization: Bearer {rig.claim.key}"
    return "\r\n".join(
        (f"POST {path} HTTP/1.1", "Host: x", own, "Content-Type: application/json", *lines, "", "")
    ).encode()


# --- heads ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 101 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 2_000_000,  # a header that never ends
    ],
    ids=["long path", "long header", "many headers", "endless header"],
)
async def test_a_head_that_is_too_large_is_refused(rig: Rig, request_head: bytes):
    assert (await sent(rig.where, request_head)).startswith(b"HTTP/1.1 431")
    await is_well(rig)


@pytest.mark.parametrize("rig", [LIMITS], indirect=True)
@pytest.mark.parametrize(
    "chunks",
    [(), (b"GET /healthz HTTP/1.1\r\n", *[b"x: y\r\n"] * 10), (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /h")],
    ids=["silent", "drips", "second request"],
)
async def test_headers_that_do_not_come_end_the_connection(rig: Rig, chunks: tuple[bytes, ...]):
    began = time.monotonic()
    answer = await sent(rig.where, *chunks, pause=0.05)
    # who still writes when the connection is closed may not get to read why
    assert b"HTTP/1.1 408" in answer or (len(chunks) > 5 and not answer)
    assert time.monotonic() - began < 4


async def test_what_is_not_http_gets_400(rig: Rig):
    assert (await sent(rig.where, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")).startswith(b"HTTP/1.1 400")


# --- bodies -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rig", [LIMITS], indirect=True)
async def test_a_body_that_drips_is_given_up(rig: Rig):
    answer = await sent(rig.where, head(rig, "Content-Length: 1000"), b"{", b"{", pause=0.02)
    assert answer.startswith(b"HTTP/1.1 408") and b"connection: close" in answer
    assert rig.state.gates.spans.inside == 0


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/chat/completions", "/v1/messages", "/api/v1/claims"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_50_megabytes_are_refused_and_not_kept(rig: Rig, path: str, chunked: bool):
    piece = b"[" * MIB

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield piece

    length = {} if chunked else {"content-length": str(50 * MIB)}
    before = psutil.Process().memory_info().rss
    answer = await rig.http.post(path, content=pieces(), headers={"content-type": "application/json", **length})
    assert answer.status_code == 413
    assert "33554432 bytes" in answer.json()["error"]["message"]
    assert psutil.Process().memory_info().rss - before < 100 * MIB
    await is_well(rig)


async def test_bodies_together_have_a_limit(rig: Rig):
    front = Front(rig.state.gateway, Limits(bodies_bytes=100))  # type: ignore[arg-type]  # never reached
    front.hold(60)
    said = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"x" * 50, "more_body": False}

    async def send(message: dict[str, object]) -> None:
        said.append(message)

    await front({"type": "http", "path": "/", "headers": [(b"content-length", b"50")]}, receive, send)  # type: ignore[arg-type]
    assert said[0]["status"] == 429 and (b"retry-after", b"1") in said[0]["headers"]
    assert front.fullness == 0.6


@pytest.mark.parametrize("packed", [gzip.compress(b" " * 40 * MIB), gzip.compress(b" " * 20 * MIB) * 3])
async def test_a_gzip_bomb_is_refused_while_it_unpacks(rig: Rig, packed: bytes):
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = await rig.http.post("/v1/traces", content=packed, headers=headers)
    assert answer.status_code == 413
    assert len(packed) < MIB / 4


ODD = {
    "invalid UTF-8": b'{"worker": "\xff\xfe"}',
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 600 + b"1" + b"}" * 600,
    "NaN": b'{"worker": "w", "wait_seconds": NaN}',
    "NUL": b'{"worker": "a\\u0000b"}',
    "newline": b'{"worker": "a\\nb"}',
    "lone surrogate": b'{"worker": "\\ud800"}',
    "no object": b"[]",
    "null": b"null",
    "nothing": b"",
    "huge number": b'{"worker": "w", "wait_seconds": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD.keys())
async def test_odd_bodies_are_told_what_is_wrong(rig: Rig, body: bytes):
    paths = ("/api/v1/claims", "/api/v1/live", "/api/v1/rollouts", f"/api/v1/rollouts/{rig.claim.rollout.id}/rewards")
    headers = {"content-type": "application/json"}
    for path in (*paths, "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"):
        answer = await rig.http.post(path, content=body, headers=headers)
        assert answer.status_code == 400, (path, answer.text)
        assert answer.json()["error"]["message"], path
    assert (await rig.http.post("/v1/traces", content=body, headers=headers)).status_code < 500
    await is_well(rig)


async def test_a_wrong_content_type_is_no_failure_of_ours(rig: Rig):
    for kind in (
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "application/json; charset=\xff",
        "",
    ):
        for path in ("/api/v1/claims", "/v1/traces", "/v1/chat/completions"):
            answer = await rig.http.post(path, content=b"{}", headers={"content-type": kind.encode("latin-1")})
            assert answer.status_code in ((200, 415) if path == "/v1/traces" else (400, 415)), (kind, path)


VALUES = ['"NaN"', "NaN", "Infinity", "-Infinity", "1e999", "true", "null", "[]"]


@pytest.mark.parametrize("value", VALUES)
async def test_a_reward_that_is_no_finite_number_is_refused_everywhere(rig: Rig, value: str):
    reward = '{"rewards": [{"value": ' + value + "}]"
    headers = {"content-type": "application/json"}
    for path, body in (
        (f"/api/v1/rollouts/{rig.claim.rollout.id}/rewards", reward + "}"),
        (f"/api/v1/attempts/{rig.claim.attempt.id}/end", reward + ', "outcome": "ok"}'),
    ):
        answer = await rig.http.post(path, content=body, headers=headers)
        assert answer.status_code == (200 if value == "true" else 400), (path, answer.text)
        if value == "true":
            return  # a number to pydantic, as to Python


ODD_IDS = [
    "-1",
    "a/b",
    "a%2Fb",
    "..%2F..",
    "%00",
    "a%0Ab",
    "%ff%fe",
    "%ED%A0%80",
    "'; drop table rollouts",
    "a" * 5000,
    "%F0%9F%92%A9",
]


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_ids_that_nobody_has_are_not_found(rig: Rig, odd: str):
    for method, path in (
        ("GET", f"/api/v1/rollouts/{odd}"),
        ("GET", f"/api/v1/rollouts/{odd}/rewards"),
        ("POST", f"/api/v1/rollouts/{odd}/rewards"),
        ("POST", f"/api/v1/attempts/{odd}/heartbeat"),
        ("GET", f"/api/v1/runs/{odd}/events"),
        ("GET", f"/v1/responses/{odd}"),
    ):
        body = {"rewards": []} if method == "POST" else None
        answer = await rig.http.request(method, path, json=body)
        assert answer.status_code in (200, 400, 401, 404, 405), (path, answer.text)


async def test_an_id_with_a_slash_is_an_id(rig: Rig):
    made = await rig.http.post("/api/v1/live", json={"rollout_id": "live/1/rewards", "worker": "w"})
    headers = bearer(made.json()["key"])
    for path in ("live/1/rewards", "live%2F1%2Frewards"):
        answer = await rig.http.post(
            f"/api/v1/rollouts/{path}/rewards", json={"rewards": [{"value": 1}]}, headers=headers
        )
        assert answer.json()["stored"] == 1
    assert (await rig.http.get("/api/v1/rollouts/live%2F1%2Frewards/rewards")).json()["rewards"]


async def test_what_agents_return_is_kept_in_a_form_that_can_be_shown(rig: Rig):
    deep = "[" * 300 + "]" * 300
    odd = f'{{"outcome": "ok", "result": [NaN, "\\ud800", {deep}, 1e400, "\\u0000"], "detail": "\\udfff"}}'
    path = f"/api/v1/attempts/{rig.claim.attempt.id}/end"
    assert (await rig.http.post(path, content=odd, headers={"content-type": "application/json"})).status_code == 200
    shown = (await rig.http.get(f"/api/v1/rollouts/{rig.claim.rollout.id}")).json()["result"]
    assert shown[:2] == ["nan", "?"] and shown[3:] == ["inf", "\x00"]
    assert "nested too deeply" in json.dumps(shown[2])


# --- readers, and too many --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rig", [LIMITS], indirect=True)
async def test_a_client_that_never_reads_is_dropped(rig: Rig):
    events = [rig.state.store.add_event("run", "note", 0, {"text": "x" * MIB}) for _ in range(12)]
    await asyncio.gather(*events)
    _, writer = await asyncio.open_connection(*rig.where, limit=1024)
    writer.write(b"GET /api/v1/runs/run/events HTTP/1.1\r\nHost: x\r\n\r\n")
    transport = writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    own = writer.get_extra_info("sockname")[1]

    def held() -> bool:
        return any(
            c.raddr and c.raddr.port == own and c.status == "ESTABLISHED" for c in psutil.Process().net_connections()
        )

    async with asyncio.timeout(10):
        while not held():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.02)
        while held():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    transport.abort()
    await is_well(rig)


@pytest.mark.parametrize("rig", [Limits(connections=20)], indirect=True)
async def test_connections_beyond_the_limit_are_told_to_come_again(rig: Rig):
    await is_well(rig)
    held = [await asyncio.open_connection(*rig.where) for _ in range(25)]
    async with asyncio.timeout(5):
        last = await held[-1][0].read(1000)
    assert last.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in last
    for _, writer in held:
        writer.close()
    await asyncio.sleep(0.1)
    await is_well(rig)


async def test_a_full_gate_answers_429_with_retry_after():
    gates = Gates(claims=Gate("claims", 1), spans=Gate("uploads of spans", 0), messages=Gate("messages of workers", 0))
    store = await SqliteStore.open()
    state = rig_state(store, gates=gates)
    async with (
        on_a_socket(state) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", verify=False) as http,
    ):
        waiting = asyncio.create_task(http.post("/api/v1/claims", json={"worker": "w", "wait_seconds": 20}))
        async with asyncio.timeout(5):
            while not gates.claims.inside:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        claim = await claimed(store)
        own = bearer(claim.key)
        rewards = {"rewards": [{"value": 1.0}]}
        for path, body in (
            ("/api/v1/claims", {"worker": "w"}),
            ("/v1/traces", {}),
            (f"/api/v1/rollouts/{claim.rollout.id}/rewards", rewards),
        ):
            answer = await http.post(path, json=body, headers=own)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1"), path
            assert "try again in a moment" in answer.json()["error"]["message"]
        state.over.set()
        assert (await waiting).status_code == 410
    assert gates.claims.inside == 0
    await store.close()
