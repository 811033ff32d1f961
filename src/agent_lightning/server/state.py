"""What the routes share: the store, the gateway, the keys, and whether the run is over."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.errors import Conflict
from agent_lightning.gateway.gateway import Gateway
from agent_lightning.server.access import Keys
from agent_lightning.server.limits import Gates, Limits
from agent_lightning.store.store import Store

MOST_CLIENTS = 10_000  # whose losses are told apart


@dataclass(slots=True)
class Losses:
    """What clients could not deliver. Each process tells its count so far, so that saying it twice is harmless."""

    _told: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    _past: Counter[str] = field(default_factory=Counter)  # of processes unheard for longest

    def hear(self, told: Mapping[tuple[str, str], int]) -> None:
        for key, count in told.items():
            self._told[key] = max(count, self._told.pop(key, 0))
        while len(self._told) > MOST_CLIENTS:
            (_, kind), count = self._told.popitem(last=False)
            self._past[kind] += count

    def by_kind(self) -> Mapping[str, int]:
        total = Counter(self._past)
        for (_, kind), count in self._told.items():
            total[kind] += count
        return total


@dataclass(slots=True, kw_only=True)
class ServerState:
    store: Store
    gateway: Gateway
    run_id: str
    keys: Keys = field(default_factory=Keys)
    lease_seconds: float = 60.0
    rollout_deadline: float = 600.0
    client: Mapping[str, Any] = field(default_factory=dict)  # settings that a claim brings to its worker
    lost: Losses = field(default_factory=Losses)
    over: asyncio.Event = field(default_factory=asyncio.Event)  # nothing will be queued any more
    capacity: int = 64  # calls that the engine samples at once; more of them wait
    limits: Limits = field(default_factory=Limits)
    gates: Gates = field(default_factory=Gates)

    def own_run(self, asked: str | None) -> str:
        """The run that is served. Raises Conflict for another one: its rollouts would meet this run's policy."""
        if asked not in (None, self.run_id):
            raise Conflict(
                f"this server serves run {self.run_id!r}, not {asked!r}: use the address of that run's server, or leave "
                "out the run's name"
            )
        return self.run_id

    @property
    def load(self) -> float:
        """How busy the server is, from 0 to 1: the fullest of what its clients share. Under `trace_sampling_rate =
        "auto"` they record the less the higher it is."""
        calls = self.gateway.in_flight / max(1, self.capacity)
        return round(min(1.0, max(calls, self.gates.messages.fullness, self.gates.spans.fullness)), 3)
