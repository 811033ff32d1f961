"""A worker against a real server that refuses: it says why and ends, and whatever it holds ends with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from agent_lightning.client.config import ClientConfig
from agent_lightning.client.scope import in_context
from agent_lightning.errors import AccessDenied
from agent_lightning.gateway.gateway import Gateway, GatewayConfig
from agent_lightning.models.chat_template import CHATML, ChatTemplate
from agent_lightning.records import Outcome, Rollout, RolloutStatus, Task
from agent_lightning.runner.worker import Worker, WorkerConfig
from agent_lightning.server.access import Keys
from agent_lightning.server.app import make_app
from agent_lightning.server.serving import bind, serving
from agent_lightning.server.state import ServerState
from agent_lightning.store.sqlite import SqliteStore
from gateway_rig import NOW, GatedEngine, chatml_tokenizer


@dataclass
class Rig:
    store: SqliteStore
    state: ServerState
    endpoint: str

    def config(self, api_key: str | None = None, **given: Any) -> WorkerConfig:
        return WorkerConfig(client=ClientConfig(endpoint=self.endpoint, api_key=api_key, **given), slots=2)

    async def queue(self, name: str) -> None:
        await self.store.enqueue(
            [Rollout(id=name, run_id="run", task=Task(id=name, input="?"), mode="train", group_id=name, max_attempts=1)]
        )


@asynccontextmanager
async def served(
    keys: Keys = Keys(), client: dict[str, Any] | None = None, config: GatewayConfig = GatewayConfig()
) -> AsyncIterator[Rig]:
    store, tokenizer = await SqliteStore.open(), chatml_tokenizer()
    gateway = Gateway(
        store,
        GatedEngine(tokenizer, lambda request: "hello"),
        tokenizer,
        ChatTemplate(CHATML, tokenizer.special_tokens, NOW),
        config,
        clock=lambda: 0.0,
        new_id=lambda: "call",
    )
    state = ServerState(store=store, gateway=gateway, run_id="run", keys=keys, lease_seconds=30.0, client=client or {})
    listener = bind("127.0.0.1", 0)
    async with serving(make_app(state), listener) as endpoint:
        yield Rig(store, state, endpoint)
    listener.close()
    await store.close()


def counted(question: str) -> str:
    """An agent of one call, as far as its rollout knows."""
    running = in_context()
    assert running is not None
    running.record.begin_call("c1")
    return question


async def ended(rig: Rig, agent: Callable[[str], Any], reward: Callable[..., Any] | None) -> Rollout:
    worker = Worker(agent, reward, rig.config())
    worker.start()
    await rig.queue("r1")
    await rig.store.finished(["r1"], wait_seconds=10)
    rig.state.over.set()
    await asyncio.to_thread(worker.stop, 5.0)
    assert worker.error is None
    return await rig.store.rollout("r1")


async def test_a_wrong_key_ends_every_slot_and_says_why():
    async with served(Keys(worker="alw-right", admin="ala-right")) as rig:
        worker = Worker(counted, None, rig.config(api_key="alw-wrong"))
        worker.start()
        assert await asyncio.to_thread(worker.join, 5.0), "a slot hangs"
        await asyncio.to_thread(worker.stop)
        assert isinstance(worker.error, AccessDenied)
        assert "worker key" in str(worker.error)


async def test_the_command_with_a_wrong_key_exits_with_2_and_the_reason():
    async with served(Keys(worker="alw-right", admin="ala-right")) as rig:
        command = [sys.executable, "-m", "agent_lightning.cli", "work", "examples.lookup.agent:answer"]
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, "--endpoint", rig.endpoint, "--api-key", "alw-wrong"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode == 2, done.stderr
    assert "claiming needs the worker key" in done.stderr


async def test_a_very_long_error_is_cut_and_ends_the_rollout():
    def broken(question: str) -> str:
        counted(question)
        raise ValueError("x" * 150_000 + "the end")

    async with served() as rig:
        rollout = await ended(rig, broken, None)
    assert (rollout.status, rollout.outcome) == (RolloutStatus.FINISHED, Outcome.AGENT_ERROR)
    assert rollout.detail is not None and len(rollout.detail) <= 4000
    assert rollout.detail.startswith("ValueError: xxx")


def asks_openai(question: str) -> str:
    long: Any = [{"role": "user", "content": question * 200}]
    openai.OpenAI(api_key="theirs", max_retries=0).chat.completions.create(model="m", messages=long)
    return question


def asks_anthropic(question: str) -> str:
    long: Any = [{"role": "user", "content": question * 200}]
    theirs = anthropic.Anthropic(api_key="theirs", max_retries=0)
    try:
        theirs.messages.create(model="m", max_tokens=9, messages=long)
    except anthropic.APIError as error:
        raise RuntimeError("the node failed") from error
    return question


@pytest.mark.parametrize("agent", [asks_openai, asks_anthropic])
async def test_a_prompt_that_does_not_fit_is_the_rollouts_outcome(agent: Callable[[str], str]):
    async with served(config=GatewayConfig(max_prompt_tokens=64)) as rig:
        rollout = await ended(rig, agent, lambda *_: 1.0)
    assert (rollout.status, rollout.outcome) == (RolloutStatus.FINISHED, Outcome.OVER_LONG_PROMPT)
    assert "> 64 maximum" in (rollout.detail or "")


async def test_an_ending_that_the_server_refuses_is_sent_again_in_short():
    many = {f"part{number}": 1.0 for number in range(1_500)}  # more than one message may have
    async with served() as rig:
        rollout = await ended(rig, counted, lambda task, result, view: many)
        assert (await rig.store.rewards_of(["r1"])).get("r1", []) == []
    assert (rollout.status, rollout.outcome) == (RolloutStatus.FINISHED, Outcome.NO_REWARD)
    assert rollout.detail is not None and "refused" in rollout.detail and "rewards" in rollout.detail


@pytest.mark.parametrize("name", ["", "n" * 201])
async def test_a_part_without_a_usable_name_is_told_of(name: str):
    async with served() as rig:
        rollout = await ended(rig, counted, lambda task, result, view: {name: 1.0})
    assert rollout.outcome is Outcome.NO_REWARD
    assert rollout.detail is not None and f"{len(name)} characters" in rollout.detail


async def test_an_attempt_whose_key_is_unknown_by_now_is_given_up_and_the_worker_goes_on():
    async with served() as rig:
        seen: list[str] = []
        worker = Worker(counted, lambda *_: 1.0, rig.config(), notice=seen.append)
        claim = {"attempt_id": "gone", "key": "alr-gone.secret", "lease_seconds": 1.0}
        assert await asyncio.to_thread(worker._beat, claim) is False
        worker.stop()
        assert "given up" in seen[0]
        assert (await ended(rig, counted, lambda *_: 1.0)).outcome is Outcome.OK


async def test_a_worker_obeys_the_servers_settings_unless_it_has_its_own():
    told = {"component": ["solver"], "max_step_timeout": 90.0, "retry_strategy": "fixed"}
    found: list[tuple[Any, ...]] = []

    def look(question: str) -> str:
        running = in_context()
        assert running is not None
        found.append((running.config.component, running.config.max_step_timeout, running.config.retry_strategy))
        return question

    async with served(client=told) as rig:
        for name, config in (("a", rig.config()), ("b", rig.config(max_step_timeout=5.0))):
            worker = Worker(look, None, config)
            worker.start()
            await rig.queue(name)
            await rig.store.finished([name], wait_seconds=10)
            worker._stop.set()
            await rig.queue(f"{name}-last")  # wakes the slots that wait
            await asyncio.to_thread(worker.stop, 2.0)
    assert found[0] == (("solver",), 90.0, "fixed")
    assert (("solver",), 5.0, "fixed") in found


def test_a_setting_that_was_given_holds_even_if_it_is_the_default():
    config = WorkerConfig(client=ClientConfig(), own=frozenset({"max_step_timeout"}))
    chosen = config.client_for({"max_step_timeout": 90.0, "retry_strategy": "none"})
    assert (chosen.max_step_timeout, chosen.retry_strategy) == (30.0, "none")
