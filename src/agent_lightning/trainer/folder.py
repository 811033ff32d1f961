"""A run's folder: where its store, checkpoints, metrics and report lie, and which checkpoint is which.

runs/NAME/run.json       settings as they were given
          store.db       tasks, rollouts, calls, rewards, batches, events
          checkpoints/step-000012/{adapter, optimizer, state.json, trainer.json, manifest.json}
          checkpoints/latest, best   one line each: the name of a checkpoint
          metrics.jsonl, report.html
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_lightning.errors import CheckpointError, SettingError
from agent_lightning.models.folder import check_manifest

STATE = "trainer.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def store(self) -> Path:
        return self.path / "store.db"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def create(self, settings: Mapping[str, Any], *, secrets: Sequence[str] = ()) -> None:
        """Make the folder and write down the run's settings, and the names of the keys that it has."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        record = {"run": self.name, "settings": settings, "secrets": list(secrets)}
        _write(self.path / "run.json", json.dumps(record, indent=1, default=str))

    def settings(self) -> dict[str, Any]:
        """The settings that the run was last taken up with. Raises SettingError where there is no run."""
        return self._record()["settings"]

    def secrets(self) -> tuple[str, ...]:
        """Names of the keys that the run has; their values are not written down."""
        return tuple(self._record().get("secrets", ()))

    def _record(self) -> dict[str, Any]:
        try:
            return json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            others = sorted(entry.parent.name for entry in self.path.parent.glob("*/run.json"))
            known = f"; runs there: {', '.join(others)}" if others else ""
            raise SettingError(f"{self.path} is no run: it has no run.json{known}") from None

    def write_report(self, html: str) -> None:
        _write(self.report, html)

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    def point(self, pointer: str, checkpoint: Path) -> None:
        _write(self.checkpoints / pointer, checkpoint.name + "\n")

    def pointed(self, pointer: str) -> Path | None:
        """The checkpoint that `latest` or `best` names, None when there is none yet."""
        try:
            name = (self.checkpoints / pointer).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        return self.checkpoints / name

    def newest_whole(self) -> Path | None:
        """The newest checkpoint whose every byte is right; damaged ones are passed over. Raises if all are damaged."""
        damaged = []
        for folder in sorted(self.checkpoints.glob("step-*"), reverse=True):
            try:
                check_manifest(folder)
                return folder
            except CheckpointError as error:
                damaged.append(str(error))
        if damaged:
            raise CheckpointError(f"no checkpoint of {self.path} is whole: {'; '.join(damaged)}")
        return None

    def sweep(self) -> None:
        """Remove the drafts of checkpoints that a killed process left behind. Only for the holder of the run."""
        for draft in self.checkpoints.glob(".*.draft"):
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink()

    def prune(self, keep: int) -> None:
        """Remove all but the newest `keep` checkpoints, the best and the latest."""
        pointed = {self.pointed("best"), self.pointed("latest")}
        for folder in sorted(self.checkpoints.glob("step-*"), reverse=True)[keep:]:
            if folder not in pointed:
                shutil.rmtree(folder)


def trainer_state(checkpoint: Path) -> dict[str, Any]:
    try:
        return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint / STATE} cannot be read: {error}") from error


def _write(path: Path, text: str) -> None:
    """Write whole or not at all. Raises CheckpointError where the disk refuses."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise CheckpointError(f"{path} could not be written: {error}; free space and resume the run") from error
