"""kill -9 of a training at random moments: what follows equals the undisturbed run, number for number."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import time
from pathlib import Path

import pytest

from small_runs import command, settings_file

# One call in flight, so that even the order of sums is the same; and a rollout that is sampled again after a kill is
# computed from nothing that other rollouts left in the cache, as the first time.
ALONE = {
    "workers": 1,
    "share_prefixes": False,
    "lease_seconds": 1,
    "total_steps": 5,
    "tasks_per_step": 2,
    "group_size": 3,
    "dtype": "float32",
}
FIGURES = (
    "reward.mean",
    "learner.tokens",
    "learner.loss",
    "learner.grad_norm",
    "learner.entropy",
    "learner.sampler_gap",
)


def finish(*arguments: str) -> str:
    process = command(*arguments)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said
    return said


def steps(run: Path, names: tuple[str, ...] = FIGURES) -> list[tuple[float, ...]]:
    """(step, version, figures...) of every step that the journal tells."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        (row["step"], row["version"], *(row["figures"][name] for name in names))
        for row in rows
        if row["kind"] == "step"
    ]


def kill_once(chance: random.Random, *arguments: str) -> bool:
    """Start, kill at a random moment after serving began; whether it was still running."""
    process = command(*arguments)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving"):
            break
    time.sleep(chance.uniform(0.0, 2.0))
    alive = process.poll() is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    return alive


@pytest.mark.timeout(300)  # five starts of a process each with its imports
@pytest.mark.parametrize(
    ("kills", "seed"), [(2, 1), *(pytest.param(6, seed, marks=pytest.mark.slow) for seed in range(3))]
)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, kills: int, seed: int):
    file = settings_file(tmp_path, **ALONE)
    finish("train", str(file), "--run", "whole", "--plain")
    chance, run = random.Random(seed), tmp_path / "runs/killed"
    arguments = ["train", str(file), "--run", "killed", "--plain"]
    killed = 0
    for _ in range(kills):
        killed += kill_once(chance, *arguments)
        if (run / "run.json").exists():
            arguments = ["train", "--resume", str(run), "--plain", "--set", f"runs={tmp_path / 'runs'}"]
    finish(*arguments)
    assert killed >= 1
    whole = tmp_path / "runs/whole"
    assert steps(run) == steps(whole)  # bit for bit
    with contextlib.closing(sqlite3.connect(run / "store.db")) as db:
        finished = db.execute("select count(*), count(distinct id) from rollouts where status = 'finished'").fetchone()
        lost = db.execute("select count(*) from rollouts where status not in ('finished', 'cancelled')").fetchone()[0]
    assert finished == (30, 30)
    assert lost == 0


def test_a_killed_worker_loses_nothing(tmp_path: Path):
    import re

    file = settings_file(tmp_path, **{**ALONE, "workers": 0, "total_steps": 2, "max_attempts": 5})
    server = command("serve", str(file), "--run", "shared", "--port", "0", "--plain")
    assert server.stdout is not None
    endpoint = next(
        found.group(1) for line in server.stdout if (found := re.search(r"at (http://127\.0\.0\.1:\d+)", line))
    )
    arguments = (
        "work",
        "examples.lookup.agent:answer",
        "--reward",
        "examples.lookup.agent:reward",
        "--endpoint",
        endpoint,
    )
    first = command(*arguments, "--slots", "2")
    time.sleep(1.5)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=30)
    second = command(*arguments, "--slots", "2")
    said, _ = server.communicate(timeout=100)
    assert server.returncode == 0, said
    second.terminate()  # it may have come too late to be told that the run is over
    second.communicate(timeout=60)
    assert [row[0] for row in steps(tmp_path / "runs/shared")] == [1, 2]


def test_a_killed_server_goes_on_at_its_address_and_its_workers_with_it(tmp_path: Path):
    file = settings_file(tmp_path, workers=0, lease_seconds=2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = command("serve", str(file), "--run", "shared", "--port", port, "--plain")
    worker = command(
        "work", "examples.lookup.agent:answer", "--reward", "examples.lookup.agent:reward",
        "--endpoint", f"http://127.0.0.1:{port}", "--slots", "3",
    )  # fmt: skip
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("step 1"):
            break
    os.kill(server.pid, signal.SIGKILL)
    server.communicate(timeout=30)
    finish("serve", "--resume", str(tmp_path / "runs/shared"), "--port", port, "--plain")
    said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    assert [row[:2] for row in steps(tmp_path / "runs/shared", ())] == [(1, 1), (2, 2), (3, 3)]
    with contextlib.closing(sqlite3.connect(tmp_path / "runs/shared/store.db")) as db:
        counted = db.execute("select status, count(*), count(distinct id) from rollouts group by status").fetchall()
    assert counted == [("finished", 36, 36)]


def test_ctrl_c_leaves_a_run_that_resumes(tmp_path: Path):
    file = settings_file(tmp_path, **{**ALONE, "total_steps": 4})
    process = command("train", str(file), "--run", "stopped", "--plain")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 1"):
            break
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "--resume" in said
    run = tmp_path / "runs/stopped"
    finish("train", "--resume", str(run), "--plain")
    assert [row[0] for row in steps(run)] == [1, 2, 3, 4]
