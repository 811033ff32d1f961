"""What the routes share: the store, the gateway, the keys, and whether the run is over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.gateway.gateway import Gateway
from agent_lightning.server.access import Keys
from agent_lightning.store.store import Store


@dataclass(slots=True, kw_only=True)
class ServerState:
    store: Store
    gateway: Gateway
    run_id: str
    keys: Keys = field(default_factory=Keys)
    lease_seconds: float = 60.0
    rollout_deadline: float = 600.0
    client: Mapping[str, Any] = field(default_factory=dict)  # settings that a claim brings to its worker
    over: asyncio.Event = field(default_factory=asyncio.Event)  # nothing will be queued any more
