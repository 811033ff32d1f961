"""Messages to the training server, over `http.client` so that we never intercept ourselves. Connections are kept open."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from agent_lightning import errors
from agent_lightning.wire import protocol

if TYPE_CHECKING:
    from http.client import HTTPConnection

IDLE = 4  # open connections that are kept for the next message
_STATUS_ERRORS: dict[int, type[errors.LightningError]] = {
    400: errors.RequestError,
    401: errors.AccessDenied,
    403: errors.AccessDenied,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Fenced,
    413: errors.RequestError,
    422: errors.RequestError,
}

LOAD_SECONDS = 60.0  # after which a server's word about its load counts no more
_loads: dict[str, tuple[float, float]] = {}  # by endpoint: load in [0, 1], and time.monotonic() when it was told


def load_of(endpoint: str) -> float | None:
    """What the server last told of its load, 0 idle to 1 full; None when it has not of late."""
    load, told = _loads.get(endpoint, (0.0, None))
    return None if told is None or time.monotonic() - told > LOAD_SECONDS else load


class Link:
    """The server at `endpoint`. Every method blocks for at most its timeout.

    Raises ServerUnreachable when nothing answers or the server fails (5xx), Fenced on 410, AccessDenied, NotFound,
    Conflict and RequestError on their statuses.
    """

    def __init__(self, endpoint: str, api_key: str | None = None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._api_key = api_key
        parts = urlsplit(self.endpoint)
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        self._closed = False
        self._pid = os.getpid()

    def claim(self, *, worker: str, run_id: str | None = None, wait_seconds: float = 0.0) -> dict[str, Any] | None:
        """The next queued rollout, None when there is none yet. Raises Fenced when the run is over."""
        body: dict[str, Any] = {"worker": worker, "wait_seconds": wait_seconds}
        if run_id is not None:
            body["run_id"] = run_id
        return self.post(protocol.CLAIMS, body, timeout=wait_seconds + 10.0)

    def live(self, *, rollout_id: str, worker: str, task_input: Any = None, timeout: float = 2.0) -> dict[str, Any]:
        body: dict[str, Any] = {"rollout_id": rollout_id, "worker": worker}
        if task_input is not None:
            body["input"] = task_input
        claim = self.post(protocol.LIVE, body, timeout=timeout)
        if claim is None:
            raise errors.ServerUnreachable(f"{self.endpoint} answered a live rollout without a claim")
        return claim

    def heartbeat(self, attempt_id: str, *, key: str, timeout: float = 5.0) -> float | None:
        """Extend the lease; its new end in Unix seconds. Raises Fenced when the attempt was taken over."""
        path = f"{protocol.ATTEMPTS}/{quote(attempt_id, safe='')}/heartbeat"
        return (self.post(path, {}, key=key, timeout=timeout) or {}).get("lease_until")

    def end(
        self,
        attempt_id: str,
        *,
        key: str,
        outcome: str,
        detail: str | None = None,
        result: Any = None,
        rewards: Sequence[Mapping[str, Any]] = (),
        timeout: float = 10.0,
    ) -> dict[str, Any]:
        body = {"outcome": outcome, "detail": detail, "result": result, "rewards": list(rewards)}
        path = f"{protocol.ATTEMPTS}/{quote(attempt_id, safe='')}/end"
        return self.post(path, body, key=key, timeout=timeout) or {}

    def rewards(
        self, rollout_id: str, rewards: Sequence[Mapping[str, Any]], *, key: str, timeout: float = 5.0
    ) -> dict[str, Any]:
        path = f"{protocol.ROLLOUTS}/{quote(rollout_id, safe='')}/rewards"
        return self.post(path, {"rewards": list(rewards)}, key=key, timeout=timeout) or {}

    def traces(self, body: Mapping[str, Any], *, key: str | None = None, timeout: float = 5.0) -> None:
        self.post(protocol.TRACES, body, key=key, timeout=timeout)

    def post(self, path: str, body: Any, *, key: str | None = None, timeout: float = 5.0) -> dict[str, Any] | None:
        """Send JSON, get JSON; None for an empty answer. `key` replaces the client's own."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        bearer = key or self._api_key
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        data = json.dumps(body, default=str, separators=(",", ":")).encode()
        status, raw = self._exchange("POST", self._prefix + path, data, headers, timeout)
        return self._understand(path, status, raw)

    def close(self) -> None:
        """Close the connections that nobody uses; those in use are closed when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(
        self, method: str, path: str, data: bytes, headers: dict[str, str], timeout: float
    ) -> tuple[int, bytes]:
        from http.client import HTTPException

        connection, reused = self._take(timeout)
        try:
            try:
                answer = _round_trip(connection, method, path, data, headers)
            except (ConnectionError, HTTPException):
                if not reused:
                    raise
                # The server closed a kept-alive connection; every message may be sent twice.
                connection.close()
                connection = self._open(timeout)
                answer = _round_trip(connection, method, path, data, headers)
        except (OSError, HTTPException) as error:
            connection.close()
            raise errors.ServerUnreachable(
                f"the training server at {self.endpoint} did not answer {path} within {timeout:g} s "
                f"({type(error).__name__}: {error}); start it with `agent-lightning serve` or set endpoint / "
                "AGENT_LIGHTNING_ENDPOINT to where it runs"
            ) from error
        self._give_back(connection)
        status, raw, load = answer
        if load is not None:
            _loads[self.endpoint] = (load, time.monotonic())
        return status, raw

    def _take(self, timeout: float) -> tuple[HTTPConnection, bool]:
        """A connection of our own for one exchange, and whether it has been used before."""
        with self._lock:
            if self._pid != os.getpid():  # a forked child must not speak on its parent's sockets
                self._pid, self._idle = os.getpid(), []
            connection = self._idle.pop() if self._idle else None
        if connection is None or connection.sock is None:
            return connection or self._open(timeout), False
        connection.timeout = timeout
        connection.sock.settimeout(timeout)
        return connection, True

    def _open(self, timeout: float) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        make = HTTPSConnection if self._secure else HTTPConnection
        return make(self._host, self._port, timeout=timeout)

    def _give_back(self, connection: HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE and connection.sock is not None:
                self._idle.append(connection)
                return
        connection.close()

    def _understand(self, path: str, status: int, raw: bytes) -> dict[str, Any] | None:
        if status == 204 or (200 <= status < 300 and not raw.strip()):
            return None
        try:
            content = json.loads(raw)
        except ValueError:
            content = None
        if 200 <= status < 300 and isinstance(content, dict):
            return content
        message = _message(content) or raw[:200].decode(errors="replace") or "no reason given"
        if status in _STATUS_ERRORS:
            raise _STATUS_ERRORS[status](f"{self.endpoint}{path} refused with {status}: {message}")
        raise errors.ServerUnreachable(
            f"{self.endpoint}{path} answered {status}: {message}; is this address a training server, and is it well?"
        )


def _round_trip(
    connection: HTTPConnection, method: str, path: str, data: bytes, headers: dict[str, str]
) -> tuple[int, bytes, float | None]:
    connection.request(method, path, body=data, headers=headers)
    response = connection.getresponse()
    return response.status, response.read(), _load(response.getheader(protocol.LOAD))


def _load(told: str | None) -> float | None:
    try:
        return None if told is None else min(1.0, max(0.0, float(told)))
    except ValueError:
        return None


def _message(content: Any) -> str | None:
    error = content.get("error") if isinstance(content, dict) else None
    return error.get("message") if isinstance(error, dict) else None
