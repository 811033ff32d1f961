"""What a reward function may return, and what becomes of it. Standard library only: it runs in the agent's process."""

from __future__ import annotations

import inspect
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_lightning.errors import RewardError

LONGEST_NAME = 200  # characters of a part's name
RewardFunction = Callable[..., Any]  # (task, result, rollout) -> float | dict[str, float] | None, may be async


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """What a reward function may know of the rollout it judges."""

    id: str
    attempt: int  # 1 for the first
    mode: str  # train, val, test or live
    group_id: str
    sibling: int
    calls: int  # LLM calls of trained components so far
    seconds: float  # time that the agent took


def parts_of(value: Any, *, source: str = "reward function") -> dict[str, float]:
    """{part: value} of what a reward function returned; {} for None. Raises RewardError for everything else."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {_name(name, source): _number(part, f"{source}, part {name!r},") for name, part in value.items()}
    return {"reward": _number(value, source)}


def _name(name: Any, source: str) -> str:
    text = str(name)
    if not 1 <= len(text) <= LONGEST_NAME:
        raise RewardError(
            f"the {source} returned a part whose name has {len(text)} characters ({text[:40]!r}): wanted 1 to {LONGEST_NAME}"
        )
    return text


def _number(value: Any, source: str) -> float:
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        raise RewardError(
            f"the {source} returned {value!r} ({type(value).__name__}): a number, a dict of numbers or None is wanted"
        )
    if not math.isfinite(value):
        raise RewardError(f"the {source} returned {value!r}: a finite number is wanted; return None for 'unknown'")
    return float(value)


def judge(function: RewardFunction, task: Any, result: Any, view: RolloutView) -> Any:
    """What the function gives, an awaitable of it for an async one. Its own exceptions become RewardError."""
    try:
        return function(task, result, view)
    except Exception as error:
        raise RewardError(
            f"the reward function {label(function)} raised {type(error).__name__}: {error} for task {task.id!r}"
        ) from error


def label(function: RewardFunction) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def check_signature(function: RewardFunction) -> None:
    """Refuse before anything runs what cannot take (task, result, rollout). Raises RewardError."""
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError as error:
        raise RewardError(
            f"the reward function {label(function)} must take (task, result, rollout): {error}"
        ) from error
    except ValueError:  # a builtin without a signature
        return


def messages(parts: Mapping[str, float], *, source: str) -> list[dict[str, Any]]:
    """Rewards of the rollout as they travel (wire/protocol.py)."""
    return [
        {
            "id": f"reward-{uuid.uuid4().hex}",
            "name": name,
            "value": value,
            "target": "rollout",
            "target_id": "",
            "source": source,
            "created_at": time.time(),
        }
        for name, value in parts.items()
    ]
