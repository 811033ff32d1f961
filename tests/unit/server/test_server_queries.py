"""What people and dashboards ask: tasks, policies, metrics, rewards, readiness, load; and which run is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from agent_lightning.records import Outcome, PolicyVersion, Reward, Rollout, Task
from agent_lightning.server import app
from agent_lightning.server.state import ServerState
from agent_lightning.store.sqlite import SqliteStore
from server_rig import bearer, claimed, rig_state


@dataclass
class Rig:
    store: SqliteStore
    state: ServerState
    http: httpx.AsyncClient

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    store = await SqliteStore.open()
    state = rig_state(store, capacity=2)
    transport = httpx.ASGITransport(app=app.make_app(state))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield Rig(store, state, http)
    await store.close()


async def test_tasks_come_in_pages_with_what_became_of_their_rollouts(rig: Rig):
    made = [
        Rollout(id=f"{task}-{sibling}", run_id="run", task=Task(id=task, input=f"{task}?"), mode=mode, group_id=task)
        for task, mode in (("c", "train"), ("a", "train"), ("b", "val"))
        for sibling in range(2)
    ]
    await rig.store.enqueue(made)
    claim = await rig.store.claim("w", lease_seconds=60)
    assert claim is not None
    await rig.store.end_attempt(claim.attempt.id, Outcome.OK)
    first = await rig.get("/api/v1/tasks", limit=2)
    assert [task["id"] for task in first["tasks"]] == ["a", "b"] and first["next"] == "b"
    rest = await rig.get("/api/v1/tasks", limit=2, after=first["next"])
    expected = {"id": "c", "mode": "train", "input": "c?", "meta": {}, "rollouts": 2, "finished": 1}
    assert rest == {"tasks": [expected], "next": None}
    assert [task["id"] for task in (await rig.get("/api/v1/tasks", mode="val"))["tasks"]] == ["b"]
    assert (await rig.get("/api/v1/tasks", run_id="another"))["tasks"] == []


async def test_policies_are_versions_with_their_metrics(rig: Rig):
    for version in (0, 1):
        await rig.store.add_version(
            PolicyVersion(
                run_id="run",
                policy="default",
                version=version,
                parent=None,
                checkpoint=None,
                metrics={"learner.kl": 0.5},
            )
        )
    found = (await rig.get("/api/v1/policies"))["policies"]
    assert [(row["version"], row["metrics"]) for row in found] == [(0, {"learner.kl": 0.5}), (1, {"learner.kl": 0.5})]
    assert (await rig.get("/api/v1/policies", policy="other"))["policies"] == []


async def test_metrics_are_rows_by_step_with_filters(rig: Rig):
    for step in range(1, 6):
        figures = {"reward.mean": step / 10, "learner.kl": float("nan")}
        await rig.store.add_event("run", "step", step, {"version": step, "figures": figures})
    await rig.store.add_event("run", "alert", 3, {"text": "no metrics"})
    assert len((await rig.get("/api/v1/metrics"))["metrics"]) == 5
    rows = (await rig.get("/api/v1/metrics", first=2, last=4, name="reward.mean"))["metrics"]
    assert [(row["step"], row["values"]) for row in rows] == [(step, {"reward.mean": step / 10}) for step in (2, 3, 4)]
    [last] = (await rig.get("/api/v1/metrics", limit=1))["metrics"]
    assert last["values"] == {"reward.mean": 0.5, "learner.kl": None}, "JSON has no NaN"
    assert (await rig.get("/api/v1/metrics", name=["nothing"]))["metrics"] == []
    wrong = await rig.http.get("/api/v1/metrics", params={"limit": 0})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "query.limit"


async def test_rewards_of_a_rollout_are_listed(rig: Rig):
    claim = await claimed(rig.store, "a")
    assert (await rig.get("/api/v1/rollouts/a/rewards"))["rewards"] == []
    await rig.store.add_reward(Reward(id="r", rollout_id="a", attempt_id=claim.attempt.id, name="part", value=0.5))
    [reward] = (await rig.get("/api/v1/rollouts/a/rewards"))["rewards"]
    assert (reward["id"], reward["name"], reward["value"], reward["stale"]) == ("r", "part", 0.5, False)
    assert (await rig.http.get("/api/v1/rollouts/b/rewards")).status_code == 404


async def test_readiness_says_why_not(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    async def reasons() -> list[str]:
        answer = await rig.http.get("/readyz")
        assert (answer.status_code == 200) == (answer.json()["status"] == "ready") == (not answer.json()["reasons"])
        return answer.json()["reasons"]

    assert await reasons() == []
    async with rig.state.gateway.hold.changing("new weights are put in place", drain_seconds=1):
        assert await reasons() == ["calls are held, because new weights are put in place"]

    async def never() -> list[Any]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(app, "STORE_SECONDS", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "runs", never)
        assert await reasons() == ["the store did not answer within 0.05 s"]
    rig.state.over.set()
    assert await reasons() == ["the run is over: nothing will be queued any more"]
    await rig.store.close()
    assert "the store cannot be read: the store is closed" in (await reasons())[1]


async def test_clients_are_told_how_busy_the_server_is(rig: Rig):
    async def load() -> float:
        live = await rig.http.post("/api/v1/live", json={"rollout_id": f"l{next(names)}", "worker": "w"})
        return float(live.headers["x-lightning-load"])

    names = iter(range(10))
    claim = await claimed(rig.store)
    assert await load() == 0.0
    engine: Any = rig.state.gateway._parts.engine
    engine.gate = asyncio.Event()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    calls = []
    for wanted in (0.5, 1.0, 1.0):
        calls.append(asyncio.create_task(rig.http.post("/v1/chat/completions", json=body, headers=bearer(claim.key))))
        async with asyncio.timeout(5):
            while rig.state.gateway.in_flight < len(calls):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await load() == wanted
    engine.gate.set()
    await asyncio.gather(*calls)
    assert (await rig.get("/readyz"))["load"] == 0.0


async def test_another_run_is_not_served_here(rig: Rig):
    """Not even when its rollouts are in the same database."""
    foreign = Rollout(id="x", run_id="another", task=Task(id="x", input="?"), mode="train", group_id="x")
    await rig.store.enqueue([foreign])
    assert (await rig.http.post("/api/v1/claims", json={"worker": "w"})).status_code == 204
    for path, body in (
        ("/api/v1/claims", {"worker": "w", "run_id": "another"}),
        ("/api/v1/rollouts", {"run_id": "another", "tasks": [{"input": 1}]}),
    ):
        answer = await rig.http.post(path, json=body)
        assert answer.status_code == 409
        assert "this server serves run 'run', not 'another'" in answer.json()["error"]["message"]


async def test_an_unknown_path_is_told_in_our_form(rig: Rig):
    for method, path, status in (("GET", "/nothing", 404), ("DELETE", "/api/v1/runs", 405)):
        answer = await rig.http.request(method, path)
        assert answer.status_code == status
        assert path in answer.json()["error"]["message"]
