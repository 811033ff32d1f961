"""The HTTP app: the gateway at /v1, the API at /api/v1, the collector, health and metrics.

The gateway's calls go straight to its own ASGI app: no framework is in the way of a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from agent_lightning import __version__
from agent_lightning.errors import LightningError, RequestError, StoreError
from agent_lightning.gateway.app import gateway_app
from agent_lightning.server import collect, rollouts, runs
from agent_lightning.server.answers import HealthAnswer, ReadyAnswer
from agent_lightning.server.described import ERRORS, GATEWAY_ROUTES, describe
from agent_lightning.server.front import App, Front, Message, Receive, Scope, Send
from agent_lightning.server.state import ServerState
from agent_lightning.wire.errors import error_answer
from agent_lightning.wire.protocol import LOAD, RESPONSES

GATEWAY_PATHS = frozenset(path for _, path in GATEWAY_ROUTES)
STORE_SECONDS = 2.0  # in which a well store answers


class ServerApp:
    """The whole server as one ASGI app; `api` holds its routes, GATEWAY_ROUTES the gateway's."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self.api = _api(state)
        self._gateway = gateway_app(state.gateway, other_keys=_lists_models(state))
        self._front = Front(self._routed, state.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._front(scope, receive, send)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"] in GATEWAY_PATHS or scope["path"].startswith(f"{RESPONSES}/")):
            await self._gateway(scope, receive, send)
        else:
            await self.api(scope, receive, self._with_load(send))  # type: ignore[arg-type]

    def _with_load(self, send: Send) -> Send:
        """Every answer of the API tells how busy the server is: clients choose by it how many live rollouts to record."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                load = (LOAD.encode("ascii"), f"{self._state.load:.3f}".encode("ascii"))
                message = {**message, "headers": [*message.get("headers", ()), load]}
            await send(message)

        return told


def make_app(state: ServerState) -> App:
    return ServerApp(state)


def _api(state: ServerState) -> FastAPI:
    # the pages that FastAPI makes of its OpenAPI load scripts from elsewhere
    api = FastAPI(title="Agent Lightning", version=__version__, docs_url=None, redoc_url=None)
    api.state.lightning = state
    for router in (runs.router, rollouts.router, collect.router):
        api.include_router(router)
    for error, told in (
        (LightningError, _refused),
        (RequestValidationError, _invalid),
        (HTTPException, _unserved),
        (RecursionError, _refused),
        (Exception, _refused),
    ):
        api.add_exception_handler(error, told)
    _add_health(api, state)
    describe(api)
    return api


def _lists_models(state: ServerState) -> Callable[[str], Awaitable[bool]]:
    async def opens(key: str) -> bool:
        return state.keys.lists_models(key)

    return opens


def _add_health(api: FastAPI, state: ServerState) -> None:
    @api.get("/healthz", response_model=HealthAnswer)
    async def healthz() -> dict[str, str]:
        """That the process answers, and which run it serves."""
        return {"status": "ok", "version": __version__, "run": state.run_id}

    @api.get("/readyz", response_model=ReadyAnswer, responses={503: {"model": ReadyAnswer}})
    async def readyz() -> JSONResponse:
        """Whether rollouts can be served now, and if not, why."""
        reasons = await _reasons(state)
        told = {"status": "not ready" if reasons else "ready", "reasons": reasons}
        told |= {"in_flight": state.gateway.in_flight, "load": state.load}
        return JSONResponse(told, status_code=503 if reasons else 200)

    @api.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def metrics(request: Request) -> PlainTextResponse:
        """In Prometheus' text format."""
        state.keys.look(rollouts.key_of(request))
        from agent_lightning.server.exposition import exposed

        return PlainTextResponse(exposed(state), media_type="text/plain; version=0.0.4")


async def _reasons(state: ServerState) -> list[str]:
    """Why rollouts cannot be served now; empty when they can."""
    found = []
    if state.over.is_set():
        found.append("the run is over: nothing will be queued any more")
    if (why := state.gateway.hold.why) is not None:
        found.append(f"calls are held, because {why}")
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await state.store.runs()
    except TimeoutError:
        found.append(f"the store did not answer within {STORE_SECONDS:g} s")
    except StoreError as error:
        found.append(f"the store cannot be read: {error}")
    return found


def _refused(request: Request, error: Exception) -> JSONResponse:
    answer = error_answer(error)
    return JSONResponse(answer.body, status_code=answer.status, headers=dict(answer.headers))


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"] if part != "body") or None
    return _refused(request, RequestError(f"{name or 'the body'}: {first['msg']}", field=name))


def _unserved(request: Request, error: Exception) -> JSONResponse:
    """404 and 405 of paths that are nobody's, and bodies that could not be parsed."""
    assert isinstance(error, HTTPException)
    told = {"message": f"{request.method} {request.url.path[:200]}: {error.detail}", "type": "invalid_request_error"}
    body: dict[str, Any] = {"error": {**told, "param": None, "code": str(error.status_code)}}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)
