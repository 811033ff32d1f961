"""A gateway on a real socket, for tests: ChatML tokenizer, real store, an engine that says what it is told."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import openai
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agent_lightning.gateway.app import gateway_app
from agent_lightning.gateway.gateway import Gateway, GatewayConfig
from agent_lightning.gateway.upstreams import Upstreams
from agent_lightning.inference.engine import GenerateRequest, Piece
from agent_lightning.inference.scripted import ScriptedEngine
from agent_lightning.models.adapter import Adapter
from agent_lightning.models.chat_template import CHATML, ChatTemplate
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Claim, Mode, Rollout, Task
from agent_lightning.server.serving import bind, serving
from agent_lightning.store.sqlite import SqliteStore

NOW = datetime(2026, 11, 30, tzinfo=UTC)
CORPUS = ["the cat sat on the mat", "hello there, what is the answer?", "user assistant system tool", '{"name": "add"}']


def chatml_tokenizer() -> ChatTokenizer:
    """Byte-level BPE with a few merges, so that one text has many spellings in ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    marks = [AddedToken(mark, special=True, normalized=False) for mark in ("<|im_start|>", "<|im_end|>")]
    tokenizer.add_special_tokens(marks)
    return ChatTokenizer(
        tokenizer,
        stop_ids=[tokenizer.token_to_id("<|im_end|>")],
        special_tokens={"eos_token": "<|im_end|>"},
        chat_template=CHATML,
    )


Script = Callable[[GenerateRequest], str | Iterable[int]]


class GatedEngine(ScriptedEngine):
    """The scripted engine behind a gate, with a note of sequences that were left before their end.

    The script gives ids, or a text, which then ends with the end-of-turn token.
    """

    def __init__(self, tokenizer: ChatTokenizer, script: Script) -> None:
        def answer(_: array[int], request: GenerateRequest) -> Iterable[int]:
            said = script(request)
            return [*tokenizer.encode(said), *tokenizer.stop_ids[:1]] if isinstance(said, str) else said

        super().__init__(answer, policies=["default"])
        self.gate: asyncio.Event | None = None  # no piece comes before it is set
        self.aborted: list[str] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        ended = False
        async with aclosing(super().generate(request)) as pieces:
            try:
                async for piece in pieces:
                    if self.gate is not None:
                        await self.gate.wait()
                    ended = piece.finish_reason is not None
                    yield piece
            finally:
                if not ended:
                    self.aborted.append(request.id)


def raised(error: Exception) -> Any:
    """A script's way to fail."""
    raise error


@dataclass
class Rig:
    store: SqliteStore
    engine: GatedEngine
    gateway: Gateway
    tokenizer: ChatTokenizer
    url: str
    tasks: itertools.count = field(default_factory=itertools.count)

    async def claim(self, mode: Mode = "train", task_id: str | None = None) -> Claim:
        number = next(self.tasks)
        task = Task(id=task_id or f"t{number}", input="x")
        rollout = Rollout(id=f"r{number}", run_id="run", task=task, mode=mode, group_id=f"g{number}", seed=7)
        await self.store.enqueue([rollout])
        claim = await self.store.claim("w", lease_seconds=60)
        assert claim is not None
        assert claim.rollout.id == rollout.id
        return claim

    def client(self, claim: Claim | str, **options: Any) -> openai.AsyncOpenAI:
        key = claim if isinstance(claim, str) else claim.key
        plain = openai.DefaultAsyncHttpxClient(verify=False)  # spares reading the certificates
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=key, http_client=plain, **{"max_retries": 0, **options}
        )

    def sync_client(self, claim: Claim) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=claim.key, max_retries=0)


@asynccontextmanager
async def rig(
    script: Script,
    path: str = ":memory:",
    *,
    tokenizer: ChatTokenizer | None = None,
    upstreams: Upstreams | None = None,
    capacity: int = 64,
    **config: Any,
) -> AsyncIterator[Rig]:
    tokenizer = tokenizer or chatml_tokenizer()
    store = await SqliteStore.open(path)
    engine = GatedEngine(tokenizer, script)
    await engine.publish(Adapter(policy="default", version=3, rank=0, alpha=0.0, matrices={}))
    ids = itertools.count()
    gateway = Gateway(
        store,
        engine,
        tokenizer,
        ChatTemplate(tokenizer.chat_template or "", tokenizer.special_tokens, NOW),
        GatewayConfig(**config),
        clock=lambda: 1_800_000_000.0,
        new_id=lambda: f"minted{next(ids)}",
        upstreams=upstreams,
        capacity=capacity,
    )
    try:
        async with served(gateway) as url:
            yield Rig(store, engine, gateway, tokenizer, url)
    finally:
        await gateway.close()
        await store.close()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - it watches what nobody announces
            await asyncio.sleep(0.005)


@asynccontextmanager
async def served(gateway: Gateway) -> AsyncIterator[str]:
    """The gateway's address on the loopback."""
    async with serving(gateway_app(gateway), bind("127.0.0.1", 0)) as address:
        yield address
