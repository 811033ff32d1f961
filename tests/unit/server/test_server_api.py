"""The API over HTTP: claims, ends, rewards, spans; one key opens one door."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from agent_lightning.records import Rollout, Task
from agent_lightning.server import state
from agent_lightning.server.access import Keys
from agent_lightning.server.app import make_app
from agent_lightning.server.state import ServerState
from agent_lightning.store.sqlite import SqliteStore
from server_rig import rig_state


@dataclass
class Rig:
    store: SqliteStore
    state: ServerState
    http: httpx.AsyncClient

    async def queue(self, *names: str) -> None:
        await self.store.enqueue(
            [
                Rollout(id=name, run_id="run", task=Task(id=name, input="?"), mode="train", group_id="g")
                for name in names
            ]
        )

    async def claim(self, **headers: str) -> httpx.Response:
        return await self.http.post("/api/v1/claims", json={"worker": "w"}, headers=headers)

    async def claimed(self, name: str) -> tuple[dict, dict[str, str]]:
        await self.queue(name)
        claim = (await self.claim()).json()
        return claim, {"Authorization": f"Bearer {claim['key']}"}


@pytest.fixture(params=[Keys()])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    store = await SqliteStore.open()
    state = rig_state(store, request.param)
    transport = httpx.ASGITransport(app=make_app(state))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield Rig(store, state, http)
    await store.close()


async def chat(rig: Rig, headers: dict[str, str]) -> httpx.Response:
    body = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
    return await rig.http.post("/v1/chat/completions", json=body, headers=headers)


REWARD = {"id": "r1", "name": "reward", "value": 0.5, "target": "rollout", "target_id": "", "source": "agent"}


async def test_a_rollout_is_claimed_run_and_ended_once(rig: Rig):
    claim, headers = await rig.claimed("a")
    assert (await chat(rig, headers)).status_code == 200
    path = f"/api/v1/attempts/{claim['attempt_id']}/end"
    ended = {"outcome": "ok", "rewards": [REWARD]}
    assert (await rig.http.post(path, json=ended, headers=headers)).json() == {"status": "finished", "outcome": "ok"}
    assert (await rig.http.post(path, json=ended, headers=headers)).status_code == 200
    different = await rig.http.post(path, json={"outcome": "timeout"}, headers=headers)
    assert different.status_code == 409
    assert (await rig.claim()).status_code == 204


async def test_calls_end_with_the_attempt(rig: Rig):
    claim, headers = await rig.claimed("a")
    await rig.http.post(f"/api/v1/attempts/{claim['attempt_id']}/end", json={"outcome": "timeout"}, headers=headers)
    late = await chat(rig, headers)
    assert late.status_code == 410
    assert late.headers["x-should-retry"] == "false"


async def test_a_rollout_that_ends_well_without_a_reward_is_named_so(rig: Rig):
    claim, headers = await rig.claimed("a")
    answer = await rig.http.post(f"/api/v1/attempts/{claim['attempt_id']}/end", json={"outcome": "ok"}, headers=headers)
    assert answer.json()["outcome"] == "no_reward"


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"good"', "null"])
async def test_a_reward_that_is_no_finite_number_is_refused(rig: Rig, value: str):
    _, headers = await rig.claimed("a")
    body = '{"rewards": [{"value": ' + value + "}]}"
    answer = await rig.http.post(
        "/api/v1/rollouts/a/rewards", content=body, headers={**headers, "content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert "value" in answer.json()["error"]["message"]


async def test_a_rollouts_key_opens_nothing_of_another(rig: Rig):
    claim, own = await rig.claimed("a")
    other, _ = await rig.claimed("b")
    for path, body in (
        (f"/api/v1/attempts/{other['attempt_id']}/heartbeat", {}),
        (f"/api/v1/attempts/{other['attempt_id']}/end", {"outcome": "ok"}),
        ("/api/v1/rollouts/b/rewards", {"rewards": [REWARD]}),
    ):
        answer = await rig.http.post(path, json=body, headers=own)
        assert answer.status_code in (401, 404), path
    assert (await rig.store.rewards_of(["b"])).get("b", []) == []
    assert claim["attempt_id"] != other["attempt_id"]


@pytest.mark.parametrize("rig", [Keys(worker="alw-1", admin="ala-1", read="alo-1")], indirect=True)
async def test_with_keys_each_door_needs_its_own(rig: Rig):
    await rig.queue("a")
    assert (await rig.claim()).status_code == 401
    claim = (await rig.claim(Authorization="Bearer alw-1")).json()
    rollout = {"Authorization": f"Bearer {claim['key']}"}
    doors = [
        ("POST", "/api/v1/claims", {"worker": "w"}),
        ("POST", "/api/v1/live", {"rollout_id": "x", "worker": "w"}),
        ("POST", "/api/v1/rollouts", {"run_id": "run", "tasks": [{"input": 1}]}),
        ("GET", "/api/v1/rollouts/a", None),
        ("GET", "/api/v1/runs", None),
        ("GET", "/api/v1/runs/run/events", None),
        ("GET", "/metrics", None),
    ]
    for method, path, body in doors:
        assert (await rig.http.request(method, path, json=body, headers=rollout)).status_code == 401, path
        assert (await rig.http.request(method, path, json=body)).status_code == 401, path
        admin = await rig.http.request(method, path, json=body, headers={"Authorization": "Bearer ala-1"})
        assert admin.status_code in (200, 204), path
    reader = {"Authorization": "Bearer alo-1"}
    assert (await rig.http.get("/api/v1/runs", headers=reader)).status_code == 200
    assert (await rig.http.post("/api/v1/claims", json={"worker": "w"}, headers=reader)).status_code == 401
    assert (await chat(rig, {"Authorization": "Bearer alw-1"})).status_code == 401


async def test_a_claim_brings_the_servers_settings_for_agents(rig: Rig):
    rig.state.client = {"component": ["solver"], "max_step_timeout": 9.0, "retry_strategy": "none"}
    claim, _ = await rig.claimed("a")
    assert (claim["component"], claim["max_step_timeout"], claim["retry_strategy"]) == (["solver"], 9.0, "none")


async def test_claims_end_when_the_run_is_over(rig: Rig):
    waiting = asyncio.create_task(rig.http.post("/api/v1/claims", json={"worker": "w", "wait_seconds": 30}))
    await asyncio.sleep(0.05)
    rig.state.over.set()
    assert (await asyncio.wait_for(waiting, 5)).status_code == 410
    assert (await rig.claim()).status_code == 410


async def test_spans_are_taken_and_those_of_other_rollouts_are_not(rig: Rig):
    claim, headers = await rig.claimed("a")

    def span(number: int, rollout: str) -> dict:
        attribute = {"key": "agent_lightning.rollout_id", "value": {"stringValue": rollout}}
        return {
            "traceId": "a" * 32, "spanId": f"{number:016x}", "name": "x", "startTimeUnixNano": "1", "endTimeUnixNano": "2",
            "attributes": [attribute],
        }  # fmt: skip

    spans = [span(1, "a"), span(2, "b"), {"broken": True}]
    body = gzip.compress(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode())
    sent = {**headers, "content-encoding": "gzip", "content-type": "application/json"}
    answer = await rig.http.post("/v1/traces", content=body, headers=sent)
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "2"
    assert [found.span_id for found in await rig.store.spans(claim["rollout_id"])] == [f"{1:016x}"]


async def test_what_clients_lost_is_counted_once_a_process_and_shown(rig: Rig):
    _, headers = await rig.claimed("a")

    async def tell(process: str, **lost: int) -> None:
        told = [{"key": "service.instance.id", "value": {"stringValue": process}}]
        told += [{"key": f"agent_lightning.lost.{kind}", "value": {"intValue": str(n)}} for kind, n in lost.items()]
        body = {"resourceSpans": [{"resource": {"attributes": told}, "scopeSpans": []}]}
        assert (await rig.http.post("/v1/traces", json=body, headers=headers)).status_code == 200

    await tell("one", span=3)
    await tell("one", span=4, reward=1)
    await tell("two", span=2)
    await tell("one", span=4, reward=1)
    assert rig.state.lost.by_kind() == {"span": 6, "reward": 1}
    shown = (await rig.http.get("/metrics")).text
    assert 'gateway_calls_total{kind="quarantined"} 0.0' in shown
    assert 'client_lost_total{kind="span"} 6.0' in shown and 'client_lost_total{kind="reward"} 1.0' in shown


async def test_a_malformed_resource_is_no_loss(rig: Rig):
    _, headers = await rig.claimed("a")
    for resource in (
        7,
        {"attributes": [3, {"key": 5}, {"key": "agent_lightning.lost.span", "value": {"boolValue": True}}]},
    ):
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": []}]}
        assert (await rig.http.post("/v1/traces", json=body, headers=headers)).status_code == 200
    assert rig.state.lost.by_kind() == {}


def test_processes_unheard_for_longest_keep_their_sum(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(state, "MOST_CLIENTS", 2)
    losses = state.Losses()
    for number in range(5):
        losses.hear({(f"p{number}", "span"): 2})
    assert losses.by_kind() == {"span": 10}
    assert len(losses._told) == 2


async def test_a_gzip_bomb_is_refused(rig: Rig):
    _, headers = await rig.claimed("a")
    bomb = gzip.compress(b" " * (40 * 1024 * 1024))
    answer = await rig.http.post("/v1/traces", content=bomb, headers={**headers, "content-encoding": "gzip"})
    assert answer.status_code == 413


async def test_health_says_what_runs(rig: Rig):
    assert (await rig.http.get("/healthz")).json()["run"] == "run"
    assert (await rig.http.get("/readyz")).json()["status"] == "ready"
    assert "agent_step_timeout_rate" in (await rig.http.get("/metrics")).text
