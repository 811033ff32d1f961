"""A host without a model: its tokens and weights follow a rule that can be checked by hand.

For trying out what is around a model (processes, supervision, agents, a user interface) where loading one would be slow.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from agent_lightning.errors import CheckpointError, EngineError, LearnerError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import Batch, UpdateReport
from agent_lightning.replica.replica import ReplicaConfig
from agent_lightning.replica.work import Send

VOCABULARY = 1000
STEP_SECONDS = 0.001


def scripted_token(prompt_sum: int, index: int, version: int) -> int:
    return (prompt_sum + 31 * index + 7 * version) % VOCABULARY


class ScriptedHost:
    """Implements Host. Its one weight moves by rate x rollouts an update.

    `figures["scripted.seconds"]` of a batch is how long its update takes; with `figures["scripted.waiting"]` all ranks
    but the first spend it as they would in a collective.
    """

    @staticmethod
    def prepare(config: ReplicaConfig, tell: Send) -> None:
        tell({"kind": "says", "text": f"learning the script of {config.model}"})

    def __init__(
        self,
        config: ReplicaConfig,
        shared: None,
        *,
        rank: int,
        count: int,
        meeting: Path | None,
        tell: Send,
        beat: Callable[[], None],
    ) -> None:
        self._config = config
        self._rank, self._tell, self._beat = rank, tell, beat
        self._weight = float(config.learner.seed)
        self._version = self._served = 0
        self._running: dict[str, tuple[GenerateRequest, int, int]] = {}  # request, tokens so far, version
        self._ended: list[tuple[str, Piece]] = []
        self._tokens = 0

    @property
    def idle(self) -> bool:
        return not self._running and not self._ended

    def submit(self, request: GenerateRequest) -> None:
        if request.policy != self._config.policy:
            raise EngineError(f"policy {request.policy!r} came, {self._config.policy!r} is served")
        self._running[request.id] = (request, 0, self._served)

    def abort(self, request_id: str) -> None:
        running = self._running.pop(request_id, None)
        if running is not None:
            self._ended.append((request_id, Piece(version=running[2], finish_reason="aborted")))

    def step(self) -> list[tuple[str, Piece]]:
        time.sleep(STEP_SECONDS)
        pieces, self._ended = self._ended, []
        for name, (request, index, version) in list(self._running.items()):
            last = index + 1 >= request.sampling.max_new_tokens
            token = scripted_token(sum(request.prompt_ids), index, version)
            reason = "length" if last else None
            piece = Piece(ids=array("i", [token]), logprobs=array("f", [-1.0]), version=version, finish_reason=reason)
            pieces.append((name, piece))
            self._tokens += 1
            if last:
                del self._running[name]
            else:
                self._running[name] = (request, index + 1, version)
        return pieces

    def load(self) -> EngineLoad:
        return EngineLoad(
            running=len(self._running),
            waiting=0,
            capacity=self._config.max_sequences,
            tokens_per_second=0.0,
            busy_seconds=0.0,
            tokens=self._tokens,
            context_length=self._config.context_length or 4096,
        )

    def publish(self, adapter: Adapter) -> None:
        self._served = adapter.version

    def update(self, share: Batch, *, rate: float, version: int) -> tuple[UpdateReport, str]:
        if version != self._version + 1:
            raise LearnerError(f"version {version} came, {self._version + 1} is next")
        end = time.monotonic() + share.figures.get("scripted.seconds", 0.0)
        waiting = self._rank > 0 and bool(share.figures.get("scripted.waiting"))
        if waiting:
            self._tell({"kind": "waiting"})
        while time.monotonic() < end:
            time.sleep(0.01)
            if not waiting:
                self._beat()
        self._weight += rate * share.rollouts
        self._version = version
        report = UpdateReport(version=version, applied=True, figures={"learner.loss": self._weight})
        return report, repr(self._weight)

    def serve(self) -> int:
        self._served = self._version
        return self._served

    def save(self, folder: Path) -> None:
        (folder / "script.json").write_text(json.dumps({"weight": self._weight, "version": self._version}))

    def restore(self, folder: Path) -> int:
        try:
            state = json.loads((folder / "script.json").read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder} holds no saved script: {error}") from error
        self._weight, self._version = state["weight"], state["version"]
        return self.serve()
