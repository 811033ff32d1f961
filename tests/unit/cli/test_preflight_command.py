"""`agent-lightning preflight`: shows what would be trained and refuses what cannot be."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import pytest

from agent_lightning import cli


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, in which a run folder would be seen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"input": str(digit)}) + "\n" for digit in range(8)))
    return tmp_path


def settings(**given: object) -> Path:
    values = {
        "agent": "preflight_agents:agent",
        "reward": "preflight_agents:varied",
        "train_tasks": "train.jsonl",
        "model": "tiny",
        "replicas": 0,
        "lora_rank": 0,
        "max_new_tokens": 4,
        "total_steps": 10,
        "warmup_steps": 0,
        "warmup_trajectories": 0,
        **given,
    }
    Path("lightning.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return Path("lightning.toml")


def preflight(monkeypatch: pytest.MonkeyPatch, file: Path, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["agent-lightning", "preflight", str(file), *arguments])
    try:
        cli.main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_a_good_file_shows_what_would_be_trained_and_leaves_nothing(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = [*sorted(path.name for path in elsewhere.iterdir()), "lightning.toml"]
    assert preflight(monkeypatch, settings()) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\(unnamed\) │ (8|9|1\d) │ yes", text)
    assert "<assistant>⟦" in text and "of them trained" in text
    assert "one step at most about" in text and "whole run at most about" in text and "GiB resident" in text
    assert "of 1024 tokens in the longest prompt" in text
    assert "ready: agent-lightning train lightning.toml" in text
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted(there)
    assert list((elsewhere / "temporary").glob("agent-lightning*")) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"reward": "preflight_agents:constant"}, "all 8 judged rollouts got the reward 0.25"),
        ({"reward": "preflight_agents:not_a_number"}, "a finite number is wanted"),
        ({"agent": "preflight_agents:silent"}, "without any LLM call"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(
    given: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preflight(monkeypatch, settings(**given)) == 2
    assert reason in capsys.readouterr().err


def test_a_run_that_ends_inside_warm_up_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preflight(monkeypatch, settings(), "--set", "warmup_steps=500") == 2
    told = capsys.readouterr()
    assert "ends inside warm-up" in told.err and "trying" not in told.out
