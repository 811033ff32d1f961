"""Small real trainings: the tiny model, the lookup agent, a few steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SETTINGS: dict[str, Any] = {
    "model": "tiny",
    "dtype": "float32",
    "replicas": 0,
    "lora_rank": 4,
    "lora_alpha": 8,
    "max_new_tokens": 4,
    "total_steps": 3,
    "tasks_per_step": 3,
    "group_size": 4,
    "eval_every": 2,
    "learning_rate": 1e-3,
    "warmup_trajectories": 0,
    "warmup_steps": 0,
    "entropy_coef": 0.01,
    "credit_assignment": "uniform",
    "workers": 4,
    "lease_seconds": 5,
}


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "OPENAI_API_KEY": "not-needed",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
    }


def settings_file(folder: Path, **given: Any) -> Path:
    """A TOML file for the command line; the lookup agent on its ten digits."""
    values = {
        **SETTINGS,
        "agent": "examples.lookup.agent:answer",
        "reward": "examples.lookup.agent:reward",
        "train_tasks": str(tasks_file(folder)),
        "runs": str(folder / "runs"),
        **given,
    }
    lines = [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    path = folder / "lightning.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def tasks_file(folder: Path) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(f'{{"id": "digit-{digit}", "input": "{digit}"}}\n' for digit in range(10)))
    return path


def command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`agent-lightning ...` as a process of its own, output to be read from its pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "agent_lightning.cli", *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # a shell lets what it starts in the background ignore Ctrl-C, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        **options,
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
