"""Engine and learner in processes of their own. replica.py is the contract; `make_replicas` chooses the kind."""

from __future__ import annotations

from collections.abc import Callable

from agent_lightning.replica.replica import ReplicaConfig, ReplicaLost, Replicas

__all__ = ["ReplicaConfig", "ReplicaLost", "Replicas", "make_replicas"]


def make_replicas(config: ReplicaConfig, *, says: Callable[[str], None] | None = None) -> Replicas:
    """Replicas as configured, not yet started: in this process for 0, else child processes. Imports no torch.

    `says` hears, line by line, what is done while they start; None logs it.
    """
    from agent_lightning.replica.local import LocalReplica
    from agent_lightning.replica.pool import ReplicaPool, log

    kind = LocalReplica if config.replicas == 0 else ReplicaPool
    return kind(config, says=says or log.info)
