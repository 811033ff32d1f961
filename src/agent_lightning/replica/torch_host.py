"""The real host: one base model, the engine's core and the learner beside it. The only module here that needs torch."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agent_lightning.errors import EngineError, LightningError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.learner.learner import Ranks
from agent_lightning.learner.ranks import Alone, GlooRanks
from agent_lightning.learner.update import TorchLearner
from agent_lightning.models.adapter import Adapter
from agent_lightning.models.load import load_model
from agent_lightning.models.models import auto_dtype
from agent_lightning.models.source import resolve
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import Batch, UpdateReport
from agent_lightning.replica.replica import ReplicaConfig
from agent_lightning.replica.work import Send

PEER_SECONDS = 3600.0  # the parent ends a collective whose ranks are lost; this is for one that has no parent


def _dtype(config: ReplicaConfig) -> Any:
    wanted = config.learner.dtype
    return auto_dtype() if wanted == "auto" else wanted


class TorchHost:
    """Implements Host. `tell` takes messages to the parent, `beat` says that a long computation goes on."""

    @staticmethod
    def prepare(config: ReplicaConfig, tell: Send) -> tuple[Any, TorchCore]:
        """Base model and engine core; children that are forked afterwards share their memory. Raises ModelError."""
        torch.set_num_threads(1)  # two OpenMP threads collapse as soon as anything else runs
        dtype = _dtype(config)
        tell({"kind": "says", "text": f"loading {config.model} in {dtype}"})
        folder = resolve(config.model)
        model = load_model(folder, dtype)
        # Full weights are served by writing them into the engine's model, which must not be the reference.
        served = model if config.learner.lora_rank or not config.learner.needs_reference else copy.deepcopy(model)
        tell({"kind": "says", "text": "preparing the engine"})
        core = TorchCore(
            served,
            max_sequences=config.max_sequences,
            context_length=config.context_length,
            share_prefixes=config.share_prefixes,
            tokenizer=ChatTokenizer.load(folder),
        )
        tell({"kind": "says", "text": f"engine: {core.forward.name} forward pass ({core.forward_reason})"})
        return model, core

    def __init__(
        self,
        config: ReplicaConfig,
        shared: tuple[Any, TorchCore],
        *,
        rank: int,
        count: int,
        meeting: Path | str | None,
        tell: Send,
        beat: Callable[[], None],
    ) -> None:
        model, self._core = shared
        torch.set_num_threads(1)
        _beat_at_every_block(model, beat)
        ranks: Ranks = Alone()
        if count > 1:
            tell({"kind": "says", "text": f"meeting the other {count - 1} of {count} ranks"})
            ranks = _ToldRanks(GlooRanks(rank, count, f"file://{meeting}/ranks", PEER_SECONDS), tell)
        learner = replace(config.learner, dtype=_dtype(config))
        self._learner = TorchLearner(model, learner, policy=config.policy, ranks=ranks)
        if rank == 0:
            how = "packed" if self._learner.packing else "one branch after the other"
            tell({"kind": "says", "text": f"learner: samples are computed {how} ({self._learner.packing_reason})"})
        self._running: set[str] = set()
        self.serve()

    @property
    def idle(self) -> bool:
        return self._core.idle

    def submit(self, request: GenerateRequest) -> None:
        self._core.submit(request)
        self._running.add(request.id)

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)

    def step(self) -> Sequence[tuple[str, Piece | LightningError]]:
        try:
            pieces = self._core.step()
        except EngineError as error:  # no sequence of this step can go on; later ones can be served
            lost, self._running = self._running, set()
            self._core.reset()
            return [(request_id, error) for request_id in sorted(lost)]
        self._running.difference_update(
            name for name, piece in pieces if isinstance(piece, EngineError) or piece.finish_reason is not None
        )
        return pieces

    def load(self) -> EngineLoad:
        return self._core.load()

    def publish(self, adapter: Adapter) -> None:
        self._core.publish(adapter)

    def update(self, share: Batch, *, rate: float, version: int) -> tuple[UpdateReport, str]:
        report = self._learner.update(share, rate=rate, version=version)
        return report, fingerprint(self._learner.adapter(), self._learner.critic())

    def serve(self) -> int:
        self._core.publish(self._learner.adapter())
        return self._learner.version

    def save(self, folder: Path) -> None:
        self._learner.save(folder)

    def restore(self, folder: Path) -> int:
        """Tokens that were cached under version numbers that will be made anew are forgotten."""
        self._learner.restore(folder)
        self._core.slots.forget(lambda lane: False)
        return self.serve()


def fingerprint(adapter: Adapter, critic: Mapping[str, np.ndarray] | None = None) -> str:
    """A checksum of every bit of the weights, the critic's included."""
    arrays = {**(adapter.weights or {}), **(critic or {})}
    for path, (a, b) in adapter.matrices.items():
        arrays |= {f"{path}.a": a, f"{path}.b": b}
    check = 0
    for name in sorted(arrays):
        check = zlib.crc32(np.ascontiguousarray(arrays[name]).view(np.uint8).data, check)
    return f"{check:08x}"


class _ToldRanks:
    """Ranks that tell the parent when they wait for each other: a rank that waits is as alive as the others."""

    def __init__(self, ranks: Ranks, tell: Send) -> None:
        self._ranks = ranks
        self._tell = tell
        self.rank = ranks.rank
        self.count = ranks.count

    def add(self, flat: Tensor) -> None:
        self._tell({"kind": "waiting"})
        self._ranks.add(flat)
        self._tell({"kind": "beat"})


def _beat_at_every_block(model: Any, beat: Callable[[], None]) -> None:
    """Call `beat` whenever a decoder block has computed, forward or backward."""

    def touch(_: Tensor) -> None:
        beat()

    def seen(_module: nn.Module, _inputs: Any, output: Any) -> None:
        beat()
        states = output[0] if isinstance(output, tuple) else output
        if isinstance(states, Tensor) and states.requires_grad:
            states.register_hook(touch)

    for stack in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in stack:
            block.register_forward_hook(seen)
