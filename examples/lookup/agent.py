"""The smallest agent worth training: ask a table for a digit, then report what the table said.

The user says a digit; the model writes `c` and the digit; the table answers `=` and another digit; the model writes `a`
and that digit. Plain OpenAI SDK, two turns, 21 symbols: the tiny model learns it in seconds from nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from openai import OpenAI

TABLE = {str(digit): str((7 * digit + 3) % 10) for digit in range(10)}


def answer(question: str) -> list[str]:
    """Everything that the model wrote, turn by turn."""
    messages: list[Any] = [{"role": "user", "content": question}]
    first = _say(messages)
    if len(first) != 2 or first[0] != "c" or first[1] not in TABLE:
        return [first]
    messages += [
        {"role": "assistant", "content": first},
        {"role": "user", "content": f"={TABLE[first[1]]}"},
    ]
    return [first, _say(messages)]


@cache
def _client() -> OpenAI:
    return OpenAI(max_retries=2)


def _say(messages: list[Any]) -> str:
    reply = _client().chat.completions.create(model="gpt-4.1-mini", messages=messages, max_tokens=4)
    return reply.choices[0].message.content or ""


def reward(task: Any, result: list[str], rollout: Any) -> float:
    """A quarter for each right symbol: the call, the digit that was asked for, the report, the digit of the table."""
    digit = str(task.input)
    first = result[0]
    score = 0.25 * (first[:1] == "c") + 0.25 * (first[1:] == digit)
    if len(result) > 1:
        asked = TABLE[first[1]]
        score += 0.25 * (result[1][:1] == "a") + 0.25 * (result[1][1:] == asked)
    return score


TASKS = [{"id": f"digit-{digit}", "input": str(digit)} for digit in range(10)]
