"""How well the calculator agent did: used by training, unknown to the agent."""

from __future__ import annotations

import re
from typing import Any

from examples.calculator.agent import answer, calculation

VALID, RIGHT_NUMBERS, RIGHT_RESULT, SOLVED = 0.1, 0.2, 0.5, 1.0


def reward(task: Any, result: dict[str, Any], rollout: Any) -> float:
    """1 for the right answer if it is the calculator's last result, less for what was right on the way.

    A right number beside a wrong result earns no more than the wrong result: guessing must not pay.
    """
    messages = result["messages"]
    calls = [text for text in map(_said, messages) if text and calculation(text) is not None]
    told = [str(message.content) for message in messages[1:] if message.type == "human"]  # by the calculator
    if not told or told[-1] == "result: error":
        return 0.0
    if _same(told[-1].removeprefix("result: "), task.meta["answer"]):
        final = answer(_said(messages[-1]))
        return SOLVED if final is not None and _same(final, task.meta["answer"]) else RIGHT_RESULT
    asked = sorted(re.findall(r"\d+", task.input["question"]))
    used = sorted(re.findall(r"\d+", calculation(calls[len(told) - 1]) or ""))
    return RIGHT_NUMBERS if used == asked else VALID


def _said(message: Any) -> str:
    return str(message.content) if message.type == "ai" else ""


def _same(text: str, number: float) -> bool:
    return abs(float(text) - number) < 1e-6
