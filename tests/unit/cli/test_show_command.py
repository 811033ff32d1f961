"""`agent-lightning show`: a run or a rollout, in words, in a plain pipe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_lightning import cli
from agent_lightning.cli.app import app
from agent_lightning.cli.training import _left_in_order
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.trainer import report
from showing_cases import hand_made, trained_run


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["show", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_run_is_shown_with_what_changed_what_was_dropped_and_where_it_is(tmp_path: Path) -> None:
    folder = hand_made(tmp_path)
    text = flat(shown("made", "--runs", str(tmp_path)))
    assert "0% -> 100% (test, n=1)" in text
    assert "steps 2 of 4" in text and "state finished" in text
    assert "warmup_steps │ 0 │ 500" in text
    assert "agent_error" in text and "made.step-000000.digit-9.0" in text
    assert "1-2 (2x)" in text and "the sky falls" in text
    assert str(folder.store) in text and "a-secret-key" not in text


def test_output_fits_a_hundred_columns_and_holds_no_terminal_codes(tmp_path: Path) -> None:
    hand_made(tmp_path)
    runs = ("--runs", str(tmp_path))
    for text in (shown("made", *runs), shown("made.step-000000.digit-9.0", *runs)):
        assert max(len(line) for line in text.splitlines()) <= 100
        assert "\x1b" not in text and "\x07" not in text


def test_a_rollout_is_shown_step_by_step_with_its_credit(tmp_path: Path) -> None:
    hand_made(tmp_path)
    text = flat(shown("made.step-000000.digit-8.0", "--runs", str(tmp_path)))
    assert "step 1 of 2: solver" in text and "step 2 of 2: solver" in text
    assert "<user>=9<end><assistant>" in text and "a9<end>" in text
    assert "weight s 0.700 multiplier m 0.824 credit c 0.412 advantage +0.4658" in text
    assert "exact │ 1 │ 1 │ the rollout │ reward_fn" in text
    assert "siblings' rewards [1] 0" in text


def test_a_dropped_rollout_says_why_in_words(tmp_path: Path) -> None:
    hand_made(tmp_path)
    text = flat(shown("made.step-000000.digit-9.0", "--runs", str(tmp_path)))
    assert "dropped agent_error: the agent raised an error" in text
    assert "not trained the rollout was dropped: agent_error" in text


def test_a_rollout_is_found_by_its_run_too(tmp_path: Path) -> None:
    folder = hand_made(tmp_path)
    assert "reward R = 0" in shown("made.before-000000.t1", "--run", str(folder.path))


async def test_a_run_is_shown_while_a_trainer_holds_its_store(tmp_path: Path) -> None:
    import asyncio

    folder = await asyncio.to_thread(hand_made, tmp_path)
    store = await SqliteStore.open(folder.store)
    await store.open_run("made", {}, holder="host/1/abc", lease_seconds=60.0)
    text = await asyncio.to_thread(shown, str(folder.path))
    assert "training, held by host/1/abc" in text
    await store.open_run("made", {}, holder="host/1/abc", lease_seconds=-1.0)
    assert "its trainer host/1/abc was lost" in flat(await asyncio.to_thread(shown, str(folder.path)))
    await store.close()


def test_an_unknown_name_lists_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hand_made(tmp_path)
    monkeypatch.setattr(sys, "argv", ["agent-lightning", "show", "nobody", "--runs", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "runs there: made" in capsys.readouterr().err


def test_a_really_trained_run_and_its_rollouts_can_be_shown() -> None:
    folder = trained_run()
    assert "figures of step 2" in shown(str(folder.path))
    text = shown("trained.step-000001.train-0000.2", "--runs", str(folder.path.parent), "--full")
    assert "policy default 1, temperature 1.0" in text


def test_ctrl_c_says_where_the_report_is_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = hand_made(tmp_path, finished=False)
    report.write(folder)
    with pytest.raises(KeyboardInterrupt), _left_in_order(folder, "train"):
        raise KeyboardInterrupt
    told = capsys.readouterr().err
    assert str(folder.report) in told
    assert f"agent-lightning train --resume {folder.path}" in told
