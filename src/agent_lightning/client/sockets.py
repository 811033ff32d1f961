"""Interception of DSPy's own HTTP client, which speaks on sockets and knows neither httpx nor httpx2.

DSPy repeats failed calls by itself, so nothing is repeated here. A live rollout falls back to its own provider.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from agent_lightning.client import calls, report
from agent_lightning.client.calls import PlannedCall, SeenCall
from agent_lightning.client.patch import Patch
from agent_lightning.client.scope import calling
from agent_lightning.client.semconv import Status

MODULES = ("dspy._vendor.lm15.transports",)


def patch_module(module: Any) -> list[Patch]:
    return [
        Patch(module.StdlibTransport, "stream", _stream),
        Patch(module.StdlibAsyncTransport, "stream", lambda w, _, a, k: _Opening(w, *a, **k)),
    ]


def _planned(request: Any) -> SeenCall | None:
    """Fails open, as for httpx."""
    scope = calling()
    if scope is None or not scope.routed or request.method != "POST":
        return None
    try:
        headers = [(n.encode(), n.lower().encode(), v.encode("latin-1")) for n, v in request.headers]
        return calls.plan(scope, request.url, urlsplit(request.url).path, headers, request.body)
    except Exception:
        report.lost("interception")
        return None


def _routed(request: Any, call: PlannedCall) -> Any:
    headers = [(name.decode(), value.decode("latin-1")) for name, _, value in call.headers]
    config = call.scope.config
    return replace(request, url=f"{config.endpoint}/v1{call.suffix}", headers=headers)


class _Sent:
    """One call under way: what is sent, and whether its answer is the caller's."""

    def __init__(self, request: Any) -> None:
        self.own = request
        self.call = _planned(request)
        self.request = _routed(request, self.call) if isinstance(self.call, PlannedCall) else request
        self._started_ns = time.time_ns()

    def answered(self, status: int) -> bool:
        """Report it; False when the caller's own provider is to answer instead."""
        if self.call is None:
            return True
        self._report(Status.OK if status < 400 else Status.ERROR)
        return status < 400 or not self._falls_back

    def failed(self) -> bool:
        """Report it; True when the caller's own provider is to answer instead."""
        if self.call is not None:
            self._report(Status.ERROR)
        return self._falls_back

    @property
    def _falls_back(self) -> bool:
        return isinstance(self.call, PlannedCall) and self.call.scope.mode == "live"

    def _report(self, status: Status) -> None:
        assert self.call is not None
        if status is Status.ERROR and isinstance(self.call, PlannedCall):
            self.call.scope.record.count("failures")
        report.call_span(self.call, started_ns=self._started_ns, status=status)


def _stream(wrapped: Any, transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sent = _Sent(args[0] if args else kwargs["request"])
    try:
        response = wrapped(sent.request)
    except Exception:
        if sent.failed():
            return wrapped(sent.own)
        raise
    if sent.answered(response.status):
        return response
    response.close()
    return wrapped(sent.own)


class _Opening:
    """The asynchronous form: a context manager that is sent when it is entered."""

    def __init__(self, wrapped: Any, request: Any) -> None:
        self._wrapped, self._sent = wrapped, _Sent(request)
        self._inner: Any = None

    async def __aenter__(self) -> Any:
        self._inner = self._wrapped(self._sent.request)
        try:
            response = await self._inner.__aenter__()
        except Exception:
            if not self._sent.failed():
                raise
        else:
            if self._sent.answered(response.status):
                return response
            await self._inner.__aexit__(None, None, None)
        self._inner = self._wrapped(self._sent.own)
        return await self._inner.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)
