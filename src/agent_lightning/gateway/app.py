"""The gateway as a plain ASGI app: a POST path for each dialect, and GET /v1/models.

No framework is in the way of a call. Mount it at the root or under /v1; it says 404 to everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from agent_lightning.errors import AccessDenied, LightningError, NotFound, RequestError
from agent_lightning.gateway.gateway import Answer, Asked, Gateway
from agent_lightning.wire import protocol
from agent_lightning.wire.dialect import Dialect
from agent_lightning.wire.dialects import BY_PATH, CHAT, MESSAGES, RESPONSES
from agent_lightning.wire.errors import ErrorAnswer, error_answer
from agent_lightning.wire.sse import CONTENT_TYPE, dumps

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Opens = Callable[[str], Awaitable[bool]]

LARGEST_BODY = 32 * 1024 * 1024  # bytes
_LOG = logging.getLogger(__name__)


def gateway_app(gateway: Gateway, *, other_keys: Opens | None = None) -> App:
    """The app. `other_keys` says of a key that is no rollout's whether it may list the models."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await _serve(gateway, other_keys, scope, receive, send)

    return app


async def _live(receive: Receive, send: Send) -> None:
    """The parts are closed by whoever made them."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _serve(gateway: Gateway, other_keys: Opens | None, scope: Scope, receive: Receive, send: Send) -> None:
    headers, path = dict(scope["headers"]), _path(scope)
    dialect = MESSAGES if path.startswith(protocol.MESSAGES) else BY_PATH.get(path, CHAT)
    try:
        match scope["method"], path:
            case "POST", protocol.COUNT_TOKENS:
                asked = _asked(headers, await _body(receive), dialect, path)
                await _send_json(send, 200, {"input_tokens": await gateway.count(asked)}, {})
            case "POST", _ if path in BY_PATH:
                await _call(gateway, _asked(headers, await _body(receive), dialect, path), receive, send)
            case "GET", _ if path.startswith(f"{protocol.RESPONSES}/"):
                call_id = unquote(path.removeprefix(f"{protocol.RESPONSES}/")).removeprefix("resp_")
                await _send_json(send, 200, await gateway.stored(_key(headers), call_id, RESPONSES), {})
            case "GET", protocol.MODELS:
                await _may_list(gateway, other_keys, _key(headers))
                await _send_json(send, 200, _models(gateway), {})
            case method, _:
                served = ", ".join(f"POST {known}" for known in (*BY_PATH, protocol.COUNT_TOKENS))
                raise NotFound(f"{method} {path} is not served: {served} and GET {protocol.MODELS} are")
    except ConnectionAbortedError:
        return  # nobody is left to be told
    except LightningError as error:
        await _send_error(send, dialect.error(error_answer(error)))


async def _call(gateway: Gateway, asked: Asked, receive: Receive, send: Send) -> None:
    """Answer, unless the client leaves: then the call is aborted."""
    task = asyncio.current_task()
    assert task is not None
    left = False

    def leave(watcher: asyncio.Future[None]) -> None:
        nonlocal left
        if not watcher.cancelled():
            left = True
            task.cancel()

    watcher = asyncio.ensure_future(_disconnected(receive))
    watcher.add_done_callback(leave)
    try:
        await _answer(gateway, asked, send)
    except asyncio.CancelledError:
        if not left:
            raise
        task.uncancel()
    finally:
        watcher.remove_done_callback(leave)
        watcher.cancel()


async def _answer(gateway: Gateway, asked: Asked, send: Send) -> None:
    try:
        answer = await gateway.answer(asked)
    except Exception as error:  # the caller is told, whatever it was
        await _send_error(send, asked.dialect.error(_told(error)))
        return
    if answer.events is None:
        await _send_json(send, 200, answer.body or {}, answer.headers)
    else:
        await _send_events(send, answer, answer.events, asked.dialect)


async def _send_events(send: Send, answer: Answer, events: AsyncIterator[bytes], dialect: Dialect) -> None:
    headers = {"content-type": CONTENT_TYPE, "cache-control": "no-cache", **answer.headers}
    await send({"type": "http.response.start", "status": answer.status, "headers": _encoded(headers)})
    try:
        async for chunk in events:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except Exception as error:  # the stream has begun: the last event says why it ends
        last = dialect.error_event(_told(error))
        await send({"type": "http.response.body", "body": last, "more_body": True})
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
    await send({"type": "http.response.body", "body": b""})


def _told(error: Exception) -> ErrorAnswer:
    answer = error_answer(error)
    if answer.status == 500:
        _LOG.error("a call failed", exc_info=error)
    return answer


async def _may_list(gateway: Gateway, other_keys: Opens | None, key: str | None) -> None:
    if key and other_keys is not None and await other_keys(key):
        return
    try:
        await gateway.who(key)
    except AccessDenied:
        raise
    except LightningError:
        return  # a key of an attempt that has ended still names its holder


def _models(gateway: Gateway) -> Mapping[str, Any]:
    model = {"id": gateway.config.policy, "object": "model", "created": 0, "owned_by": "agent-lightning"}
    return {"object": "list", "data": [model]}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    chunks, size, more = [], 0, True
    while more:
        came = await receive()
        if came["type"] == "http.disconnect":
            raise ConnectionAbortedError
        chunk = came.get("body", b"")
        chunks.append(chunk)
        size += len(chunk)
        if size > LARGEST_BODY:
            raise RequestError(f"the body has more than {LARGEST_BODY} bytes", code="body_too_large")
        more = came.get("more_body", False)
    return b"".join(chunks)


def _asked(headers: Mapping[bytes, bytes], body: bytes, dialect: Dialect, path: str) -> Asked:
    deadline = _text(headers, protocol.DEADLINE)
    try:
        seconds = None if deadline is None else max(float(deadline), 1.0) / 1000
    except ValueError as error:
        raise RequestError(f"the header {protocol.DEADLINE} is {deadline!r}: milliseconds are wanted") from error
    return Asked(
        key=_key(headers),
        body=body,
        dialect=dialect,
        call_id=_text(headers, protocol.CALL_ID),
        component="/".join(unquote(name) for name in (_text(headers, protocol.COMPONENT) or "").split("/")),
        parent_span=_text(headers, protocol.PARENT_SPAN),
        deadline_seconds=seconds,
        path=path,
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()},
    )


def _key(headers: Mapping[bytes, bytes]) -> str | None:
    """As a bearer token, or in the header of Anthropic's clients."""
    scheme, _, key = (_text(headers, "authorization") or "").partition(" ")
    return (key.strip() if scheme.lower() == "bearer" else None) or _text(headers, "x-api-key")


def _text(headers: Mapping[bytes, bytes], name: str) -> str | None:
    value = headers.get(name.encode("ascii"))
    return value.decode("latin-1") or None if value else None


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path if path.startswith("/v1/") else f"/v1{path}"


async def _send_json(send: Send, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    content = dumps(body)
    all_headers = {"content-type": "application/json", "content-length": str(len(content)), **headers}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(all_headers)})
    await send({"type": "http.response.body", "body": content})


async def _send_error(send: Send, answer: ErrorAnswer) -> None:
    await _send_json(send, answer.status, answer.body, answer.headers)


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
