"""A gateway over a small random model: what it answers is nonsense, and only a grammar gives it a form."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import inference_cases as cases
from agent_lightning.gateway.gateway import Gateway, GatewayConfig
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.inference.torch_engine import TorchEngine
from agent_lightning.models.chat_template import CHATML, ChatTemplate
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.store.sqlite import SqliteStore
from gateway_rig import NOW, Rig, chatml_tokenizer, served

CONTEXT = 2048


def random_core(tokenizer: ChatTokenizer, **config: Any) -> TorchCore:
    model = cases.tiny_llama(
        vocab_size=tokenizer.vocabulary + 3, max_position_embeddings=CONTEXT, num_hidden_layers=1, **config
    )
    core = TorchCore(model, max_sequences=8, context_length=CONTEXT, tokenizer=tokenizer)
    core.publish(cases.adapter(model, version=0))
    return core


@cache
def _shared() -> tuple[ChatTokenizer, TorchCore]:
    """One model for all tests of a process; one engine at a time computes with it."""
    tokenizer = chatml_tokenizer()
    return tokenizer, random_core(tokenizer)


@asynccontextmanager
async def random_rig(path: str = ":memory:", **config: Any) -> AsyncIterator[Rig]:
    tokenizer, core = _shared()
    store = await SqliteStore.open(path)
    engine = TorchEngine(core)
    names = itertools.count()
    gateway = Gateway(
        store,
        engine,
        tokenizer,
        ChatTemplate(CHATML, tokenizer.special_tokens, NOW),
        GatewayConfig(**{"context_length": CONTEXT, "max_new_tokens": 1024, **config}),
        clock=lambda: 1_800_000_000.0,
        new_id=lambda: f"minted{next(names)}",
    )
    try:
        async with served(gateway) as url:
            yield Rig(store, engine, gateway, tokenizer, url)  # type: ignore[arg-type] - it is asked for no script
    finally:
        await gateway.close()
        await engine.close()
        await store.close()
        core.reset()
