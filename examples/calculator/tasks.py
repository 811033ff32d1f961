"""Word problems for the calculator agent: `python -m examples.calculator.tasks OUT` writes train, val and test files.

Six kinds of problem are trained, six phrasings each; a seventh (`add_sub`) appears in the test file alone. Validation and test use
phrasings that training never shows, and each split has phrasings of its own.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

NAMES = ("Tom", "Mia", "Ben", "Lena", "Omar", "Ruth", "Ivan", "Sara")
THINGS = ("apples", "stamps", "coins", "books", "cards", "marbles", "shells", "tickets")

# kind -> split -> phrasings; {a} {b} {c} are numbers, {n} a name, {t} things
PHRASINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "add": {
        "train": (
            "{n} has {a} {t} and gets {b} more. How many {t} does {n} have?",
            "There are {a} {t} on one shelf and {b} on another. How many {t} are there in all?",
            "{n} finds {a} {t} today and {b} tomorrow. How many {t} is that together?",
            "{n} reads {a} pages on Monday and {b} on Tuesday. How many pages are that?",
            "A box has {a} red {t} and {b} blue ones. How many {t} are in the box?",
            "{n} earned {a} points, then {b} points. How many points in total?",
        ),
        "val": (
            "{n} put {a} {t} in a bag that already held {b}. How many {t} are in the bag?",
            "{n} saw {a} {t} in one room and {b} in the next. How many {t} did {n} see?",
        ),
        "test": (
            "A shop sold {a} {t} in May and {b} in June. What is the total number of {t} sold?",
            "{n} picks {a} {t} in the morning and {b} in the evening. How many {t} does {n} pick in all?",
            "One class brings {a} {t}, another class brings {b}. How many {t} do the classes bring together?",
        ),
    },
    "sub": {
        "train": (
            "{n} has {a} {t} and gives away {b}. How many {t} are left?",
            "Of {a} {t}, {b} are broken. How many {t} are whole?",
            "{n} had {a} {t} and lost {b}. How many {t} remain?",
            "{n} has {a} {t} and sells {b} of them. How many {t} does {n} keep?",
            "There were {a} {t} on the table and {b} were taken away. How many are still there?",
            "{n} wants {a} {t} but owns only {b}. How many more {t} does {n} want?",
        ),
        "val": (
            "A jar held {a} {t}. {n} took out {b}. How many {t} stay in the jar?",
            "{n} carries {a} {t} and drops {b}. How many {t} does {n} still carry?",
        ),
        "test": (
            "{n} needs {a} {t} and has {b}. How many {t} are missing?",
            "{n} had {a} {t} and used {b}. How many {t} does {n} still have?",
            "From a pile of {a} {t}, {n} throws {b} away. How many {t} are left in the pile?",
        ),
    },
    "mul": {
        "train": (
            "Each bag holds {b} {t}. How many {t} are in {a} bags?",
            "{n} buys {a} boxes with {b} {t} each. How many {t} is that?",
            "There are {a} rows of {b} {t}. How many {t} are there?",
            "A box holds {b} {t}. How many {t} do {a} boxes hold?",
            "{n} reads {b} pages a day. How many pages does {n} read in {a} days?",
            "{a} friends have {b} {t} each. How many {t} do they have together?",
        ),
        "val": (
            "{a} children bring {b} {t} each. How many {t} do they bring?",
            "There are {b} {t} in a pack. How many {t} are in {a} packs?",
        ),
        "test": (
            "{n} collects {b} {t} every day for {a} days. How many {t} does {n} collect?",
            "One shelf has room for {b} {t}. How many {t} fit on {a} shelves?",
            "{a} trays carry {b} {t} each. How many {t} do the trays carry?",
        ),
    },
    "div": {
        "train": (
            "{n} shares {a} {t} among {b} friends. How many {t} does each friend get?",
            "{a} {t} are packed in {b} equal boxes. How many {t} are in a box?",
            "{a} {t} are split evenly into {b} piles. How many {t} are in each pile?",
            "{n} puts {a} {t} into {b} bags, the same number in each. How many {t} are in a bag?",
            "{b} children get {a} {t} in equal shares. How many {t} are there for each child?",
            "{n} reads {a} pages in {b} days, the same number each day. How many pages a day is that?",
        ),
        "val": (
            "{n} lays {a} {t} in {b} equal rows. How many {t} are in one row?",
            "{n} sorts {a} {t} into {b} equal groups. How many {t} are in one group?",
        ),
        "test": (
            "{b} teams get {a} {t} in equal parts. How many {t} are there for one team?",
            "{n} deals {a} {t} to {b} players, the same number to each. How many {t} does a player get?",
            "{a} {t} fill {b} equal bags. How many {t} does one bag hold?",
        ),
    },
    "mul_add": {
        "train": (
            "{n} has {a} bags of {b} {t} and {c} more {t}. How many {t} are there in all?",
            "There are {a} boxes with {b} {t} each and {c} loose {t}. How many {t} are there?",
            "{n} buys {a} packs of {b} {t} and then {c} single {t}. How many {t} is that?",
            "{n} reads {b} pages a day for {a} days and {c} pages on Sunday. How many pages are that?",
            "{a} friends bring {b} {t} each and {n} brings {c}. How many {t} do they bring?",
            "There are {a} rows of {b} {t} and {c} {t} beside them. How many {t} are there in all?",
        ),
        "val": (
            "{a} shelves hold {b} {t} each, and {c} {t} lie on the floor. How many {t} are there?",
            "{n} gets {b} {t} a week for {a} weeks and {c} {t} as a gift. How many {t} does {n} get?",
        ),
        "test": (
            "{n} earns {b} {t} a day for {a} days and a bonus of {c} {t}. How many {t} does {n} earn?",
            "{n} fills {a} albums with {b} {t} each and keeps {c} {t} in a drawer. How many {t} does {n} have?",
            "A shop gets {a} crates of {b} {t} and {c} {t} more. How many {t} does the shop get?",
        ),
    },
    "mul_sub": {
        "train": (
            "{n} has {a} bags of {b} {t} and gives away {c}. How many {t} are left?",
            "There are {a} boxes with {b} {t} each, but {c} {t} are broken. How many {t} are whole?",
            "{n} buys {a} packs of {b} {t} and loses {c}. How many {t} remain?",
            "{n} wins {b} {t} a day for {a} days, then loses {c}. How many {t} does {n} have?",
            "{a} friends bring {b} {t} each and eat {c}. How many {t} are left?",
            "There are {a} rows of {b} {t}. {n} takes away {c}. How many {t} remain?",
        ),
        "val": (
            "{a} shelves hold {b} {t} each. {n} sells {c} of the {t}. How many {t} stay?",
            "{n} gets {b} {t} a week for {a} weeks and loses {c}. How many {t} does {n} have then?",
        ),
        "test": (
            "{n} makes {b} {t} a day for {a} days, then uses {c}. How many {t} does {n} still have?",
            "A shop has {a} crates of {b} {t} and sells {c}. How many {t} are left in the shop?",
            "{n} fills {a} albums with {b} {t} each and then removes {c}. How many {t} stay in the albums?",
        ),
    },
    "add_sub": {
        "test": (
            "{n} has {a} {t}, finds {b} more and gives away {c}. How many {t} are left?",
            "A shop had {a} {t}, got {b} new ones and sold {c}. How many {t} are in the shop now?",
        ),
    },
}


def numbers(kind: str, chance: random.Random) -> tuple[int, int, int, int]:
    """a, b, c and the answer; all whole and not negative."""
    small, large = chance.randint(2, 12), chance.randint(11, 98)
    match kind:
        case "add":
            b = chance.randint(11, 98)
            return large, b, 0, large + b
        case "sub":
            b = chance.randint(2, large - 1)
            return large, b, 0, large - b
        case "mul":
            b = chance.randint(3, 25)
            return small, b, 0, small * b
        case "div":
            each = chance.randint(3, 25)
            return small * each, small, 0, each
        case "mul_add":
            b, c = chance.randint(3, 25), chance.randint(2, 40)
            return small, b, c, small * b + c
        case "mul_sub":
            b = chance.randint(3, 25)
            c = chance.randint(1, small * b - 1)
            return small, b, c, small * b - c
        case _:
            b = chance.randint(11, 60)
            c = chance.randint(2, large + b - 1)
            return large, b, c, large + b - c


def problem(kind: str, split: str, chance: random.Random) -> dict[str, Any]:
    a, b, c, result = numbers(kind, chance)
    text = chance.choice(PHRASINGS[kind][split]).format(a=a, b=b, c=c, n=chance.choice(NAMES), t=chance.choice(THINGS))
    return {"input": {"question": text}, "meta": {"answer": result, "kind": kind, "unseen_kind": kind == "add_sub"}}


def make(split: str, count: int, seed: int = 7) -> list[dict[str, Any]]:
    """`count` different problems, the kinds of the split in turn."""
    chance = random.Random(f"{seed}/{split}")
    kinds = [kind for kind, splits in PHRASINGS.items() if split in splits and kind != "add_sub"]
    made, seen = [], set()
    while len(made) < count:
        row = problem(kinds[len(made) % len(kinds)], split, chance)
        if row["input"]["question"] not in seen:
            seen.add(row["input"]["question"])
            made.append({"id": f"{split}-{len(made):04d}", "split": split, **row})
    return made


def unseen_kind(count: int, seed: int = 7) -> list[dict[str, Any]]:
    chance = random.Random(f"{seed}/unseen")
    return [
        {"id": f"unseen-{place:04d}", "split": "test", **problem("add_sub", "test", chance)} for place in range(count)
    ]


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = {"train": make("train", 1200), "val": make("val", 60), "test": make("test", 120) + unseen_kind(24)}
    for split, problems in rows.items():
        lines = "".join(json.dumps(row) + "\n" for row in problems)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
