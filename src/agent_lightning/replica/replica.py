"""The replica's contract: engine and learner that hold the same weights, seen from the main process.

`ReplicaPool` keeps R child processes (one single-threaded replica a core, a GPU each on GPU machines); `LocalReplica`
runs both in this process, for tests and tiny models. The trainer and the gateway cannot tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent_lightning.errors import LearnerError, SettingError
from agent_lightning.inference.engine import Engine
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.records import Batch, UpdateReport


class ReplicaLost(LearnerError):
    """A replica died, and all come back with the last version that was saved or restored.

    `version` is that version: what was committed after it has to be updated again, in order.
    """

    def __init__(self, message: str, *, version: int | None = None) -> None:
        super().__init__(message)
        self.version = version


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    model: str  # "smollm2", "tiny", a Hugging Face id or a local path
    policy: str = "default"
    learner: LearnerConfig
    replicas: int | None = None  # None: one a core; 0: in this process
    max_sequences: int = 32  # decoded at once by one replica
    share_prefixes: bool = True  # siblings and later rollouts reuse each other's KV cache; False: exact repeats
    context_length: int | None = None  # None: the model's, at most 4,096
    heartbeat_seconds: float = 60.0  # a child that does no step and answers nothing for so long is dead

    def __post_init__(self) -> None:
        if self.replicas is not None and not 0 <= self.replicas <= 1024:
            raise SettingError(f"replicas is {self.replicas}: wanted 0 to 1024, or None for one a core")
        if self.max_sequences < 1:
            raise SettingError(f"max_sequences is {self.max_sequences}: wanted at least 1")
        if not 1.0 <= self.heartbeat_seconds <= 86_400.0:
            raise SettingError(f"heartbeat_seconds is {self.heartbeat_seconds}: wanted 1 to 86400")


class Replicas(Engine, Protocol):
    """An Engine that also learns."""

    async def start(self) -> None: ...

    async def update(self, batch: Batch, *, rate: float, version: int) -> UpdateReport:
        """One optimizer step over all replicas. The new weights are not served before `serve`."""
        ...

    async def serve(self) -> int:
        """Serve the learner's present weights to requests that start from now on; gives their version."""
        ...

    async def save(self, folder: Path) -> None:
        """The learner's state into an empty folder (Learner.save of rank 0)."""
        ...

    async def restore(self, folder: Path) -> int:
        """Learner.restore on every replica, then serve it; gives the version."""
        ...
