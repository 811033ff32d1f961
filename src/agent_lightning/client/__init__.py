"""The half that runs in the agent's own process. Loads what it needs when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_lightning.client.emit import CurrentRollout, current_rollout, emit_reward
    from agent_lightning.client.inject import Handle, inject_runtime

_PUBLIC = {
    "inject_runtime": "agent_lightning.client.inject",
    "Handle": "agent_lightning.client.inject",
    "emit_reward": "agent_lightning.client.emit",
    "current_rollout": "agent_lightning.client.emit",
    "CurrentRollout": "agent_lightning.client.emit",
}

__all__ = ["CurrentRollout", "Handle", "current_rollout", "emit_reward", "inject_runtime"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'agent_lightning.client' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
