"""A server for tests: its parts in memory, and its app, by itself or on a real socket."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agent_lightning.gateway.gateway import Gateway, GatewayConfig
from agent_lightning.models.chat_template import CHATML, ChatTemplate
from agent_lightning.records import Claim, Rollout, Task
from agent_lightning.server.access import Keys
from agent_lightning.server.app import make_app
from agent_lightning.server.serving import bind, serving
from agent_lightning.server.state import ServerState
from agent_lightning.store.sqlite import SqliteStore
from gateway_rig import NOW, GatedEngine, chatml_tokenizer

FIXED = {"worker": "alw-1", "admin": "ala-1", "read": "alo-1"}
_numbers = itertools.count()


def rig_state(store: SqliteStore, keys: Keys | None = None, **given: Any) -> ServerState:
    tokenizer = chatml_tokenizer()
    gateway = Gateway(
        store,
        GatedEngine(tokenizer, lambda request: "hello"),
        tokenizer,
        ChatTemplate(CHATML, tokenizer.special_tokens, NOW),
        GatewayConfig(),
        clock=lambda: 0.0,
        new_id=lambda: f"call-{next(_numbers)}",
    )
    return ServerState(store=store, gateway=gateway, run_id="run", keys=keys or Keys(), lease_seconds=30.0, **given)


async def claimed(store: SqliteStore, name: str | None = None) -> Claim:
    """A new rollout, claimed."""
    name = name or f"r{next(_numbers)}"
    task = Task(id=name, input="?")
    await store.enqueue([Rollout(id=name, run_id="run", task=task, mode="train", group_id=name, priority=1)])
    claim = await store.claim("w", lease_seconds=60)
    assert claim is not None and claim.rollout.id == name
    return claim


def bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


@asynccontextmanager
async def on_a_socket(state: ServerState) -> AsyncIterator[tuple[str, int]]:
    """Host and port."""
    listener = bind("127.0.0.1", 0)
    try:
        async with serving(make_app(state), listener, state.limits):
            yield listener.getsockname()[:2]
    finally:
        listener.close()


async def sent(where: tuple[str, int], *chunks: bytes, pause: float = 0.0) -> bytes:
    """What the server answers to these bytes until it closes or has been silent for a while."""
    reader, writer = await asyncio.open_connection(*where)
    try:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(pause)
    except ConnectionError:
        pass
    try:
        async with asyncio.timeout(5):
            return await _rest(reader)
    finally:
        writer.close()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    answer = b""
    try:
        while chunk := await reader.read(65536):
            answer += chunk
    except ConnectionError:
        pass
    return answer
