"""`Trainer.fit` with algorithms that need more than advantages: a critic, pairs, the best siblings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_lightning import Trainer
from agent_lightning.trainer.replay import decode, encode
from examples.lookup.agent import TASKS, answer, reward
from small_runs import SETTINGS

OTHER = {"credit_assignment": None, "entropy_coef": None}  # what an algorithm without credit and policy loss refuses


@pytest.mark.parametrize(
    ("given", "algorithms", "figure"),
    [
        ({"algorithm": "ppo", "minibatches": 2, "epochs": 2}, ["ppo"] * 3, "learner.value_loss"),
        ({"algorithm": "ppo", "kl_coef": 0.1, "sft_steps": 1}, ["sft", "ppo", "ppo"], "learner.value_loss"),
        ({"algorithm": "dpo", **OTHER}, ["dpo"] * 3, "learner.pair_margin"),
    ],
)
def test_a_run_trains_and_writes_down_what_it_would_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], algorithms: list[str], figure: str
):
    monkeypatch.setenv("OPENAI_API_KEY", "not-needed")
    batches = []

    def kept(batch: Any) -> bytes:
        batches.append(batch)
        return encode(batch)

    monkeypatch.setattr("agent_lightning.trainer.loop.encode", kept)
    made = Trainer(
        answer, reward=reward, config={**SETTINGS, "runs": str(tmp_path), "group_size": 8, **given}, run="run"
    )
    assert made.fit(TASKS).steps == 3
    assert [batch.algorithm for batch in batches] == algorithms
    assert all(decode(encode(batch)) == batch for batch in batches)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    figures = [row["figures"] for row in rows if row["kind"] == "step"]
    assert any(figure in seen for seen in figures)
    assert max(seen.get("learner.sampler_gap", 0.0) for seen in figures) < 1e-4
