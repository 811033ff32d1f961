"""A reward: a finite number for a rollout, a step or a component."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agent_lightning.errors import RewardError

Target = Literal["rollout", "step", "component"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """Within an attempt the latest value of a part (name, target, target_id) wins."""

    id: str  # minted by the sender, so that sending twice is harmless
    rollout_id: str
    attempt_id: str
    name: str  # the part; a plain float becomes the part "reward"
    value: float  # finite
    target: Target = "rollout"
    target_id: str = ""  # call id of a step, path of a component, "" for the rollout
    source: str = "agent"  # agent, reward_fn, judge, feedback
    created_at: float = 0.0  # Unix seconds
    stale: bool = False  # came after the rollout was frozen into a batch or after its deadline

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not math.isfinite(self.value):
            raise RewardError(
                f"reward {self.name!r} of rollout {self.rollout_id} is {self.value!r}: a finite number is wanted; "
                "return None for 'unknown'"
            )
