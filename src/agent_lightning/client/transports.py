"""Interception where every SDK passes: `send` of httpx and httpx2. Sends planned calls to the training server.

A request is copied before it is changed, so that the caller's own object, and a later send to the provider, stay whole.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from agent_lightning.client import calls, profiling, report
from agent_lightning.client.breaker import breaker_of
from agent_lightning.client.calls import PlannedCall, SeenCall
from agent_lightning.client.patch import Patch
from agent_lightning.client.retry import Backoff
from agent_lightning.client.scope import calling
from agent_lightning.client.semconv import Status
from agent_lightning.wire import protocol

MODULES = ("httpx", "httpx2")
_EXPIRED = "this call ran out of max_step_timeout"
_log = logging.getLogger("agent_lightning")


def patch_module(module: Any) -> list[Patch]:
    """Patch the clients of an imported httpx or httpx2."""
    return [Patch(module.Client, "send", _send), Patch(module.AsyncClient, "send", _send_async)]


@lru_cache(maxsize=64)
def _address(library: Any, endpoint: str, suffix: str) -> tuple[Any, bytes]:
    """Where a call goes, as the library's own URL, and its Host."""
    url = library.URL(f"{endpoint}/v1{suffix}")
    return url, url.netloc


@lru_cache(maxsize=8)
def _library(request: type) -> Any:
    return sys.modules[request.__module__.split(".", 1)[0]]


@lru_cache(maxsize=8)
def _knows_triples(headers: type) -> bool:
    """Whether this library keeps its headers as we want them: then none of them is encoded and folded anew."""
    return getattr(headers([(b"A", b"b")]), "_list", None) == [(b"A", b"a", b"b")]


def _read(headers: Any) -> calls.Headers:
    if _knows_triples(type(headers)):
        return headers._list
    return [(name, name.lower(), value) for name, value in headers.raw]


def _written(like: Any, triples: calls.Headers) -> Any:
    headers = type(like)
    if not _knows_triples(headers):
        return headers([(name, value) for name, _, value in triples])
    made = headers(encoding=like.encoding)  # ours are ASCII, which every encoding spells alike
    made._list = triples
    return made


def _planned(args: tuple[Any, ...], kwargs: dict[str, Any]) -> SeenCall | None:
    """What becomes of this request. Fails open: what we cannot understand goes where it was going."""
    scope = calling()
    if scope is None or not scope.routed:
        return None
    began = time.perf_counter()
    try:
        request = args[0] if args else kwargs["request"]
        content = getattr(request, "_content", None)  # absent while the body is a stream that nobody has read
        if request.method != "POST" or content is None:
            return None
        call = calls.plan(scope, request.url, request.url.path, _read(request.headers), content)
    except Exception as error:
        _log.warning("agent-lightning left a call alone: %s: %s", type(error).__name__, error)
        report.lost("interception")
        return None
    if (
        isinstance(call, PlannedCall)
        and scope.mode == "live"
        and not breaker_of(scope.config.endpoint, "calls").allows()
    ):
        report.lost("routing")
        return None
    if call is not None:
        profiling.spent("interception", time.perf_counter() - began)
    return call


@contextmanager
def _watched(call: SeenCall) -> Iterator[None]:
    """The call of another component on its way to its own provider: its span, and nothing else."""
    started_ns, status = time.time_ns(), Status.ERROR
    try:
        yield
        status = Status.OK
    finally:
        report.call_span(call, started_ns=started_ns, status=status)


