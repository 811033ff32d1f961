"""Finding what the user names: a run by its folder or name, a rollout by its id."""

from __future__ import annotations

from pathlib import Path

from agent_lightning.errors import SettingError, StoreError
from agent_lightning.store.view import StoreView
from agent_lightning.trainer.folder import RunFolder


def run_folder(run: str, runs: str = "runs") -> RunFolder:
    """The folder of a run named by its folder or by its name. Raises SettingError where there is none."""
    path = Path(run) if (Path(run) / "run.json").exists() else Path(runs) / run
    folder = RunFolder(path)
    folder.settings()
    return folder


def is_run(name: str, runs: str) -> bool:
    return any((path / "run.json").is_file() for path in (Path(name), Path(runs) / name))


def run_of_rollout(rollout_id: str, runs: str) -> RunFolder:
    """The run whose store holds this rollout. Raises SettingError that says where it was looked for."""
    found = sorted(Path(runs).glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    folders = [RunFolder(path.parent) for path in found]
    # An id begins with the name of its run; live ones do not, and folders can be renamed.
    folders.sort(key=lambda folder: not rollout_id.startswith(f"{folder.name}."))
    for folder in folders:
        if _holds(folder, rollout_id):
            return folder
    names = ", ".join(folder.name for folder in folders[:8]) or "none"
    raise SettingError(
        f"{rollout_id!r} is neither a run nor a rollout of a run in {runs}/ (runs there: {names}); name another folder "
        "with --runs, or the run with --run"
    )


def _holds(folder: RunFolder, rollout_id: str) -> bool:
    try:
        with StoreView(folder.store) as view:
            return view.has_rollout(rollout_id)
    except StoreError:  # of another version, or not there yet
        return False
