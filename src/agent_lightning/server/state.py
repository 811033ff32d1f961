"""What the routes share: the store, the gateway, the keys, and whether the run is over."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.gateway.gateway import Gateway
from agent_lightning.server.access import Keys
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
