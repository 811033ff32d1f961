"""Tasks: read from JSON lines, split, and drawn in an order that a seed and a step alone decide."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_lightning.errors import TaskError
from agent_lightning.records import Split, Task


def read_tasks(path: Path, split: Split) -> list[Task]:
    """One task a line: {"input": ..., "id"?: text, "meta"?: {}}. Raises TaskError that names file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            rows.append(_row(line, f"{path}:{number}"))
    return as_tasks(rows, split, source=str(path))


def _row(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TaskError(f"{where}: this line is not JSON ({error}): {line[:80]!r}") from None
    if not isinstance(row, dict) or "input" not in row:
        raise TaskError(f'{where}: wanted an object with the key "input", got {line[:80]!r}')
    unknown = set(row) - {"id", "input", "meta", "split"}
    if unknown:
        raise TaskError(
            f'{where}: unknown keys {", ".join(sorted(unknown))}; what only the reward needs goes in "meta"'
        )
    if not isinstance(row.get("meta", {}), dict):
        raise TaskError(f'{where}: "meta" is {row["meta"]!r}, an object is wanted')
    return row


def as_tasks(rows: Iterable[Any], split: Split, *, source: str = "the list of tasks") -> list[Task]:
    """Tasks, mappings with an "input", or bare inputs; ids are made where none is given. Raises TaskError."""
    made: list[Task] = []
    seen: set[str] = set()
    for place, row in enumerate(rows):
        task = _task(row, f"{split}-{place:04d}", split)
        if task.id in seen:
            raise TaskError(f"{source}: the id {task.id!r} is there twice; ids must differ within a split")
        seen.add(task.id)
        made.append(task)
    if not made:
        raise TaskError(f"{source} holds no task: at least one is wanted for the split {split!r}")
    return made


def _task(row: Any, id: str, split: Split) -> Task:
    if isinstance(row, Task):
        return replace(row, split=split)
    if isinstance(row, Mapping) and "input" in row:
        return Task(id=str(row.get("id", id)), input=row["input"], split=split, meta=dict(row.get("meta") or {}))
    return Task(id=id, input=row, split=split)


def check_disjoint(splits: Mapping[str, Sequence[Task]]) -> None:
    """Refuse a task that stands in two splits: what chooses a checkpoint must not measure it."""
    owner: dict[str, str] = {}
    for split, tasks in splits.items():
        for key in {json.dumps(task.input, sort_keys=True, default=str) for task in tasks}:
            if key in owner:
                raise TaskError(f"the input {key[:100]} is in the splits {owner[key]!r} and {split!r}: remove one")
            owner[key] = split


def drawn(tasks: Sequence[Task], *, seed: int, step: int, count: int) -> list[Task]:
    """The tasks of one step: a new shuffle each epoch, epochs joined end to end; `count` different ones if there are.

    A pure function of (seed, step), so that a resumed run goes on with the order of the undisturbed one.
    """
    count = min(count, len(tasks))
    first = step * count
    picked = []
    for place in range(first, first + count):
        epoch, offset = divmod(place, len(tasks))
        picked.append(_epoch(len(tasks), seed, epoch)[offset])
    return [tasks[index] for index in dict.fromkeys(picked)]


def _epoch(size: int, seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
