"""The live display: what a user reads while a training runs."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from agent_lightning.cli import display
from agent_lightning.cli.display import COLUMNS, SHOWN_STEPS, Display

FIGURES = {key: 0.25 for _, key, _ in COLUMNS}


class Watched:
    """A display on a terminal that is a text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.now = 100.0
        monkeypatch.setattr(display.time, "monotonic", lambda: self.now)
        self._console = Console(file=io.StringIO(), width=140, force_terminal=False)
        self.display = Display(console=self._console, **settings)

    def hear(self, kind: str, at: int = -1, **body: Any) -> None:
        self.display.hear(kind, at, body)

    def step(self, step: int, seconds: float = 30.0, figures: Mapping[str, float] = FIGURES) -> None:
        self.now += seconds
        self.hear("step", step, seconds=seconds, figures=figures)

    @property
    def text(self) -> str:
        with self._console.capture() as shown:
            self._console.print(self.display._rendered())
        return shown.get()


def test_the_newest_steps_with_their_figures_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch):
    watched = Watched(monkeypatch, total_steps=40)
    assert "step 0 of 40" in watched.text
    for step in range(1, SHOWN_STEPS + 4):
        watched.step(step)
    shown = watched.text
    assert "step 15 of 40, about 12 min left" in shown  # 25 steps of 30 s
    assert re.findall(r"^│ +(\d+) │ +25% │", shown, re.MULTILINE) == [str(step) for step in range(4, SHOWN_STEPS + 4)]
    assert all(name in shown for name, _, _ in COLUMNS)


def test_a_time_limit_ends_before_the_steps_do(monkeypatch: pytest.MonkeyPatch):
    watched = Watched(monkeypatch, total_steps=400, time_limit=600)
    watched.step(1, seconds=240.0)
    assert "step 1 of 400, about 6 min left" in watched.text


def test_a_resumed_run_counts_its_own_pace(monkeypatch: pytest.MonkeyPatch):
    watched = Watched(monkeypatch, total_steps=40)
    watched.step(21)
    watched.step(22)
    assert "step 22 of 40, about 9 min left" in watched.text


def test_a_figure_that_is_unknown_is_a_dash(monkeypatch: pytest.MonkeyPatch):
    watched = Watched(monkeypatch, total_steps=4)
    watched.step(1, figures={"reward.mean": 0.5})
    assert re.search(r"^│ +1 │ +- │ +0\.500 │ +- │", watched.text, re.MULTILINE)


def test_what_users_wrote_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch):
    watched = Watched(monkeypatch, total_steps=4)
    watched.hear("alert", 1, text="reward_weights[/oops] of [red]mine[/red]")
    watched.hear("note", 0, text="[/] a note")
    watched.hear("starting", text="loading [/models/x]")
    watched.hear("eval", 0, seen={"success": 0.125, "reward": 0.3})
    shown = watched.text
    for wanted in (
        "! reward_weights[/oops] of [red]mine[/red]",
        "note: [/] a note",
        "loading [/models/x]",
        "held-out success  step 0: 12%",
    ):
        assert wanted in shown


def test_progress_within_a_step_is_told(monkeypatch: pytest.MonkeyPatch):
    watched = Watched(monkeypatch, total_steps=4)
    watched.hear("progress", stage="rollouts", step=2, done=5, total=36)
    assert "rollouts of step 2" in watched.text and "5/36" in watched.text
