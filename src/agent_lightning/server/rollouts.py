"""/api/v1: claims, attempts, rewards, rollouts. Workers and agents speak to these."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from agent_lightning.errors import Fenced, NotFound
from agent_lightning.records import Mode, Outcome, Rollout, RolloutStatus, Task
from agent_lightning.server.access import attempt_of, rollout_access
from agent_lightning.server.answers import (
    ClaimAnswer,
    EndAnswer,
    LeaseAnswer,
    QueueAnswer,
    RewardsAnswer,
    RolloutAnswer,
)
from agent_lightning.server.bodies import ClaimBody, EndBody, LiveBody, QueueBody, RewardsBody, claim_json
from agent_lightning.server.described import ERRORS
from agent_lightning.server.keeping import keep_rewards
from agent_lightning.server.state import ServerState
from agent_lightning.server.values import shown_json

router = APIRouter(prefix="/api/v1", responses=ERRORS)
_NOTHING = {"description": "nothing to do yet", "model": None}


def state_of(request: Request) -> ServerState:
    return request.app.state.lightning


def key_of(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


@router.post("/claims", response_model=None, responses={200: {"model": ClaimAnswer}, 204: _NOTHING})
async def claim(body: ClaimBody, request: Request) -> Response | dict[str, Any]:
    """The next queued rollout for this worker; 204 when there is none within `wait_seconds`; 410 when all is done."""
    state = state_of(request)
    state.keys.work(key_of(request))
    run_id = state.own_run(body.run_id)
    with state.gates.claims.passing():
        return await _claimed(state, body, run_id)


async def _claimed(state: ServerState, body: ClaimBody, run_id: str) -> Response | dict[str, Any]:
    if state.over.is_set():
        raise Fenced("the run is over: nothing will be queued any more")
    claiming = asyncio.ensure_future(
        state.store.claim(
            body.worker,
            lease_seconds=state.lease_seconds,
            wait_seconds=body.wait_seconds,
            run_id=run_id,
        )
    )
    over = asyncio.ensure_future(state.over.wait())
    await asyncio.wait({claiming, over}, return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    if not claiming.done():
        claiming.cancel()
        raise Fenced("the run is over: nothing will be queued any more")
    claimed = claiming.result()
    return Response(status_code=204) if claimed is None else claim_json(claimed, state.client)


@router.post("/live", response_model=ClaimAnswer)
async def live(body: LiveBody, request: Request) -> dict[str, Any]:
    """Begin a rollout that nobody queued: a request of production traffic that is recorded."""
    state = state_of(request)
    state.keys.work(key_of(request))
    task = Task(id=body.rollout_id, input=body.input)
    rollout = Rollout(
        id=body.rollout_id,
        run_id=state.run_id,
        task=task,
        mode="live",
        group_id=body.rollout_id,
        max_attempts=1,
        deadline_seconds=state.rollout_deadline,
    )
    # Nobody renews a live rollout's lease: it lives as long as an attempt may.
    with state.gates.claims.passing():
        claimed = await state.store.start_live(rollout, body.worker, lease_seconds=state.rollout_deadline)
    return claim_json(claimed, state.client)


@router.post("/attempts/{attempt_id}/heartbeat", response_model=LeaseAnswer)
async def heartbeat(attempt_id: str, request: Request) -> dict[str, Any]:
    state = state_of(request)
    await attempt_of(state.store, key_of(request), attempt_id)
    with state.gates.messages.passing():
        return {"lease_until": await state.store.heartbeat(attempt_id, lease_seconds=state.lease_seconds)}


@router.post("/attempts/{attempt_id}/end", response_model=EndAnswer)
async def end(attempt_id: str, body: EndBody, request: Request) -> dict[str, Any]:
    """End the attempt. Rewards in the same message are stored first, so that none comes too late."""
    state = state_of(request)
    access = await attempt_of(state.store, key_of(request), attempt_id)
    await keep_rewards(state, access, body.rewards)
    outcome = Outcome(body.outcome)
    if outcome is Outcome.OK and access.rollout.mode != "live":
        outcome = await _checked(state, access.rollout.id)
    rollout = await state.store.end_attempt(attempt_id, outcome, detail=body.detail, result=body.result)
    state.gateway.forget(attempt_id)
    return {"status": str(rollout.status), "outcome": str(rollout.outcome) if rollout.outcome else None}


async def _checked(state: ServerState, rollout_id: str) -> Outcome:
    """A rollout that ended well without any reward is named so."""
    rewards = await state.store.rewards_of([rollout_id])
    return Outcome.OK if rewards.get(rollout_id) else Outcome.NO_REWARD


@router.post("/rollouts/{rollout_id:path}/rewards", response_model=RewardsAnswer)
async def rewards(rollout_id: str, body: RewardsBody, request: Request) -> dict[str, Any]:
    state = state_of(request)
    access = await rollout_access(state.store, key_of(request))
    if access.rollout.id != rollout_id:
        raise NotFound(f"the key opens the rewards of {access.rollout.id}, not of {rollout_id}")
    stored = await keep_rewards(state, access, body.rewards)
    return {"stored": len(stored), "stale": sum(reward.stale for reward in stored)}


@router.post("/rollouts", response_model=QueueAnswer)
async def queue(body: QueueBody, request: Request) -> Mapping[str, Any]:
    """Queue one rollout a task; the same id again changes nothing."""
    state = state_of(request)
    state.keys.steer(key_of(request))
    run_id = state.own_run(body.run_id)
    made = []
    for place, item in enumerate(body.tasks):
        task = Task(id=item.id or f"task-{place:04d}", input=item.input, meta=item.meta)
        rollout_id = f"{run_id}.{body.mode}.{task.id}"
        made.append(
            Rollout(
                id=rollout_id,
                run_id=run_id,
                task=task,
                mode=body.mode,
                group_id=rollout_id,
                deadline_seconds=state.rollout_deadline,
            )
        )
    return {"queued": await state.store.enqueue(made), "ids": [rollout.id for rollout in made]}


@router.get("/rollouts")
async def ended(
    request: Request,
    run: str | None = None,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    status: Literal["finished", "cancelled"] | None = None,
    mode: Mode | None = None,
) -> Mapping[str, Any]:
    """Rollouts that have ended, in the order in which they ended. `after` is the `next` of the page before: none is
    skipped and none comes twice while others end."""
    state = state_of(request)
    state.keys.look(key_of(request))
    wanted = None if status is None else RolloutStatus(status)
    page = await state.store.page(run or state.run_id, after=after, limit=limit, status=wanted, mode=mode)
    return {"rollouts": [asdict(rollout) for rollout in page.rollouts], "next": page.next}


@router.get("/rollouts/{rollout_id:path}")
async def one(rollout_id: str, request: Request) -> RolloutAnswer:
    state = state_of(request)
    state.keys.look(key_of(request))
    rollout = await state.store.rollout(rollout_id)
    found = await state.store.rewards_of([rollout_id])
    rewards = [asdict(reward) for reward in found.get(rollout_id, [])]
    return RolloutAnswer.model_validate(shown_json({**asdict(rollout), "rewards": rewards}))
