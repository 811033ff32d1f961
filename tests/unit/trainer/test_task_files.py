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


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 5))
def test_every_task_comes_once_an_epoch_and_every_step_has_different_ones(size: int, count: int, seed: int):
    tasks = [Task(id=str(i), input=i) for i in range(size)]
    steps = [drawn(tasks, seed=seed, step=step, count=count) for step in range(2 * size)]
    assert all(len({task.id for task in step}) == min(count, size) for step in steps)
    seen = [task.id for task in itertools.chain(*steps)]
    for begin in range(0, len(seen) - size + 1, size):
        assert sorted(seen[begin : begin + size]) == sorted(task.id for task in tasks)
    assert drawn(tasks, seed=seed, step=3, count=count) == steps[3] if size > 1 else True


def test_without_a_seed_the_order_of_the_file_is_kept_epoch_after_epoch():
    tasks = [Task(id=str(i), input=i) for i in range(6)]
    steps = [[task.id for task in drawn(tasks, seed=None, step=step, count=3)] for step in range(3)]
    assert steps == [["0", "1", "2"], ["3", "4", "5"], ["0", "1", "2"]]


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"input": "one\u2028two\u0085three"}\r\n{"input": "four"}\n', encoding="utf-8")
    assert [task.input for task in read_tasks(path, "train")] == ["one\u2028two\u0085three", "four"]


def test_the_same_id_twice_in_a_file_names_both_lines(tmp_path: Path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"id": "a", "input": 1}\n\n{"id": "a", "input": 2}\n')
    with pytest.raises(TaskError, match="'a' is there twice") as caught:
        read_tasks(path, "train")
    assert str(caught.value).startswith(f"{path}:3:") and f"{path}:1;" in str(caught.value)


def test_an_id_of_null_is_made(tmp_path: Path):
    path = tmp_path / "val.jsonl"
    path.write_text('{"id": null, "input": 1}\n{"id": null, "input": 2}\n{"id": 0, "input": 3}\n')
    assert [task.id for task in read_tasks(path, "val")] == ["val-0000", "val-0001", "0"]


def test_a_line_may_name_its_split_if_it_is_the_files(tmp_path: Path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"input": 1, "split": "train"}\n')
    assert read_tasks(path, "train")[0].split == "train"
    with pytest.raises(TaskError, match=r":1: \"split\" is 'train', but the file holds the split 'test'"):
        read_tasks(path, "test")
