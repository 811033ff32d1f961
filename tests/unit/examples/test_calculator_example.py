"""The agent of the quickstart: its graph, its reward, its tasks, its settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage

from agent_lightning.records import Task
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.tasks import check_disjoint, drawn, read_tasks
from examples.calculator import agent, tasks
from examples.calculator.reward import RIGHT_NUMBERS, RIGHT_RESULT, SOLVED, VALID, reward

FOLDER = Path(agent.__file__).parent
QUESTION = "Tom has 24 pens and gets 31 more. How many pens does Tom have?"


class Scripted:
    """Says what it was told to say, one line a call."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.seen: list[list[AnyMessage]] = []

    def invoke(self, messages: list[AnyMessage]) -> AIMessage:
        self.seen.append(messages)
        return AIMessage(self.lines.pop(0))


def ran(monkeypatch: pytest.MonkeyPatch, *lines: str) -> tuple[dict[str, Any], Scripted]:
    model = Scripted(*lines)
    monkeypatch.setattr(agent, "ChatOpenAI", lambda **_: model)
    return agent.build().invoke({"question": QUESTION}), model


def paid(monkeypatch: pytest.MonkeyPatch, *lines: str) -> float:
    task = Task(id="t", input={"question": QUESTION}, meta={"answer": 55})
    return reward(task, ran(monkeypatch, *lines)[0], None)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("24 + 31", "55"),
        ("9*6-4", "50"),
        ("7/2", "3.5"),
        ("-3 * (2 + 1)", "-9"),
        ("2 ** 3", "error"),
        ("1/0", "error"),
        ("__import__('os')", "error"),
        ("24 pens", "error"),
        ("", "error"),
        ("(" * 500, "error"),
    ],
)
def test_the_calculator_does_arithmetic_and_nothing_else(expression: str, value: str):
    assert agent.calculate(expression) == value


def test_the_graph_goes_to_the_calculator_and_back_until_it_answers(monkeypatch: pytest.MonkeyPatch):
    result, model = ran(monkeypatch, "calc: 24 + 31 ", "answer: 55")
    assert [str(m.content) for m in result["messages"]] == [QUESTION, "calc: 24 + 31 ", "result: 55", "answer: 55"]
    first, second = model.seen
    assert second[: len(first)] == first  # the second call extends the first: one trajectory, one prefix


def test_a_model_that_never_answers_ends(monkeypatch: pytest.MonkeyPatch):
    result, model = ran(monkeypatch, *["calc: 1 + 1"] * agent.MAX_TURNS)
    assert len(model.seen) == agent.MAX_TURNS and result["messages"][-1].content == "calc: 1 + 1"


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("calc: 24 + 31", "answer: 55"), SOLVED),
        (("calc: 31+24", "answer: 55.0"), SOLVED),
        (("calc: 24 - 31", "calc: 24 + 31", "answer: 55"), SOLVED),
        (("calc: 24 + 31", "answer: 54"), RIGHT_RESULT),
        (("calc: 24 + 31", "it is 55 pens"), RIGHT_RESULT),
        (("calc: 24 - 31", "answer: 55"), RIGHT_NUMBERS),  # a right guess beside a wrong result
        (("calc: 24 * 3", "answer: 55"), VALID),
        (("answer: 55",), 0.0),
        (("calc: pens", "answer: 55"), 0.0),
    ],
)
def test_only_a_calculated_answer_is_paid_in_full(
    monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], wanted: float
):
    assert paid(monkeypatch, *lines) == wanted


def test_the_files_are_what_the_generator_writes(tmp_path: Path):
    tasks.write(tmp_path)
    for split in ("train", "val", "test"):
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (FOLDER / f"tasks/{split}.jsonl").read_bytes()


def test_no_phrasing_and_no_input_is_in_two_splits_and_one_kind_is_never_trained():
    shown = {
        split: {text for kinds in tasks.PHRASINGS.values() for text in kinds.get(split, ())}
        for split in ("train", "val", "test")
    }
    assert not (shown["train"] & shown["val"] or shown["train"] & shown["test"] or shown["val"] & shown["test"])
    splits = {split: read_tasks(FOLDER / f"tasks/{split}.jsonl", split) for split in shown}  # type: ignore[arg-type]
    check_disjoint(splits)
    kinds = {split: {task.meta["kind"] for task in held} for split, held in splits.items()}
    assert kinds["test"] - kinds["train"] == {"add_sub"} and kinds["val"] == kinds["train"]
    measured = [task for task in splits["test"] if not task.meta["unseen_kind"]]
    assert len(measured) >= 96


def test_answers_of_the_tasks_are_what_their_numbers_give():
    """The validation phrasings name their numbers in the order in which they are calculated with."""
    forms = {
        "add": "{0}+{1}", "sub": "{0}-{1}", "mul": "{0}*{1}", "div": "{0}/{1}", "mul_add": "{0}*{1}+{2}",
        "mul_sub": "{0}*{1}-{2}",
    }  # fmt: skip
    for line in (FOLDER / "tasks/val.jsonl").read_text().splitlines():
        row = json.loads(line)
        numbers = re.findall(r"\d+", row["input"]["question"])
        assert agent.calculate(forms[row["meta"]["kind"]].format(*numbers)) == str(row["meta"]["answer"])


def test_the_settings_are_accepted_and_every_step_sees_every_kind():
    config = TrainConfig.read(file=FOLDER / "lightning.toml", env={})
    held = read_tasks(FOLDER / "tasks/train.jsonl", "train")
    for step in (0, 1, 59):
        chosen = drawn(held, seed=config.loop.order_seed, step=step, count=config.loop.tasks_per_step)
        assert len({task.meta["kind"] for task in chosen}) == 6
