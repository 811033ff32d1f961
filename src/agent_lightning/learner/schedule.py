"""The learning rate: low until enough has been seen, then rising in a straight line, then constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from agent_lightning.errors import CheckpointError, SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Settings and state in one value; `stepped` and `halved` give the next one."""

    warmup_trajectories: int = 1000  # collected before the rise begins
    warmup_steps: int = 500  # optimizer steps of the rise
    warmup_learning_rate: float = 1e-6
    learning_rate: float = 5e-5
    risen: int = 0  # steps taken since the rise began
    multiplier: float = 1.0  # halved by every rollback

    def __post_init__(self) -> None:
        for name, low, high in (
            ("warmup_trajectories", 0, 1 << 40),
            ("warmup_steps", 0, 1 << 40),
            ("warmup_learning_rate", 0.0, 1.0),
            ("learning_rate", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"{name} is {value}: wanted {low} to {high}")

    def rate(self, trajectories: int) -> float:
        """Rate of the next optimizer step, `trajectories` having been collected since the run began."""
        return self._base(trajectories) * self.multiplier

    def stepped(self, trajectories: int) -> Schedule:
        """After one optimizer step that was taken at `rate(trajectories)`."""
        return replace(self, risen=self.risen + 1) if trajectories >= self.warmup_trajectories else self

    def halved(self) -> Schedule:
        return replace(self, multiplier=self.multiplier / 2)

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps; `restored` takes it up."""
        state = asdict(self)
        return {"risen": state["risen"], "multiplier": state["multiplier"]}

    def restored(self, state: Mapping[str, float]) -> Schedule:
        try:
            return replace(self, risen=int(state["risen"]), multiplier=float(state["multiplier"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the schedule's state {state!r} lacks or garbles {error}") from error

    def _base(self, trajectories: int) -> float:
        if trajectories < self.warmup_trajectories:
            return self.warmup_learning_rate
        share = min(1.0, self.risen / self.warmup_steps) if self.warmup_steps else 1.0
        return self.warmup_learning_rate + (self.learning_rate - self.warmup_learning_rate) * share
