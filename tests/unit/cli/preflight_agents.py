"""Agents and rewards that a preflight must judge; named in settings files of the tests."""

from __future__ import annotations

from typing import Any

from examples.lookup.agent import answer
from showing_cases import graded

agent, varied = answer, graded


def silent(question: str) -> list[str]:
    """Answers without any model."""
    return [question]


def constant(task: Any, result: Any, rollout: Any) -> float:
    return 0.25


def not_a_number(task: Any, result: Any, rollout: Any) -> float:
    return float("nan")


def wordy(task: Any, result: Any, rollout: Any) -> str:
    return "good"


def raising(task: Any, result: Any, rollout: Any) -> float:
    raise KeyError("answer")
