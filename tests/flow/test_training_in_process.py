"""`Trainer.fit` from one program: store, gateway, agent, learner and new weights, on the tiny model."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from agent_lightning import Trainer
from agent_lightning.errors import RunInUse, TrainingStopped
from agent_lightning.models.folder import check_manifest
from examples.lookup.agent import TASKS, answer, reward
from small_runs import SETTINGS


@pytest.fixture(autouse=True)
def provider_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-needed")


def trainer(folder: Path, agent=answer, judge=reward, run="run", **given) -> Trainer:
    return Trainer(agent, reward=judge, config={**SETTINGS, "runs": str(folder), **given}, run=run)


def test_three_steps_leave_versions_checkpoints_and_a_score(tmp_path: Path):
    result = trainer(tmp_path).fit(TASKS[:6], TASKS[6:8], TASKS[8:])
    assert result.steps == 3
    assert result.before is not None and result.after is not None
    assert result.before["seen"]["n"] == result.after["seen"]["n"] == 2
    check_manifest(result.best)
    with contextlib.closing(sqlite3.connect(tmp_path / "run/store.db")) as db:
        versions = [row[0] for row in db.execute("select version from versions order by version")]
        gaps = db.execute("select count(*) from calls where status != 'completed'").fetchone()[0]
    assert versions == [1, 2, 3]
    assert gaps == 0


def test_a_run_gives_its_transitions_and_a_model_that_transformers_loads(tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agent_lightning.cli.exporting import export, trajectories

    trainer(tmp_path).fit(TASKS)
    trajectories("run", tmp_path / "out.jsonl", step=0, runs=str(tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(lines) == 12
    first = lines[0]["transitions"][0]
    assert len(first["action"]) == len(first["logprobs"]) >= 1
    export(str(tmp_path / "run"), tmp_path / "merged", "latest")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "merged")("7", return_tensors="pt")["input_ids"]
    assert model(tokens).logits.isfinite().all()


def test_sampler_and_learner_agree_on_every_token(tmp_path: Path):
    seen: list[float] = []

    def hear(kind, step, body):
        if kind == "step":
            seen.append(body["figures"]["learner.sampler_gap_p99"])

    made = trainer(tmp_path)
    made.listeners = (hear,)
    made.fit(TASKS)
    assert len(seen) == 3
    assert max(seen) < 1e-4


def test_a_reward_function_that_raises_stops_before_anything_is_trained(tmp_path: Path):
    def wrong(task, result, rollout):
        raise KeyError("gold")

    with pytest.raises(TrainingStopped, match="KeyError: 'gold'"):
        trainer(tmp_path, judge=wrong).fit(TASKS)
    assert not list((tmp_path / "run/checkpoints").glob("step-000001"))


@pytest.mark.parametrize("mode", ["train", "val", "test"])
def test_a_run_that_a_failing_reward_stopped_goes_on_when_the_reward_is_mended(tmp_path: Path, mode: str):
    def failing(task, result, rollout):
        if rollout.mode == mode:
            raise KeyError("gold")
        return reward(task, result, rollout)

    def fit(judge):
        return trainer(tmp_path, judge=judge).fit(TASKS[:6], TASKS[6:8], TASKS[8:])

    with pytest.raises(TrainingStopped, match=r"could not be judged: .*KeyError: 'gold'"):
        fit(failing)
    with pytest.raises(TrainingStopped, match="could not be judged"):
        fit(failing)
    result = fit(reward)
    assert result.steps == 3
    assert result.before is not None and not result.before["failed"]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows if row["kind"] == "discarded"] == [
        {"test": "before", "train": "step"}.get(mode, mode)
    ] * 2
    assert not any(row["failed"] for row in rows if row["kind"] in ("eval", "before", "after"))


@pytest.mark.parametrize("value", [float("nan"), "good", [1.0]])
def test_a_reward_that_is_no_finite_number_stops_before_anything_is_trained(tmp_path: Path, value):
    with pytest.raises(TrainingStopped, match="reward function returned"):
        trainer(tmp_path, judge=lambda task, result, rollout: value).fit(TASKS)


def test_no_reward_at_all_says_what_is_missing(tmp_path: Path):
    with pytest.raises(TrainingStopped, match="pass reward="):
        trainer(tmp_path, judge=None).fit(TASKS)


def test_a_constant_reward_stops_the_run(tmp_path: Path):
    with pytest.raises(TrainingStopped, match="nothing can be learned"):
        trainer(tmp_path, judge=lambda *_: 0.5, total_steps=9).fit(TASKS)


def test_an_agent_that_makes_no_call_is_named(tmp_path: Path):
    with pytest.raises(TrainingStopped, match="without any LLM call"):
        trainer(tmp_path, agent=lambda question: question).fit(TASKS)


def test_an_agent_that_raises_before_any_call_is_named(tmp_path: Path):
    def broken(question):
        raise ValueError("no such tool")

    with pytest.raises(TrainingStopped, match="no such tool"):
        trainer(tmp_path, agent=broken, max_attempts=1).fit(TASKS)


def test_an_agent_that_hangs_is_timed_out_and_not_counted_as_zero(tmp_path: Path):
    import threading

    def stuck(question):
        threading.Event().wait(30)

    with pytest.raises(TrainingStopped, match="rollout_deadline"):
        trainer(tmp_path, agent=stuck, rollout_deadline=0.5, max_attempts=1, workers=12).fit(TASKS)


def test_an_async_agent_and_an_async_reward(tmp_path: Path):
    from openai import AsyncOpenAI

    async def ask(question: str) -> str:
        async with AsyncOpenAI() as client:
            reply = await client.chat.completions.create(model="any", messages=[{"role": "user", "content": question}])
        return reply.choices[0].message.content or ""

    async def judge(task, result, rollout):
        return {"length": float(len(result)), "even": float(len(result) % 2)}

    result = trainer(tmp_path, agent=ask, judge=judge, total_steps=1).fit(TASKS)
    assert result.steps == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_on_anthropics_sdk_is_trained_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
):
    import anthropic

    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-needed")
    model = anthropic.Anthropic(max_retries=2)

    def say(messages: list) -> str:
        asked = {"model": "claude-x", "max_tokens": 4, "messages": messages}
        if not streamed:
            return "".join(block.text for block in model.messages.create(**asked).content)
        with model.messages.stream(**asked) as stream:
            return "".join(stream.text_stream)

    def ask(question: str) -> list[str]:
        first = say([{"role": "user", "content": question}])
        history = [{"role": "user", "content": question}, {"role": "assistant", "content": first}]
        return [first, say([*history, {"role": "user", "content": "=3"}])]

    def judge(task, result, rollout):
        return sum(map(len, result)) / 8

    result = trainer(tmp_path, agent=ask, judge=judge, total_steps=2).fit(TASKS)
    assert result.steps == 2
    with contextlib.closing(sqlite3.connect(tmp_path / "run/store.db")) as db:
        calls = db.execute(
            "select dialect, status, trainable, parent_call_id is null, count(*) from calls group by 1, 2, 3, 4"
        )
        assert calls.fetchall() == [("messages", "completed", 1, 0, 24), ("messages", "completed", 1, 1, 24)]


def test_a_second_trainer_on_the_same_run_is_refused(tmp_path: Path):
    import threading

    errors: list[BaseException] = []
    second = trainer(tmp_path)

    def intrude(kind, step, body):
        def go():
            try:
                second.fit(TASKS)
            except RunInUse as error:
                errors.append(error)

        if kind == "step" and step == 1:
            thread = threading.Thread(target=go)
            thread.start()
            thread.join(20)

    first = trainer(tmp_path)
    first.listeners = (intrude,)
    assert first.fit(TASKS).steps == 3
    assert len(errors) == 1
