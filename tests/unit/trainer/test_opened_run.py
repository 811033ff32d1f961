"""What stands when a training has been opened: what is written down, what is told, what is refused, what is given back."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_lightning.errors import SettingError, StoreError, TrainingStopped
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.records import Rollout, RolloutStatus, Task
from agent_lightning.replica import ReplicaConfig
from agent_lightning.server.access import Keys
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.train import opened, splits_of
from agent_lightning.trainer.config import LoopConfig, TrainConfig
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.holding import background, gone
from examples.lookup.agent import TASKS, answer, reward
from small_runs import SETTINGS


def settings(folder: Path, **given: Any) -> TrainConfig:
    return TrainConfig.read({**SETTINGS, "runs": str(folder), **given}, env={})


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def rollout(name: str) -> Rollout:
    return Rollout(id=name, run_id="run", task=Task(id=name, input="?"), mode="train", group_id=name)


async def test_keys_are_neither_written_down_nor_shown(tmp_path: Path):
    config = settings(tmp_path, worker_key="alw-hush", admin_key="ala-hush", read_key="alo-hush")
    folder = RunFolder(tmp_path / "run")
    async with opened(config, folder) as session, httpx.AsyncClient(base_url=session.endpoint) as http:
        shown = await http.get("/api/v1/runs", headers={"Authorization": "Bearer alo-hush"})
        assert shown.status_code == 200
        assert "hush" not in shown.text
        assert (await http.post("/api/v1/claims", json={"worker": "w"})).status_code == 401
        session.state.keys.work(session.worker_key)  # the trainer's own worker has a key that nobody gave it
    for file in (folder.path / "run.json", folder.store):
        assert b"hush" not in file.read_bytes()
    assert "hush" not in repr(config)
    assert folder.secrets() == ("worker_key", "admin_key", "read_key")


async def test_attempts_of_a_dead_process_here_are_queued_again_at_once(tmp_path: Path):
    store = await SqliteStore.open(tmp_path / "run/store.db")
    await store.enqueue([rollout("mine"), rollout("alive"), rollout("elsewhere")])
    for worker in (f"{socket.gethostname()}/{dead_pid()}/0", f"{socket.gethostname()}/{os.getppid()}/0", "other/1/0"):
        assert await store.claim(worker, lease_seconds=600) is not None
    await store.close()
    async with opened(settings(tmp_path), RunFolder(tmp_path / "run")) as session:
        found = {item.id: item.status for item in await session.store.rollouts("run")}
    assert found == {
        "mine": RolloutStatus.QUEUED,
        "alive": RolloutStatus.RUNNING,
        "elsewhere": RolloutStatus.RUNNING,
    }


@pytest.mark.parametrize("name", ["", "here", "other/1/0", f"{socket.gethostname()}/x", f"{socket.gethostname()}/²/0"])
def test_what_is_no_process_of_this_machine_is_not_called_dead(name: str):
    assert not gone(name)


async def test_the_date_of_a_template_is_that_of_the_run(tmp_path: Path):
    store = await SqliteStore.open(tmp_path / "run/store.db", clock=lambda: 1_000_000_000.0)  # September 2001
    await store.open_run("run", {}, holder="x", lease_seconds=1)
    await store.release_run("run", holder="x")
    await store.close()
    dated = "{{ strftime_now('%Y') }} {% for m in messages %}{{ m.content }}\n{% endfor %}"
    async with opened(settings(tmp_path, chat_template=dated), RunFolder(tmp_path / "run")) as session:
        assert session.gateway.templates.own.render([{"role": "user", "content": "hi"}]).startswith("2001 hi")


async def test_a_run_says_how_it_computes_and_notes_once_that_history_is_rendered(tmp_path: Path):
    told: list[str] = []

    def hear(kind: str, step: int, body: Mapping[str, Any]) -> None:
        if kind in ("starting", "note"):
            told.append(str(body["text"]))

    for _ in range(2):
        async with opened(
            settings(tmp_path, history="rendered"), RunFolder(tmp_path / "run"), listeners=(hear,)
        ) as session:
            notes = await session.store.events("run", "note")
    assert [note["body"]["text"] for note in notes] == [
        "each call is a branch of its own (history is rendered anew): the setting says so"
    ]
    assert any(text.startswith("engine: ") and "forward pass (" in text for text in told)
    assert any(text.startswith("learner: samples are computed packed") for text in told)


async def test_a_prompt_limit_beyond_the_real_context_is_refused_before_anything_starts(tmp_path: Path):
    with pytest.raises(SettingError, match="max_prompt_tokens is 2000: wanted 1 to 1023"):
        async with opened(settings(tmp_path, max_prompt_tokens=2000), RunFolder(tmp_path / "run")):
            pass
    assert not (tmp_path / "run").exists()


async def test_an_open_address_without_keys_is_refused_however_the_config_was_made(tmp_path: Path):
    config = settings(tmp_path)
    config = replace(config, server=replace(config.server, host="0.0.0.0"))
    with pytest.raises(SettingError, match="worker_key"):
        async with opened(config, RunFolder(tmp_path / "run")):
            pass


async def test_a_training_whose_worker_died_stops_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-needed")
    async with opened(settings(tmp_path), RunFolder(tmp_path / "run")) as session:
        session.state.keys = Keys(worker="alw-other", admin="ala-other")
        with pytest.raises(TrainingStopped, match=r"gave up: .*claiming needs the worker key"):
            async with asyncio.timeout(20), session.agents(answer, reward):
                await session.train(splits_of(TASKS))
        alerts = await session.store.events("run", "alert")
    assert any("gave up" in alert["body"]["text"] for alert in alerts)


async def test_settings_that_were_changed_on_the_way_are_there_next_time(tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    for steps in (3, 7):
        async with opened(settings(tmp_path, total_steps=steps), folder):
            pass
    assert folder.settings()["total_steps"] == 7


async def test_a_config_made_by_hand_can_be_taken_up_again(tmp_path: Path):
    learner = LearnerConfig(lora_rank=4, lora_alpha=8.0, dtype="float32", adam_betas=(0.8, 0.9))
    made = TrainConfig(
        loop=LoopConfig(total_steps=600, component=("a", "b"), reward_weights={"style": 0.5}),
        learner=learner,
        replica=ReplicaConfig(model="tiny", learner=learner, replicas=0),
    )
    folder = RunFolder(tmp_path / "run")
    async with opened(made, folder):
        pass
    again = TrainConfig.of(json.loads((folder.path / "run.json").read_text())["settings"])
    assert replace(again, given={}) == made


# --- what works beside a run ------------------------------------------------------------------------------------


async def failing() -> None:
    raise StoreError("the disk is full")


async def test_work_beside_a_block_that_fails_ends_the_block_with_its_error():
    with pytest.raises(StoreError, match="disk is full"):
        async with background(failing(), "lease watch"):
            await asyncio.sleep(10)


async def test_work_that_failed_just_before_the_block_ended_is_heard_too():
    begun = asyncio.Event()

    async def late() -> None:
        begun.set()
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="disk is full"):
        async with background(late(), "lease watch"):
            await begun.wait()


async def test_an_error_of_the_block_itself_carries_the_other_as_a_note():
    with pytest.raises(ValueError, match="own") as caught:
        async with background(failing(), "lease watch"):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise ValueError("own") from None
    assert caught.value.__notes__ == ["the lease watch had failed before: the disk is full"]


async def test_a_block_that_is_cancelled_from_outside_stays_cancelled():
    async def forever() -> None:
        await asyncio.Event().wait()

    async def block() -> None:
        async with background(forever(), "lease watch"):
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
