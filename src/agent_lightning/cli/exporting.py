"""`export`: a checkpoint, merged into its base model in float32. `trajectories`: what the policy lived through."""

from __future__ import annotations

from pathlib import Path

import typer

from agent_lightning.cli.runs import run_folder
from agent_lightning.errors import CheckpointError
from agent_lightning.models.adapter import read_adapter
from agent_lightning.models.chat_template import exported_template
from agent_lightning.models.folder import check_manifest
from agent_lightning.models.source import resolve
from agent_lightning.records import RolloutStatus
from agent_lightning.store.view import StoreView
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.detail import rebuilt
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trajectory import write_jsonl


def export(run: str, out: Path, checkpoint: str) -> None:
    from agent_lightning.models.merge import export_merged

    folder = run_folder(run)
    config = TrainConfig.of(folder.settings())
    source = _checkpoint(folder, checkpoint)
    check_manifest(source)
    model = resolve(config.replica.model)
    template = exported_template(model, config.server.chat_template)
    export_merged(model, read_adapter(source), out, template)
    typer.echo(f"{source.name} of {folder.name}, merged into {config.replica.model}: {out}")


def _checkpoint(folder: RunFolder, wanted: str) -> Path:
    """By pointer or step number. Raises CheckpointError that lists what there is."""
    found = folder.checkpoint(int(wanted)) if wanted.isdigit() else folder.pointed(wanted)
    if found is None or not found.is_dir():
        there = ", ".join(sorted(entry.name for entry in folder.checkpoints.glob("step-*"))) or "none"
        raise CheckpointError(f"{folder.path} has no checkpoint {wanted!r}; there are: {there}")
    return found


def trajectories(run: str, out: Path, *, step: int | None, runs: str) -> None:
    folder = run_folder(run, runs)
    config = TrainConfig.of(folder.settings())
    with StoreView(folder.store) as view:
        rollouts = [
            rollout
            for rollout in view.rollouts(folder.name, mode="train")
            if rollout.status is RolloutStatus.FINISHED and step in (None, rollout.step) and rollout.cleared_at is None
        ]
        count = write_jsonl(rebuilt(view, config, rollouts), out)
    typer.echo(f"{count} rollouts of {folder.name}: {out}")
