"""Where a run stands: what a checkpoint must remember beside the weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_lightning.learner.schedule import Schedule
from agent_lightning.records import UpdateReport
from agent_lightning.trainer.config import LoopConfig
from agent_lightning.trainer.folder import trainer_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    schedule: Schedule
    step: int = 0  # trainer steps finished
    version: int = 0  # policy version
    trajectories: int = 0  # rewarded rollouts collected so far
    seconds: float = 0.0  # of training so far, over all processes
    best_reward: float | None = None  # mean validation reward of the best checkpoint
    best_step: int = 0

    def over(self, loop: LoopConfig) -> bool:
        return self.step >= loop.total_steps or (loop.time_limit is not None and self.seconds >= loop.time_limit)

    def after(self, report: UpdateReport, *, trajectories: int, seconds: float) -> Position:
        return replace(
            self,
            step=self.step + 1,
            version=report.version,
            trajectories=trajectories,
            seconds=self.seconds + seconds,
            schedule=self.schedule.stepped(trajectories) if report.applied else self.schedule,
        )

    def with_best(self, reward: float) -> Position:
        return replace(self, best_reward=reward, best_step=self.step)

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "version": self.version,
            "trajectories": self.trajectories,
            "seconds": self.seconds,
            "best_reward": self.best_reward,
            "best_step": self.best_step,
            "schedule": self.schedule.state(),
        }

    def restored(self, checkpoint: Path) -> Position:
        """This position as the checkpoint remembers it. Raises CheckpointError."""
        state = trainer_state(checkpoint)["position"]
        return replace(self, **{**state, "schedule": self.schedule.restored(state["schedule"])})
