"""What a run has done so far."""

from __future__ import annotations

from pathlib import Path

from agent_lightning.store.view import StoreView
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.overview import Overview, last_figures, overview
from showing_cases import hand_made


def seen(folder: RunFolder) -> Overview:
    with StoreView(folder.store) as view:
        return overview(folder, view)


def test_only_settings_that_differ_are_named_and_keys_are_not_shown(tmp_path: Path) -> None:
    settings = {item.name: (item.value, item.default) for item in seen(hand_made(tmp_path)).settings}
    assert settings["warmup_steps"] == (0, 500)
    assert settings["total_steps"] == (4, None)
    assert settings["worker_key"] == ("(not shown)", None)
    assert "group_size" not in settings


def test_a_finished_run_compares_the_test_split_and_a_running_one_its_validations(tmp_path: Path) -> None:
    finished = seen(hand_made(tmp_path, "finished")).compared()
    running = seen(hand_made(tmp_path, "running", finished=False)).compared()
    assert finished is not None and running is not None
    assert [(item.split, item.success) for item in finished] == [("test", 0.0), ("test", 1.0)]
    assert [(item.split, item.step, item.success) for item in running] == [
        ("validation", 0, 0.0),
        ("validation", 2, 0.5),
    ]


def test_an_alert_that_comes_again_is_one_alert_with_its_steps(tmp_path: Path) -> None:
    run = seen(hand_made(tmp_path))
    assert [alert.steps for alert in run.alerts] == [(1, 2)]


def test_figures_that_are_no_numbers_are_left_out_of_a_series(tmp_path: Path) -> None:
    run = seen(hand_made(tmp_path))
    assert run.series("learner.kl") == []
    assert run.series("reward.mean") == [(1, 0.5), (2, 0.5)]
    assert [row[0] for row in last_figures(run.steps)][:1] == ["learner.kl"]
    assert run.step == 2 and run.seconds == 4.0
