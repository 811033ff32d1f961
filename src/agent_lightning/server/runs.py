"""/api/v1: what a run is made of, for people and dashboards. Each route takes the read or the admin key."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from agent_lightning.records import Mode
from agent_lightning.server.answers import (
    EventsAnswer,
    MetricsAnswer,
    PoliciesAnswer,
    RewardListAnswer,
    RunsAnswer,
    TasksAnswer,
)
from agent_lightning.server.described import ERRORS
from agent_lightning.server.rollouts import key_of, state_of
from agent_lightning.server.state import ServerState
from agent_lightning.trainer.config import without_secrets


async def looking(request: Request) -> AsyncIterator[ServerState]:
    """The state, for who may look at it. Raises AccessDenied and ServerBusy."""
    state = state_of(request)
    state.keys.look(key_of(request))
    with state.gates.queries.passing():
        yield state


router = APIRouter(prefix="/api/v1", responses=ERRORS)
Looking = Annotated[ServerState, Depends(looking, scope="function")]
RunId = Annotated[str | None, Query(max_length=200, description="default: the run that is served")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Step = Annotated[int, Query(ge=0, le=2**31)]


@router.get("/runs", response_model=RunsAnswer)
async def runs(state: Looking) -> Mapping[str, Any]:
    """The runs of this store, with their settings; keys are left out."""
    return {"runs": [{**run, "settings": without_secrets(run["settings"])} for run in await state.store.runs()]}


@router.get("/runs/{run_id}/events", response_model=EventsAnswer)
async def events(run_id: str, state: Looking, kind: str | None = None) -> Mapping[str, Any]:
    """Metrics rows, evaluations and alerts, oldest first."""
    return {"events": [_finite(event) for event in await state.store.events(run_id, kind)]}


@router.get("/tasks", response_model=TasksAnswer)
async def tasks(
    state: Looking,
    run_id: RunId = None,
    mode: Mode | None = None,
    after: Annotated[str, Query(max_length=200, description="the `next` of the page before")] = "",
    limit: Limit = 100,
) -> Mapping[str, Any]:
    """Tasks that have rollouts, by id: the input, and how many rollouts there are and have finished."""
    found = await state.store.tasks(run_id or state.run_id, after=after, mode=mode, limit=limit)
    return {"tasks": found, "next": found[-1]["id"] if len(found) == limit else None}


@router.get("/policies", response_model=PoliciesAnswer)
async def policies(
    state: Looking, run_id: RunId = None, policy: Annotated[str | None, Query(max_length=200)] = None
) -> Mapping[str, Any]:
    """The versions of a run's policies, with the metrics of the updates that made them."""
    found = await state.store.versions(run_id or state.run_id, policy)
    return {"policies": [_finite(asdict(version)) for version in found]}


@router.get("/metrics", response_model=MetricsAnswer)
async def metrics(
    state: Looking,
    run_id: RunId = None,
    name: Annotated[list[str] | None, Query(description="only these metrics; may be repeated")] = None,
    first: Annotated[Step, Query(description="first step")] = 0,
    last: Annotated[Step, Query(description="last step")] = 2**31,
    limit: Annotated[int, Query(ge=1, le=10_000, description="newest rows that are given")] = 1000,
) -> Mapping[str, Any]:
    """The metrics of each training step, oldest first; docs of a metric are at /metrics."""
    rows = []
    for event in await state.store.events(run_id or state.run_id, "step"):
        figures = event["body"].get("figures") or {}
        values = {key: value for key, value in figures.items() if not name or key in name}
        if first <= event["step"] <= last and values:
            rows.append({"step": event["step"], "created_at": event["created_at"], "values": _finite(values)})
    return {"metrics": rows[-limit:]}


@router.get("/rollouts/{rollout_id:path}/rewards", response_model=RewardListAnswer)
async def rewards(rollout_id: str, state: Looking) -> Mapping[str, Any]:
    """The rewards of a rollout's newest attempt that count, oldest first."""
    found = (await state.store.rewards_of([rollout_id])).get(rollout_id, [])
    if not found:
        await state.store.rollout(rollout_id)  # raises NotFound
    return {"rewards": [asdict(reward) for reward in found]}


def _finite(value: Any) -> Any:
    """With None in place of what JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
