"""What travels between the rooms: frozen records, no I/O."""

from agent_lightning.records.call import Call, CallStatus, Dialect, FinishReason, nats, token_ids
from agent_lightning.records.policy import PolicyVersion, UpdateReport
from agent_lightning.records.reward import Reward, Target
from agent_lightning.records.rollout import (
    RETRIED,
    Attempt,
    AttemptStatus,
    Claim,
    Mode,
    Outcome,
    Rollout,
    RolloutStatus,
)
from agent_lightning.records.sample import Batch, Pair, Sample
from agent_lightning.records.span import Span
from agent_lightning.records.task import Split, Task
from agent_lightning.records.trajectory import Trajectory, Transition

__all__ = [
    "RETRIED",
    "Attempt",
    "AttemptStatus",
    "Batch",
    "Call",
    "CallStatus",
    "Claim",
    "Dialect",
    "FinishReason",
    "Mode",
    "Outcome",
    "Pair",
    "PolicyVersion",
    "Reward",
    "Rollout",
    "RolloutStatus",
    "Sample",
    "Span",
    "Split",
    "Target",
    "Task",
    "Trajectory",
    "Transition",
    "UpdateReport",
    "nats",
    "token_ids",
]
