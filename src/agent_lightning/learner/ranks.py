"""How several learners add their sums: alone, or over torch.distributed."""

from __future__ import annotations

import os
from datetime import timedelta
from urllib.parse import urlparse

import torch
import torch.distributed as dist

from agent_lightning.errors import LearnerError, PeerLost

CHUNK = 1 << 22  # elements added at once: bounds the extra memory and what a dead peer can hold up


class Alone:
    """The only rank."""

    rank = 0
    count = 1

    def add(self, flat: torch.Tensor) -> None:
        pass


class GlooRanks:
    """Ranks in processes of one or several machines. Every rank must add the same shapes in the same order.

    `init_method` is torch's ("tcp://127.0.0.1:29500", "file:///shared/path"). A peer that dies or does not take part
    within `timeout` seconds raises LearnerError on the others; then `close` and start anew.
    """

    def __init__(self, rank: int, count: int, init_method: str, timeout: float = 60.0) -> None:
        self.rank = rank
        self.count = count
        where = urlparse(init_method)
        if where.scheme == "file" or where.hostname in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        try:
            dist.init_process_group(
                "gloo", init_method=init_method, rank=rank, world_size=count, timeout=timedelta(seconds=timeout)
            )
        except (RuntimeError, ValueError) as error:
            raise LearnerError(f"rank {rank} of {count} could not meet the others at {init_method}: {error}") from error

    def add(self, flat: torch.Tensor) -> None:
        try:
            for part in flat.view(-1).split(CHUNK):
                dist.all_reduce(part, op=dist.ReduceOp.SUM)
        except RuntimeError as error:
            raise PeerLost(f"rank {self.rank}: a peer died or fell silent during an update: {error}") from error

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
