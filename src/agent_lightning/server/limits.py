"""What a server takes at once, so that no client, slow or hostile, can make it grow without bound."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_lightning.errors import ServerBusy

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connections: int = 8192  # at once; at most half of the file descriptors that the process may open
    head_bytes: int = 64 * 1024  # request line and headers of one request
    headers: int = 100
    head_seconds: float = 20.0  # from a connection's or a request's first byte to the end of its headers
    body_bytes: int = 32 * MIB  # of one request, unpacked too
    body_seconds: float = 60.0  # from the headers to the end of the body
    bodies_bytes: int = 256 * MIB  # of all requests that are being read or answered
    write_seconds: float = 60.0  # that a client may leave an answer unread, once its buffer of 64 KiB is full


class Gate:
    """At most `most` requests of one kind inside; whoever comes then is told to come again."""

    def __init__(self, what: str, most: int) -> None:
        self.what, self.most, self.inside = what, most, 0

    @property
    def fullness(self) -> float:
        return self.inside / self.most if self.most else 1.0

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Raises ServerBusy."""
        if self.inside >= self.most:
            raise ServerBusy(f"{self.inside} {self.what} are being served, which is the limit: try again in a moment")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    claims: Gate = field(default_factory=lambda: Gate("claims", 4096))  # most of them wait for a rollout
    messages: Gate = field(default_factory=lambda: Gate("messages of workers", 512))  # rewards, ends, heartbeats
    spans: Gate = field(default_factory=lambda: Gate("uploads of spans", 32))
    queries: Gate = field(default_factory=lambda: Gate("queries", 64))  # of people and dashboards
