"""What one policy lived through in one rollout, with exact tokens."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from agent_lightning.records.call import nats
from agent_lightning.records.reward import Reward
from agent_lightning.records.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One step: (state, action, reward, next_state) in token ids."""

    call_id: str
    component: str
    order: int  # admission order within the rollout
    index: int  # step index; parallel steps share it
    parent_call_id: str | None  # the step of this trajectory whose tokens the state extends
    state: array[int]  # prompt ids
    action: array[int]  # sampled ids, at least one
    logprobs: array[float]  # nats, aligned with action, under the weights and temperature that sampled
    legal_mass: array[float] = field(default_factory=nats)  # of a constrained step: Piece.legal_mass, else empty
    reward: float  # sum of this step's own parts; 0.0 when it has none
    next_state: array[int] | None  # prompt ids of the next step, None at the end
    version_from: int
    version_to: int
    temperature: float  # that was used to sample; 0.0 is greedy

    @property
    def trained_tokens(self) -> int:
        """Tokens of the action that were chosen: all but those that a grammar left no choice for."""
        return sum(mass > 0.0 for mass in self.legal_mass) if self.legal_mass else len(self.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The ordered transitions of one rollout for one policy."""

    rollout: Rollout
    policy: str
    reward: float | None  # R = sum of weight x value over rollout-target parts; None is unknown
    parts: tuple[Reward, ...]  # the latest of each part, all targets
    steps: tuple[Transition, ...]  # by (index, order); empty when the policy made no trained call
    cut: int = 0  # oldest steps left out by max_trajectory_length
