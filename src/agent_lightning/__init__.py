"""Train any existing AI agent with reinforcement learning, without changing its code."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_lightning.client import Handle, current_rollout, emit_reward, inject_runtime
    from agent_lightning.records import Reward, Rollout, Task
    from agent_lightning.train import Trainer
    from agent_lightning.trainer.config import TrainConfig

__version__ = "0.1.0"

_PUBLIC = {
    "inject_runtime": "agent_lightning.client",
    "emit_reward": "agent_lightning.client",
    "current_rollout": "agent_lightning.client",
    "Handle": "agent_lightning.client",
    "Trainer": "agent_lightning.train",
    "TrainConfig": "agent_lightning.trainer.config",
    "Task": "agent_lightning.records",
    "Rollout": "agent_lightning.records",
    "Reward": "agent_lightning.records",
}

__all__ = [
    "Handle",
    "Reward",
    "Rollout",
    "Task",
    "TrainConfig",
    "Trainer",
    "current_rollout",
    "emit_reward",
    "inject_runtime",
]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that an agent's process loads only what it needs."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'agent_lightning' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
