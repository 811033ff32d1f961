"""The HTTP app: the gateway at /v1, the API at /api/v1, the collector, health and metrics.

The gateway's calls go straight to its own ASGI app: no framework is in the way of a token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse

from agent_lightning import __version__
from agent_lightning.errors import LightningError, RequestError
from agent_lightning.gateway.app import gateway_app
from agent_lightning.server import collect, rollouts
from agent_lightning.server.state import ServerState
from agent_lightning.wire.dialects import BY_PATH
from agent_lightning.wire.errors import error_answer
from agent_lightning.wire.protocol import COUNT_TOKENS, MODELS, RESPONSES

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


GATEWAY_PATHS = frozenset({*BY_PATH, COUNT_TOKENS, MODELS})


def make_app(state: ServerState) -> App:
    """The whole server as one ASGI app."""
    api = FastAPI(title="Agent Lightning", version=__version__)
    api.state.lightning = state
    api.include_router(rollouts.router)
    api.include_router(collect.router)
    api.add_exception_handler(LightningError, _refused)
    api.add_exception_handler(RequestValidationError, _invalid)
    _add_health(api, state)
    gateway = gateway_app(state.gateway, other_keys=_lists_models(state))

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (scope["path"] in GATEWAY_PATHS or scope["path"].startswith(f"{RESPONSES}/")):
            await gateway(scope, receive, send)
        else:
            await api(scope, receive, send)

    return app


def _lists_models(state: ServerState) -> Callable[[str], Awaitable[bool]]:
    async def opens(key: str) -> bool:
        return state.keys.lists_models(key)

    return opens


def _add_health(api: FastAPI, state: ServerState) -> None:
    @api.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "version": __version__, "run": state.run_id}

    @api.get("/readyz")
    async def readyz() -> JSONResponse:
        """Whether rollouts can be served now."""
        if state.over.is_set():
            return JSONResponse({"status": "over"}, status_code=503)
        return JSONResponse({"status": "ready", "in_flight": state.gateway.in_flight})

    @api.get("/metrics")
    async def metrics(request: Request) -> PlainTextResponse:
        state.keys.look(rollouts.key_of(request))
        from agent_lightning.server.exposition import exposed

        return PlainTextResponse(exposed(state), media_type="text/plain; version=0.0.4")


def _refused(request: Request, error: Exception) -> JSONResponse:
    answer = error_answer(error)
    return JSONResponse(answer.body, status_code=answer.status, headers=dict(answer.headers))


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"] if part != "body") or None
    return _refused(request, RequestError(f"{name or 'the body'}: {first['msg']}", field=name))
