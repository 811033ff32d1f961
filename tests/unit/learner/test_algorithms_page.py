"""docs/algorithms.md says of every algorithm what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_lightning.learner.algorithms import algorithm_of, algorithms, specific
from agent_lightning.learner.learner import LearnerConfig, settled

PAGE = (Path(__file__).resolve().parents[3] / "docs/algorithms.md").read_text(encoding="utf-8")
NAMES = [algorithm.name for algorithm in algorithms()]


def rows(head: str) -> list[list[str]]:
    """Cells of the table whose first line begins so."""
    lines = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_algorithm_is_there_with_its_papers():
    shown = {row[0].strip("`"): row[1] for row in rows("| `algorithm` |")}
    assert sorted(shown) == NAMES
    for algorithm in algorithms():
        assert set(re.findall(r"\d{4}\.\d{5}", algorithm.paper)) == set(
            re.findall(r"\d{4}\.\d{5}", shown[algorithm.name])
        )


def test_every_setting_that_not_all_use_is_there_with_those_that_do():
    seen = set[str]()
    for cell, users in rows("| settings |"):
        named = set(re.findall(r"`(\w+)`", cell))
        seen |= named
        said = set(re.findall(r"`([\w+]+)`", users)) & set(NAMES)
        said = set(NAMES) - said if users.startswith("all but") else said
        for name in named:
            assert {a.name for a in algorithms() if name in a.settings} == said, name
        if "kl_in =" in cell:
            assert {a.name for a in algorithms() if a.reward_kl} == said
    assert seen == specific()


@pytest.mark.parametrize("row", rows("| | `clip_epsilon`"), ids=lambda row: row[0])
def test_what_is_left_open_is_as_the_page_says(row: list[str]):
    algorithm = algorithm_of(row[0].strip("`"))
    config = settled(LearnerConfig(algorithm=algorithm.name), algorithm)
    own = [config.clip_epsilon, config.clip_epsilon_high, config.loss_scale, config.kl_in, config.whiten_advantages]
    assert ["" if value is None else str(value).lower() if value is True else str(value) for value in own] == row[1:]
