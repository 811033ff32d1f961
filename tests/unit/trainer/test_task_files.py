"""Tasks: broken lines are named, splits stay apart, the order of training is a function of seed and step."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.errors import TaskError
from agent_lightning.records import Task
from agent_lightning.train import splits_of
from agent_lightning.trainer.tasks import as_tasks, drawn, read_tasks


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json", "not JSON"),
        ("[1]", 'the key "input"'),
        ('{"inputs": 1}', 'the key "input"'),
        ('{"input": 1, "answer": 2}', "unknown keys answer"),
        ('{"input": 1, "meta": 3}', '"meta" is 3'),
    ],
)
def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path, line: str, reason: str):
    path = tmp_path / "train.jsonl"
    path.write_text('{"input": "fine"}\n\n' + line + "\n")
    with pytest.raises(TaskError, match=reason) as caught:
        read_tasks(path, "train")
    assert f"{path}:3" in str(caught.value)


def test_an_empty_or_missing_file_is_named(tmp_path: Path):
    with pytest.raises(TaskError, match="cannot be read"):
        read_tasks(tmp_path / "none.jsonl", "train")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskError, match="holds no task"):
        read_tasks(tmp_path / "empty.jsonl", "train")


def test_tasks_may_be_records_mappings_or_bare_inputs():
    made = as_tasks([Task(id="a", input=1), {"input": 2, "meta": {"x": 3}}, "three"], "val")
    assert [(task.id, task.input, task.split) for task in made] == [
        ("a", 1, "val"),
        ("val-0001", 2, "val"),
        ("val-0002", "three", "val"),
    ]


def test_the_same_id_twice_is_refused():
    with pytest.raises(TaskError, match="there twice"):
        as_tasks([{"id": "a", "input": 1}, {"id": "a", "input": 2}], "train")


def test_an_input_in_two_splits_is_refused():
    with pytest.raises(TaskError, match="splits 'train' and 'test'"):
        splits_of(["one", "two"], ["three"], ["two"])


@given(st.integers(1, 30), st.integers(1, 10), st.integers(0, 5))
def test_every_task_comes_once_an_epoch(size: int, count: int, seed: int):
    tasks = [Task(id=str(i), input=i) for i in range(size)]
    count = min(count, size)
    steps = [drawn(tasks, seed=seed, step=step, count=count) for step in range(size)]
    seen = [task.id for task in itertools.chain(*steps)]
    if size % count == 0:
        assert sorted(seen[:size]) == sorted(task.id for task in tasks)
    assert drawn(tasks, seed=seed, step=3, count=count) == drawn(tasks, seed=seed, step=3, count=count)
    assert all(len({task.id for task in step}) == len(step) for step in steps)
