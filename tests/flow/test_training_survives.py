"""What a training must survive: flat batches, replicas killed with -9, a full disk, a second start after the end."""

from __future__ import annotations

import errno
import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_lightning import Trainer
from agent_lightning.errors import CheckpointError
from agent_lightning.learner import checkpoint
from agent_lightning.models import folder as folders
from agent_lightning.trainer.folder import RunFolder
from examples.lookup.agent import TASKS, answer, reward
from small_runs import SETTINGS


@pytest.fixture(autouse=True)
def provider_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-needed")


def trainer(folder: Path, judge: Any = reward, listeners: Any = (), **given: Any) -> Trainer:
    config = {**SETTINGS, "runs": str(folder), **given}
    return Trainer(answer, reward=judge, config=config, run="run", listeners=listeners)


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def test_steps_whose_groups_are_all_flat_change_nothing_and_go_on(tmp_path: Path):
    def by_task(task, result, rollout):
        return int(task.input) / 10

    result = trainer(tmp_path, judge=by_task, entropy_coef=0.0).fit(TASKS)
    assert result.steps == 3
    steps = rows(tmp_path, "step")
    assert [row["version"] for row in steps] == [0, 0, 0]
    assert all(row["figures"]["group.flat"] == 1.0 for row in steps)


@pytest.mark.parametrize("stage", ["rollouts", "update"])
def test_a_killed_replica_is_replaced_and_its_work_repeated(tmp_path: Path, stage: str):
    killed: list[int] = []

    def kill(kind, step, body):
        now = "update" if kind == "update" else body.get("stage") if kind == "progress" else None
        if now == stage and not killed and rows_exist(tmp_path):
            for child in psutil.Process().children(recursive=True):
                if not child.children():
                    child.kill()
                    killed.append(child.pid)

    result = trainer(tmp_path, listeners=(kill,), replicas=1, lease_seconds=10).fit(TASKS)
    assert killed
    assert result.steps == 3
    assert [row["version"] for row in rows(tmp_path, "step")] == [1, 2, 3]


def rows_exist(folder: Path) -> bool:
    return bool(rows(folder, "step"))


def test_a_disk_that_fills_leaves_the_old_checkpoint_whole_and_the_run_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = folders.write_manifest
    assert checkpoint.write_manifest is real  # imported before the replacement, which it would else keep
    saves = 0

    def full(draft: Path) -> None:
        nonlocal saves
        saves += "step-000002" in draft.name
        if saves and "step-000002" in draft.name:
            raise OSError(errno.ENOSPC, "no space left")
        real(draft)

    monkeypatch.setattr(folders, "write_manifest", full)
    with pytest.raises(CheckpointError, match="disk is full"):
        trainer(tmp_path).fit(TASKS)
    run = RunFolder(tmp_path / "run")
    assert run.pointed("latest") == run.checkpoint(1)
    folders.check_manifest(run.checkpoint(1))
    monkeypatch.setattr(folders, "write_manifest", real)
    assert trainer(tmp_path).fit(TASKS).steps == 3
    assert [row["step"] for row in rows(tmp_path, "step")] == [1, 2, 3]


def test_a_finished_run_started_again_trains_nothing_more(tmp_path: Path):
    first = trainer(tmp_path).fit(TASKS[:6], TASKS[6:8], TASKS[8:])
    again = trainer(tmp_path).fit(TASKS[:6], TASKS[6:8], TASKS[8:])
    assert again.after == first.after
    assert len(rows(tmp_path, "step")) == 3


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path):
    trainer(tmp_path).fit(TASKS)
    run = RunFolder(tmp_path / "run")
    (run.checkpoint(3) / "optimizer.safetensors").write_bytes(b"damaged")
    assert run.newest_whole() == run.checkpoint(2)
    assert trainer(tmp_path).fit(TASKS).steps == 3


def test_an_update_that_is_not_finite_is_skipped_told_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from agent_lightning.learner.update import TorchLearner

    real = TorchLearner.update
    spoiled: list[int] = []

    def once(self, share, *, rate, version):
        if not spoiled:
            spoiled.append(version)
            first = share.samples[0]
            nan = array("f", [float("nan")] * len(first.advantages))
            share = replace(share, samples=(replace(first, advantages=nan), *share.samples[1:]))
        return real(self, share, rate=rate, version=version)

    monkeypatch.setattr(TorchLearner, "update", once)
    assert trainer(tmp_path).fit(TASKS).steps == 3
    assert [row["version"] for row in rows(tmp_path, "step")] == [0, 1, 2]
