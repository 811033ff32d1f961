"""Every route with every key: what each opens, and that an agent's key touches nothing of another rollout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import pytest

from agent_lightning.records import Claim, Outcome
from agent_lightning.server.access import Keys
from agent_lightning.server.app import ServerApp
from agent_lightning.server.described import GATEWAY_ROUTES
from agent_lightning.store.sqlite import SqliteStore
from server_rig import FIXED, bearer, claimed, rig_state

KEYS = ("none", "rollout", "other", "ended", "worker", "read", "admin")
OPEN = (200, 200, 200, 200, 200, 200, 200)
LOOK = (401, 401, 401, 401, 401, 200, 200)
STEER = (401, 401, 401, 401, 401, 401, 200)
CALL = (401, 200, 200, 410, 401, 401, 401)  # a call is the key's own: with another rollout's key it is that rollout's
# What is wanted: with no key; the key of the rollout that the request names; the key of another rollout; the key of an
# ended attempt for its own rollout; worker, read and admin key.
WANTED: dict[tuple[str, str], tuple[int, ...]] = {
    ("POST", "/api/v1/claims"): (401, 401, 401, 401, 204, 401, 204),
    ("POST", "/api/v1/live"): (401, 401, 401, 401, 200, 401, 200),
    ("POST", "/api/v1/attempts/{attempt_id}/heartbeat"): (401, 200, 401, 410, 401, 401, 401),
    ("POST", "/api/v1/attempts/{attempt_id}/end"): (401, 200, 401, 409, 401, 401, 401),
    ("POST", "/api/v1/rollouts/{rollout_id:path}/rewards"): (401, 200, 404, 200, 401, 401, 401),
    ("GET", "/api/v1/rollouts/{rollout_id:path}/rewards"): LOOK,
    ("POST", "/api/v1/rollouts"): STEER,
    ("GET", "/api/v1/rollouts"): LOOK,
    ("GET", "/api/v1/rollouts/{rollout_id:path}"): LOOK,
    ("GET", "/api/v1/runs"): LOOK,
    ("GET", "/api/v1/runs/{run_id}/events"): LOOK,
    ("GET", "/api/v1/tasks"): LOOK,
    ("GET", "/api/v1/policies"): LOOK,
    ("GET", "/api/v1/metrics"): LOOK,
    ("POST", "/v1/traces"): (401, 200, 200, 200, 200, 401, 200),  # another rollout's spans are counted, not stored
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/metrics"): LOOK,
    ("POST", "/v1/chat/completions"): CALL,
    ("POST", "/v1/completions"): CALL,
    ("POST", "/v1/responses"): CALL,
    ("POST", "/v1/messages"): CALL,
    ("POST", "/v1/messages/count_tokens"): CALL,
    ("GET", "/v1/responses/{response_id}"): (401, 200, 404, 410, 401, 401, 401),
    ("GET", "/v1/models"): (401, 200, 200, 200, 200, 200, 200),
}
MESSAGES = [{"role": "user", "content": "hi"}]


@dataclass
class Doors:
    store: SqliteStore
    app: ServerApp
    http: httpx.AsyncClient


@pytest.fixture
async def doors() -> AsyncIterator[Doors]:
    store = await SqliteStore.open()
    app = ServerApp(rig_state(store, Keys(**FIXED)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as http:  # type: ignore[arg-type]
        yield Doors(store, app, http)
    await store.close()


def routes_of(app: ServerApp) -> Iterator[tuple[str, str]]:
    yield from GATEWAY_ROUTES
    waiting = [("", route) for route in app.api.routes]
    while waiting:
        prefix, route = waiting.pop()
        context = getattr(route, "include_context", None)
        inside = getattr(getattr(route, "original_router", None), "routes", None)
        if inside is not None:
            waiting += [(prefix + context.prefix, one) for one in inside]  # type: ignore[union-attr]
            continue
        for method in route.methods - {"HEAD"}:  # type: ignore[union-attr]
            yield method, prefix + route.path  # type: ignore[union-attr]


def body_of(path: str, claim: Claim) -> dict[str, Any] | None:
    span = {
        "traceId": "a" * 32,
        "spanId": claim.attempt.id[:16],
        "name": "x",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": [{"key": "agent_lightning.rollout_id", "value": {"stringValue": claim.rollout.id}}],
    }
    return {
        "/api/v1/claims": {"worker": "w"},
        "/api/v1/live": {"rollout_id": f"live-{claim.rollout.id}", "worker": "w"},
        "/api/v1/attempts/{attempt_id}/heartbeat": {},
        "/api/v1/attempts/{attempt_id}/end": {"outcome": "timeout"},
        "/api/v1/rollouts/{rollout_id:path}/rewards": {"rewards": [{"value": 1.0}]},
        "/api/v1/rollouts": {"run_id": "run", "tasks": [{"id": claim.rollout.id, "input": 1}]},
        "/v1/traces": {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]},
        "/v1/chat/completions": {"model": "m", "messages": MESSAGES},
        "/v1/completions": {"model": "m", "prompt": "hi"},
        "/v1/responses": {"model": "m", "input": "hi"},
        "/v1/messages": {"model": "m", "max_tokens": 8, "messages": MESSAGES},
        "/v1/messages/count_tokens": {"model": "m", "messages": MESSAGES},
    }.get(path)


async def answer(doors: Doors, route: tuple[str, str], kind: str) -> tuple[httpx.Response, Claim]:
    """Ask for the route of one rollout, which has made a call, with a key of this kind."""
    method, template = route
    claim, other = await claimed(doors.store), await claimed(doors.store)
    call = await doors.http.post("/v1/responses", json={"model": "m", "input": "hi"}, headers=bearer(claim.key))
    if kind == "ended":
        await doors.store.end_attempt(claim.attempt.id, Outcome.OK)
    key = {"none": None, "rollout": claim.key, "ended": claim.key, "other": other.key, **FIXED}[kind]
    path = template.replace("{attempt_id}", claim.attempt.id).replace("{rollout_id:path}", claim.rollout.id)
    path = path.replace("{run_id}", "run").replace("{response_id}", call.json()["id"])
    before = await everything(doors.store, claim.rollout.id)
    body = body_of(template, claim) if method != "GET" else None
    found = await doors.http.request(method, path, json=body, headers=bearer(key))
    if kind == "other":
        assert await everything(doors.store, claim.rollout.id) == before, f"{route} let another rollout's key in"
    return found, claim


async def everything(store: SqliteStore, rollout_id: str) -> tuple[Any, ...]:
    """All that the store has of a rollout."""
    calls, rewards = await store.calls(rollout_id), await store.rewards_of([rollout_id])
    return asdict(await store.rollout(rollout_id)), calls, rewards, await store.spans(rollout_id)


async def test_every_route_is_in_the_table(doors: Doors):
    unknown = set(routes_of(doors.app)) - WANTED.keys()
    assert not unknown, f"say in WANTED which keys open {unknown}"
    assert len(set(routes_of(doors.app))) >= 25


@pytest.mark.parametrize("kind", KEYS)
async def test_each_key_opens_what_the_table_says(doors: Doors, kind: str):
    there = set(routes_of(doors.app))
    wrong = {}
    for route, wanted in WANTED.items():
        if route in there:
            found, _ = await answer(doors, route, kind)
            if found.status_code != wanted[KEYS.index(kind)]:
                wrong[route] = (found.status_code, found.text[:200])
    assert not wrong


async def test_spans_of_another_rollout_are_refused_and_counted(doors: Doors):
    for kind, rejected in (("other", "1"), ("rollout", None), ("worker", None)):
        found, claim = await answer(doors, ("POST", "/v1/traces"), kind)
        assert found.json().get("partialSuccess", {}).get("rejectedSpans") == rejected
        assert len(await doors.store.spans(claim.rollout.id)) == (0 if rejected else 1)


async def test_an_agent_cannot_overwrite_the_span_of_another_rollout_by_its_ids(doors: Doors):
    mine, other = await claimed(doors.store), await claimed(doors.store)
    body = body_of("/v1/traces", mine)
    assert (await doors.http.post("/v1/traces", json=body, headers=bearer(mine.key))).json() == {}
    [span] = body["resourceSpans"][0]["scopeSpans"][0]["spans"]  # type: ignore[index]
    span["attributes"], span["name"] = [], "forged"  # without a name of its own it is the key's
    told = (await doors.http.post("/v1/traces", json=body, headers=bearer(other.key))).json()["partialSuccess"]
    assert told["rejectedSpans"] == "1" and "ids of another rollout" in told["errorMessage"]
    assert [span.name for span in await doors.store.spans(mine.rollout.id)] == ["x"]
    assert await doors.store.spans(other.rollout.id) == []


async def test_an_agent_cannot_take_the_id_of_another_rollouts_reward(doors: Doors):
    mine, other = await claimed(doors.store), await claimed(doors.store)
    body = {"rewards": [{"id": "same", "value": 1.0}]}
    for claim, status in ((mine, 200), (other, 409), (mine, 200)):
        path = f"/api/v1/rollouts/{claim.rollout.id}/rewards"
        assert (await doors.http.post(path, json=body, headers=bearer(claim.key))).status_code == status
    found = await doors.store.rewards_of([mine.rollout.id, other.rollout.id])
    assert {name: len(rewards) for name, rewards in found.items() if rewards} == {mine.rollout.id: 1}


async def test_what_a_key_does_not_open_is_told_without_saying_whose_key_it_is(doors: Doors):
    told = set()
    for key in ("alw-2", "alr-nobody.secret", "x", "ala-1x"):
        answer = await doors.http.get("/api/v1/runs", headers=bearer(key))
        told.add((answer.status_code, answer.json()["error"]["message"]))
    assert told == {(401, "this needs the read or the admin key")}
