"""GET /api/v1/rollouts: what has ended, page by page."""

from __future__ import annotations

from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from agent_lightning.errors import AccessDenied
from agent_lightning.records import Outcome
from agent_lightning.server import rollouts
from agent_lightning.server.access import Keys
from agent_lightning.store.sqlite import SqliteStore
from store_cases import make_rollout


async def refused(request: object, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=401 if isinstance(error, AccessDenied) else 400)


@pytest.fixture
async def http():
    store = await SqliteStore.open()
    api = FastAPI()
    api.state.lightning = SimpleNamespace(store=store, keys=Keys(admin="ala-1", read="alo-1"), run_id="run")
    api.include_router(rollouts.router)
    api.add_exception_handler(AccessDenied, refused)
    api.add_exception_handler(RequestValidationError, refused)
    for number in range(5):
        mode = "train" if number % 2 else "val"
        await store.enqueue([make_rollout(f"r{number}", mode=mode), make_rollout(f"other{number}", run_id="other")])
    claims = [await store.claim("w", lease_seconds=60, run_id="run") for _ in range(5)]
    for claim in reversed(claims):
        assert claim is not None
        await store.end_attempt(claim.attempt.id, Outcome.OK)
    await store.cancel(["other0"])
    headers = {"Authorization": "Bearer alo-1"}
    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
        yield client
    await store.close()


async def page(http: httpx.AsyncClient, **asked: object) -> tuple[list[str], int]:
    answer = (await http.get("/api/v1/rollouts", params=asked)).json()
    return [rollout["id"] for rollout in answer["rollouts"]], answer["next"]


async def test_pages_follow_the_order_of_the_ends(http: httpx.AsyncClient) -> None:
    first, cursor = await page(http, limit=3)
    assert first == ["r4", "r3", "r2"]
    assert await page(http, limit=3, after=cursor) == (["r1", "r0"], 5)
    assert await page(http, after=5) == ([], 5)
    assert (await page(http, run="run", mode="train"))[0] == ["r3", "r1"]
    assert (await page(http, run="other", status="cancelled"))[0] == ["other0"]
    assert (await page(http, run="other", status="finished"))[0] == []


async def test_only_who_may_look_gets_a_page(http: httpx.AsyncClient) -> None:
    for key in ("alw-1", "alr-x.y", ""):
        answer = await http.get("/api/v1/rollouts", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 401
    assert (await http.get("/api/v1/rollouts", headers={"Authorization": "Bearer ala-1"})).status_code == 200


@pytest.mark.parametrize(
    "asked", [{"after": -1}, {"after": 2**63}, {"limit": 0}, {"limit": 501}, {"status": "queued"}, {"mode": "?"}]
)
async def test_a_page_out_of_range_is_refused(http: httpx.AsyncClient, asked: dict[str, object]) -> None:
    assert (await http.get("/api/v1/rollouts", params=asked)).status_code == 400
