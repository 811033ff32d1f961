"""Tasks: read from JSON lines, split, and drawn in an order that a seed and a step alone decide."""

from __future__ import annotations

import json
import math
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
        # JSON strings may hold line separators of other kinds than the one that ends a line of the file
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}") from error
    numbered = [(f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    rows = [_row(line, where, split) for where, line in numbered]
    return as_tasks(rows, split, source=str(path), places=[where for where, _ in numbered])


def _row(line: str, where: str, split: Split) -> Mapping[str, Any]:
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
    if row.get("split", split) != split:
        raise TaskError(f'{where}: "split" is {row["split"]!r}, but the file holds the split {split!r}: move the line')
    return row


def as_tasks(
    rows: Iterable[Any], split: Split, *, source: str = "the list of tasks", places: Sequence[str] | None = None
) -> list[Task]:
    """Tasks, mappings with an "input", or bare inputs; ids are made where none is given. Raises TaskError.

    `places` says where each row stands, for messages; None: its number in `source`.
    """
    made: list[Task] = []
    seen: dict[str, str] = {}
    for number, row in enumerate(rows):
        task = _task(row, f"{split}-{number:04d}", split)
        where = places[number] if places else f"task {number + 1} of {source}"
        if task.id in seen:
            raise TaskError(
                f"{where}: the id {task.id!r} is there twice, first at {seen[task.id]}; ids must differ within a split"
            )
        seen[task.id] = where
        made.append(task)
    if not made:
        raise TaskError(f"{source} holds no task: at least one is wanted for the split {split!r}")
    return made


def _task(row: Any, id: str, split: Split) -> Task:
    if isinstance(row, Task):
        return replace(row, split=split)
    if isinstance(row, Mapping) and "input" in row:
        own = row.get("id")
        name = id if own is None else str(own)
        return Task(id=name, input=row["input"], split=split, meta=dict(row.get("meta") or {}))
    return Task(id=id, input=row, split=split)


def check_disjoint(splits: Mapping[str, Sequence[Task]]) -> None:
    """Refuse a task that stands in two splits: what chooses a checkpoint must not measure it."""
    owner: dict[str, str] = {}
    for split, tasks in splits.items():
        for key in {json.dumps(task.input, sort_keys=True, default=str) for task in tasks}:
            if key in owner:
                raise TaskError(f"the input {key[:100]} is in the splits {owner[key]!r} and {split!r}: remove one")
            owner[key] = split


def drawn(tasks: Sequence[Task], *, seed: int | None, step: int, count: int) -> list[Task]:
    """The tasks of one step: a new shuffle each epoch, epochs joined end to end; `count` different ones, or all.

    A pure function of (seed, step), so that a resumed run goes on with the order of the undisturbed one. Without a
    seed the given order is kept.
    """
    count = min(count, len(tasks))
    epoch, offset = divmod(step * count, len(tasks))
    order = _epoch(len(tasks), seed, epoch, count)
    picked = order[offset : offset + count]
    if len(picked) < count:
        picked += _epoch(len(tasks), seed, epoch + 1, count)[: count - len(picked)]
    return [tasks[index] for index in picked]


def _epoch(size: int, seed: int | None, epoch: int, count: int) -> list[int]:
    """One epoch's order of `size` tasks, of which each step takes `count`.

    A step that lies across two epochs must not take a task twice: what it took from the end of one is moved behind
    what it takes from the beginning of the next. So an order hangs on the one before, back to an epoch that began
    with a step of its own.
    """
    order: list[int] = []
    for number in range(epoch - epoch % (count // math.gcd(size, count)), epoch + 1):
        before = number * size % count  # of the step that lies across, how many came from the epoch before
        taken = set(order[len(order) - before :])
        order = list(range(size))
        if seed is not None:
            random.Random(f"{seed}/{number}").shuffle(order)
        rest = [index for index in order if index not in taken][: count - before] if taken else []
        first = set(rest)
        order = rest + [index for index in order if index not in first]
    return order
