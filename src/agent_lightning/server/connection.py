"""One HTTP connection under limits: a bounded head that comes in time, and a reader that reads.

uvicorn waits for headers as long as anybody likes and takes any number of them; this is its own protocol with deadlines.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agent_lightning.server.limits import Limits

_ONE_READ = 256 * 1024  # bytes that a transport hands over at once, at most


class Connection(HttpToolsProtocol):
    """Made by uvicorn for each client."""

    def __init__(self, *given: Any, limits: Limits, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits = limits
        self._most = min(limits.connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._deadline: asyncio.TimerHandle | None = None  # of the head
        self._patience: asyncio.TimerHandle | None = None  # with a client that does not read
        self._fed = 0  # bytes since the head began, also those that the parser holds back
        self._head = 0  # bytes of the head that the parser has told of
        self._refusal: tuple[int, str] | None = None  # why the parser was stopped, if it was we who stopped it

    # --- the protocol ---------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._refuse(503, "The server has as many connections as it can bear.")
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._fed += len(data)
        if self._deadline is not None and self._fed > self._limits.head_bytes + _ONE_READ:
            self._refuse(431, f"The head of the request has more than {self._limits.head_bytes} bytes.")
            return
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._patience is None:
            self._patience = self.loop.call_later(self._limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    # --- what the parser tells --------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            self._stop(431, f"The request has more than {self._limits.headers} headers.")

    def on_headers_complete(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        status, reason = self._refusal or (400, msg)
        self._refuse(status, reason)

    # --- limits ---------------------------------------------------------------------------------------------------
    def _await_head(self) -> None:
        if self._deadline is None:
            self._fed = 0
            self._deadline = self.loop.call_later(self._limits.head_seconds, self._too_slow)

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"The headers did not come within {self._limits.head_seconds:g} seconds.")

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > self._limits.head_bytes:
            self._stop(431, f"The head of the request has more than {self._limits.head_bytes} bytes.")

    def _stop(self, status: int, reason: str) -> None:
        """End the parsing: uvicorn answers what the parser refuses with `send_400_response`."""
        self._refusal = (status, reason)
        raise ValueError(reason)

    def _refuse(self, status: int, reason: str) -> None:
        """Answer and close. Where another request is still to be answered there is no place for it: then just close."""
        of_a_head, cycle = self._deadline is not None, self.cycle
        self._cancel_timers()
        idle = cycle is None or cycle.response_complete
        if idle or not (of_a_head or cycle.response_started or self.pipeline):
            body = reason.encode()
            head = f"HTTP/1.1 {status} \r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}retry-after: 1\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._deadline, self._patience):
            if timer is not None:
                timer.cancel()
        self._deadline = self._patience = None
