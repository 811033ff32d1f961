"""Before every route: bodies within limits, whole and in time; then the app, which finds its body read already."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from agent_lightning.errors import LightningError, RequestError, ServerBusy
from agent_lightning.server.limits import Limits
from agent_lightning.wire.dialects import BY_PATH
from agent_lightning.wire.errors import error_answer
from agent_lightning.wire.sse import dumps

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_DRAIN_BYTES, _DRAIN_SECONDS = 64 * 1024 * 1024, 2.0  # of a refused body: who still writes does not hear us


class Front:
    """An ASGI app around another one."""

    def __init__(self, app: App, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._held = 0  # bytes of bodies that are being read or answered

    @property
    def fullness(self) -> float:
        return self._held / self._limits.bodies_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        body = _Body(self)
        try:
            try:
                await body.read(scope, receive)
            except LightningError as error:
                await body.drain(receive)
                await _refuse(scope, send, error)
                return
            except ConnectionAbortedError:
                return  # nobody is left to be told
            await self._app(scope, body.replayed(receive), send)
        finally:
            self._held -= body.held

    def hold(self, size: int) -> None:
        """Raises ServerBusy."""
        if self._held + size > self._limits.bodies_bytes:
            raise ServerBusy(
                "the bodies of other requests fill the memory that is meant for them: try again in a moment"
            )
        self._held += size


class _Body:
    """The body of one request, and what of the front's memory it holds."""

    def __init__(self, front: Front) -> None:
        self._front, self._limits = front, front._limits
        self._chunks: list[bytes] = []
        self._more = True
        self.held = 0

    async def read(self, scope: Scope, receive: Receive) -> None:
        """Raises RequestError for one that is too large or too slow, ServerBusy, and ConnectionAbortedError."""
        most = self._limits.body_bytes
        if _length(scope) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while self._more:
                    chunk = await self._next(receive)
                    self._front.hold(len(chunk))
                    self.held += len(chunk)
                    if self.held > most:
                        raise _too_large(most)
                    self._chunks.append(chunk)
        except TimeoutError as error:
            self._more = False  # who writes so slowly is not waited for once more
            raise RequestError(
                f"the body did not come within {self._limits.body_seconds:g} s", code="request_timeout"
            ) from error

    async def _next(self, receive: Receive) -> bytes:
        came = await receive()
        if came["type"] == "http.disconnect":
            raise ConnectionAbortedError
        self._more = came.get("more_body", False)
        return came.get("body", b"")

    async def drain(self, receive: Receive) -> None:
        """Let go of what came, and take a little more of what comes, so that the client reads the refusal."""
        self._chunks.clear()
        dropped = 0
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while self._more and dropped < _DRAIN_BYTES:
                    dropped += len(await self._next(receive))
        except (TimeoutError, ConnectionAbortedError):
            return

    def replayed(self, receive: Receive) -> Receive:
        """Gives the whole body as one message, then what else the client does."""
        whole: list[bytes] = [b"".join(self._chunks)]
        self._chunks.clear()

        async def again() -> Message:
            if whole:
                return {"type": "http.request", "body": whole.pop(), "more_body": False}
            return await receive()

        return again


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


def _length(scope: Scope) -> int:
    """As announced; 0 when it is not."""
    text = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(text) if text.isdigit() else 0


def _too_large(most: int) -> RequestError:
    return RequestError(f"the body has more than {most} bytes", code="body_too_large")


async def _refuse(scope: Scope, send: Send, error: LightningError) -> None:
    """In the form of the dialect that was spoken; what is left of the body makes the connection useless."""
    answer = error_answer(error)
    dialect = BY_PATH.get(scope["path"])
    if dialect is not None:
        answer = dialect.error(answer)
    content = dumps(answer.body)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        "connection": "close",
        **answer.headers,
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
    await send({"type": "http.response.body", "body": content})
