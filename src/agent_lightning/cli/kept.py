"""What a run still needs of its rollouts' texts and tokens: to go on after a crash, and to write its report anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any

from agent_lightning.errors import CheckpointError
from agent_lightning.store import retention, training
from agent_lightning.trainer.folder import RunFolder, trainer_state
from agent_lightning.trainer.report import CREDIT_STEPS

MEASURES: Mapping[str, str] = {"eval": "val", "before": "test", "after": "test"}  # event -> mode of its rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    reached: int = 0  # trainer steps that were finished
    told: frozenset[tuple[str, int]] = frozenset()  # (mode, step) of evaluations whose figures are written down
    shown: frozenset[tuple[str, int]] = frozenset()  # (mode, step) of evaluations that the report compares
    pending: frozenset[str] = field(default_factory=frozenset)  # rollouts of a batch whose update is still to be made

    def to_go_on(self, rollout_id: str, mode: str, step: int) -> str | None:
        """Why a trainer that goes on with the run will read this rollout; None when it will not."""
        if rollout_id in self.pending:
            return "its batch is committed, and the update is not made yet"
        if mode == "train" and step >= self.reached:
            return f"the trainer has not finished step {step}, to which it belongs"
        if mode in MEASURES.values() and step >= self.reached and (mode, step) not in self.told:
            return f"the evaluation at step {step}, to which it belongs, is not finished"
        return None

    def to_report(self, mode: str, step: int) -> str | None:
        """Why the run's report shows this rollout; None when it does not."""
        if mode == "train" and step >= self.reached - CREDIT_STEPS:
            return f"the report shows the credit of the newest {CREDIT_STEPS} steps"
        if (mode, step) in self.shown:
            return "the report compares its evaluation with another"
        return None


def needs(db: Connection) -> Mapping[str, Need]:
    """By run."""
    found = {}
    unapplied = retention.unapplied(db)
    for run in training.runs(db):
        events = training.events(db, run["id"], None)
        reached = max((event["step"] for event in events if event["kind"] == "step"), default=0)
        measured = [(event["kind"], event["step"]) for event in events if event["kind"] in MEASURES]
        found[run["id"]] = Need(
            reached=reached,
            told=frozenset((MEASURES[kind], step) for kind, step in measured),
            shown=frozenset(_ends(measured)),
            # a batch of a finished step that is not applied: its update was skipped, nobody will make it
            pending=frozenset(
                member
                for run_id, step, members in unapplied
                if run_id == run["id"] and step >= reached
                for member in members
            ),
        )
    return found


def _ends(measured: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The first and the newest evaluation of each mode."""
    found: dict[str, list[int]] = {}
    for kind, step in measured:
        found.setdefault(MEASURES[kind], []).append(step)
    return [(mode, step) for mode, steps in found.items() for step in (steps[0], steps[-1])]


def replayed_after(folder: RunFolder) -> int | None:
    """The version of the oldest checkpoint: the run goes on from it, if all newer ones are damaged, by repeating every
    batch that came after it. None where there is no checkpoint."""
    versions = []
    for place in folder.checkpoints.glob("step-*"):
        try:
            position: Mapping[str, Any] = trainer_state(place)["position"]
        except CheckpointError:  # nothing can go on from it
            continue
        versions.append(int(position["version"]))
    return min(versions, default=None)
