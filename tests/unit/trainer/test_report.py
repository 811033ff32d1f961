"""report.html: complete, self-contained, and harmless whatever agents write."""

from __future__ import annotations

import asyncio
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agent_lightning.errors import CheckpointError, TrainingStopped
from agent_lightning.store.view import StoreView
from agent_lightning.train import Trainer
from agent_lightning.trainer import report
from agent_lightning.trainer.charts import Series, bars, lines
from agent_lightning.trainer.examples import chosen_tasks
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.overview import overview
from agent_lightning.trainer.wording import Wording
from examples.lookup.agent import answer
from showing_cases import HOSTILE, TRAINED, graded, hand_made, trained_run


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(folder: RunFolder) -> Page:
    assert report.write(folder) == folder.report
    return Page(folder.report.read_text(encoding="utf-8"))


def test_what_agents_write_never_becomes_markup(tmp_path: Path) -> None:
    page = page_of(hand_made(tmp_path))
    assert not {"script", "img", "iframe", "link", "object", "a"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    assert page.text.count("<script>alert(1)</script>") >= 4  # as text: input, kind, component, alert
    assert "{{ 7 * 7 }}" in page.text


def test_text_is_escaped_too_when_only_the_bodies_of_calls_are_left(tmp_path: Path) -> None:
    folder = hand_made(tmp_path)
    with StoreView(folder.store) as view:
        html = report.render(view, overview(folder, view), Wording(None), now=0.0)
    assert "script" not in Page(html).tags
    assert "a9" in Page(html).text


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = page_of(hand_made(tmp_path))
    html = (tmp_path / "made" / "report.html").read_text(encoding="utf-8")
    assert "url(" not in html and "@import" not in html and "http://" not in html and "https://" not in html
    assert page.tags.count("svg") >= 5


def test_the_page_tells_what_changed(tmp_path: Path) -> None:
    text = " ".join(page_of(hand_made(tmp_path)).text.split())
    assert "0% → 100%" in text and "n = 1" in text
    assert "before (step 0): reward 0" in text and "after (step 2): reward 1" in text
    assert "c1<end>" in text and "a9<end>" in text
    assert "agent-lightning export" in text and "agent-lightning show made.step-000000.digit-9.0" in text
    assert "a-secret-key" not in text


def test_an_interrupted_run_has_a_report_of_its_validations(tmp_path: Path) -> None:
    text = " ".join(page_of(hand_made(tmp_path, finished=False)).text.split())
    assert "0% → 50%" in text and "validation, greedy" in text
    assert "agent-lightning train --resume" in text


def test_a_report_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hand_made(tmp_path)
    report.write(folder)
    before = folder.report.read_text(encoding="utf-8")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space"):
        report.write(folder)
    assert folder.report.read_text(encoding="utf-8") == before


def test_a_real_run_ends_with_a_report() -> None:
    text = Page(trained_run().report.read_text(encoding="utf-8")).text
    assert "finished" in text and "2 of 2" in text and "Credit by step" in text


def test_a_run_that_is_cancelled_or_stopped_has_a_report_too(tmp_path: Path) -> None:
    working: list[asyncio.Task[Any]] = []

    def cancel(kind: str, step: int, body: Any) -> None:
        if kind == "step":
            working[0].cancel()

    async def interrupted() -> RunFolder:
        config = {**TRAINED, "runs": str(tmp_path), "total_steps": 50}
        trainer = Trainer(answer, reward=graded, config=config, run="cancelled", listeners=[cancel])
        from agent_lightning.train import splits_of

        working.append(asyncio.ensure_future(trainer._fit(splits_of(["1", "2", "3"], ["4"]))))
        with pytest.raises(asyncio.CancelledError):
            await working[0]
        return trainer.folder

    cancelled = asyncio.run(interrupted())
    assert "agent-lightning train --resume" in cancelled.report.read_text(encoding="utf-8")
    config = {**TRAINED, "runs": str(tmp_path), "total_steps": 50}
    stopped = Trainer(answer, reward=lambda task, result, rollout: 0.5, config=config, run="stopped")
    with pytest.raises(TrainingStopped):
        stopped.fit(["1", "2", "3"], ["4"])
    assert "stopped: the reward has been 0.5" in stopped.folder.report.read_text(encoding="utf-8")


def test_tasks_that_turned_to_success_are_shown_first_and_kinds_vary() -> None:
    before = {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.4, "e": 0.0}
    after = {"a": 1.0, "b": 0.5, "c": 1.0, "d": 1.0, "e": 1.0}
    kinds = {"a": "add", "b": "mul", "c": "mul", "d": "add", "e": "add"}
    assert chosen_tasks(before, after, success=1.0, kinds=kinds, count=3) == ["a", "e", "b"]
    assert chosen_tasks(before, after, success=1.0, kinds={"c": "mul"}, count=3) == ["c"]


def test_few_rewards_get_a_bar_each_and_many_share_bins() -> None:
    assert report.binned([0.0, 0.0, 0.1], [1.0, 0.1]) == (["0", "0.1", "1"], [[2, 1, 0], [0, 1, 1]])
    labels, (before, after) = report.binned([place / 50 for place in range(50)], [0.99] * 7)
    assert len(labels) == 10 and sum(before) == 50 and after[-1] == 7


def test_intervals_are_wilsons() -> None:
    assert report.wilson(0.8, 100) == pytest.approx((0.7112, 0.8666), abs=1e-4)
    assert report.wilson(0.0, 10)[0] == 0.0 and report.wilson(0.0, 0) == (0.0, 1.0)


def test_charts_take_any_values_and_escape_names() -> None:
    assert lines("empty", [Series(name="none", points=[])]) == ""
    for values in ([0.0], [5.0, 5.0], [-3.0, -1.0], [1e-9, 2e-9], [0.0, 1e7]):
        svg = lines(HOSTILE, [Series(name=HOSTILE, points=list(enumerate(values)))])
        assert "<script" not in svg and "nan" not in svg and svg.count('class="hit"') == len(values)
    svg = bars(HOSTILE, [HOSTILE, "b"], [Series(name=HOSTILE, points=[(0, 1.0), (1, -2.0)])], unit=HOSTILE)
    assert "<script" not in svg and svg.count("<rect") == 2
