"""`agent-lightning backup` and `upgrade`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_lightning.cli.app import app
from agent_lightning.errors import StoreError
from agent_lightning.store.view import StoreView
from agent_lightning.trainer.folder import RunFolder
from kept_runs import RUN, make_run
from old_stores import at_0001


def done(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return " ".join(result.output.split())


async def test_a_backup_says_what_it_copied_and_can_take_the_stores_place(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, steps=2)
    told = done("backup", str(folder.path), str(tmp_path / "copy.db"))
    assert "every page checked" in told and "7 rollouts" in told
    with pytest.raises(StoreError, match="overwrites nothing"):
        done("backup", str(folder.path), str(tmp_path / "copy.db"))
    folder.store.unlink()
    (tmp_path / "copy.db").rename(folder.store)
    assert RUN in done("show", str(folder.path))


def test_an_older_store_is_backed_up_upgraded_and_shown(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create({"model": "tiny", "total_steps": 4})
    at_0001(folder.store)
    with pytest.raises(StoreError, match="agent-lightning upgrade"):
        done("show", str(folder.path))
    assert "its schema is older" in done("backup", str(folder.path), str(tmp_path / "copy.db"))
    assert "has the schema of this version" in done("upgrade", str(folder.path))
    with StoreView(folder.store) as view:
        assert view.states("run") == {"finished": 2, "cancelled": 1, "running": 1, "queued": 1}