def _send(wrapped: Any, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = _planned(args, kwargs)
    if call is None:
        return wrapped(*args, **kwargs)
    if not isinstance(call, PlannedCall):
        with _watched(call):
            return wrapped(*args, **kwargs)
    flight = _Flight(call, client, args[0] if args else kwargs["request"], kwargs)
    while True:
        try:
            response = wrapped(flight.request(), **flight.options)
        except flight.library.TransportError as error:
            pause = flight.after_error(error)
            if pause is None:
                return wrapped(*args, **kwargs) if flight.falls_back else flight.unreachable(error)
        else:
            pause = flight.after_answer(response)
            if pause is None and not (flight.falls_back and response.is_error):
                return response
            response.close()
            if pause is None:
                return wrapped(*args, **kwargs)
        time.sleep(pause)


async def _send_async(wrapped: Any, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = _planned(args, kwargs)
    if call is None:
        return await wrapped(*args, **kwargs)
    if not isinstance(call, PlannedCall):
        with _watched(call):
            return await wrapped(*args, **kwargs)
    flight = _Flight(call, client, args[0] if args else kwargs["request"], kwargs)
    while True:
        try:
            response = await wrapped(flight.request(), **flight.options)
        except flight.library.TransportError as error:
            pause = flight.after_error(error)
            if pause is None:
                return await wrapped(*args, **kwargs) if flight.falls_back else flight.unreachable(error)
        else:
            pause = flight.after_answer(response)
            if pause is None and not (flight.falls_back and response.is_error):
                return response
            await response.aclose()
            if pause is None:
                return await wrapped(*args, **kwargs)
        await asyncio.sleep(pause)


class _Flight:
    """One planned call over all of its sends."""

    def __init__(self, call: PlannedCall, client: Any, request: Any, kwargs: dict[str, Any]) -> None:
        self.call, self._client, self._request = call, client, request
        self.library = _library(type(request))
        # The caller's auth belongs to its provider; a gateway never redirects.
        self.options = {**{k: v for k, v in kwargs.items() if k != "request"}, "auth": None, "follow_redirects": False}
        scope = call.scope
        self._step_seconds = scope.config.max_step_timeout
        left = scope.seconds_left()
        live = scope.mode == "live"
        self._backoff = Backoff(
            strategy="none" if live else scope.config.retry_strategy,  # production does not wait for us
            deadline=time.monotonic() + (self._step_seconds if left is None else left),
        )
        self._sends = 0
        self._started_ns = time.time_ns()
        self.falls_back = live  # an agent in production keeps its own provider when we fail
        if call.expired:
            raise self.library.ReadTimeout(_EXPIRED, request=request)

    def request(self) -> Any:
        """A fresh copy of the caller's request, addressed to the training server."""
        self._sends += 1
        if self._sends > 1:
            self.call.scope.record.count("retries")
        began = time.perf_counter()
        url, host = _address(self.library, self.call.scope.config.endpoint, self.call.suffix)
        extensions = {**self._request.extensions, "timeout": self._timeout()}
        extensions.pop("sni_hostname", None)
        # Handing over the stream keeps the body as it is; a body that was read is a stream that can be read again.
        copy = type(self._request)(
            "POST",
            url,
            headers=_written(self._request.headers, [*self.call.headers, (b"Host", b"host", host)]),
            stream=self._request.stream,
            extensions=extensions,
        )
        copy.read()
        profiling.spent("interception", time.perf_counter() - began)
        return copy

    def after_answer(self, response: Any) -> float | None:
        """Seconds until the next send, None when this answer is the caller's. Raises when the step's time ran out."""
        status = response.status_code
        if status < 400:
            self._served()
            return None
        final = response.headers.get(protocol.SHOULD_RETRY) == "false"
        pause = self._backoff.after_status(status, response.headers)
        if pause is not None:
            return pause
        response.headers[protocol.SHOULD_RETRY] = "false"
        self._failed()
        if status == 429 or status >= 500:
            self._unwell()
        if status == 504 and final:  # the gateway's word for max_step_timeout
            self._expire(self.library.ReadTimeout(_EXPIRED, request=self._request))
        elif status == 429 or status >= 500:
            self.call.scope.record.count("failures")
        return None

    def after_error(self, error: Exception) -> float | None:
        """Seconds until the next send, None when the call is lost. Raises when its time has run out."""
        if isinstance(error, self.library.ReadTimeout):
            self._failed()
            self._unwell()
            self._expire(error)
            return None
        pause = self._backoff.after_lost_connection()
        if pause is None:
            self.call.scope.record.count("failures")
            self._failed()
            self._unwell()
        return pause

    def _expire(self, error: Exception) -> None:
        """Count it, and raise what the SDK knows as a timeout; its own retries of this call end at once."""
        self.call.scope.record.count("timeouts")
        if not self.falls_back:
            calls.expire(self.call)
            raise error

    def unreachable(self, error: Exception) -> Any:
        """An answer in the provider's shape that says why, and that the SDK does not try again."""
        endpoint = self.call.scope.config.endpoint
        message = (
            f"the training server at {endpoint} cannot be reached ({type(error).__name__}: {error}); "
            "start it with `agent-lightning serve` or set endpoint to where it runs"
        )
        body = {"error": {"message": message, "type": "server_unreachable", "param": None, "code": "unreachable"}}
        headers = {protocol.SHOULD_RETRY: "false"}
        return self.library.Response(503, headers=headers, json=body, request=self._request)

    def _timeout(self) -> dict[str, float | None]:
        """The caller's limits, but never longer than the rollout: waiting at the gateway counts against that alone."""
        own = self._request.extensions.get("timeout") or self._client.timeout.as_dict()
        left = self.call.scope.seconds_left()
        limit = self._step_seconds if left is None else max(0.05, left)
        read = own.get("read")
        return {**own, "read": limit if read is None else min(read, limit)}

    def _served(self) -> None:
        if self.falls_back:
            breaker_of(self.call.scope.config.endpoint, "calls").succeeded()
        report.call_span(self.call, started_ns=self._started_ns, status=Status.OK)

    def _failed(self) -> None:
        if self.falls_back:
            report.lost("routing")
        report.call_span(self.call, started_ns=self._started_ns, status=Status.ERROR)

    def _unwell(self) -> None:
        """The server, not the call, is at fault; queued rollouts go on asking it."""
        if self.falls_back:
            breaker_of(self.call.scope.config.endpoint, "calls").failed()
