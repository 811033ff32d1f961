"""How well the calculator agent did: used by training, unknown to the agent."""

from __future__ import annotations

from typing import Any

from examples.calculator.agent import answer


def reward(task: Any, result: dict[str, Any], rollout: Any) -> float:
    """1 for the right answer that the calculator has computed; small credit for steps on the way.

    An answer that did not come out of the calculator earns nothing more than the call did: guessing must not pay.
    """
    messages = result["messages"]
    told = [str(message.content) for message in messages[1:] if message.type == "human"]  # by the calculator
    valid = [text.removeprefix("result: ") for text in told if text != "result: error"]
    if not valid:
        return 0.0
    computed = _same(valid[-1], task.meta["answer"])
    final = answer(str(messages[-1].content)) if messages[-1].type == "ai" else None
    if computed and final is not None and _same(final, task.meta["answer"]):
        return 1.0
    return 0.4 if computed else 0.1


def _same(text: str, number: float) -> bool:
    return abs(float(text) - number) < 1e-6
