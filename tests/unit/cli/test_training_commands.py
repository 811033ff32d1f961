"""`train`, `serve` and `export`: which setting wins, what a resumed run needs, what an exported model speaks."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from agent_lightning.cli import training
from agent_lightning.cli.exporting import export
from agent_lightning.errors import RunInUse, SettingError
from agent_lightning.models.folder import save_folder
from agent_lightning.train import Session
from agent_lightning.trainer.folder import RunFolder
from small_runs import SETTINGS, settings_file


class Reached(Exception):
    """The server is up: the training itself is not this file's business."""


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    async def train(self: Session, splits: Any) -> None:
        seen.append(self.endpoint)
        raise Reached

    monkeypatch.setattr(Session, "train", train)
    monkeypatch.chdir(Path(__file__).resolve().parents[3])
    return seen


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_port_of_the_command_line_wins_over_the_files(tmp_path: Path, endpoints: list[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        file = settings_file(tmp_path, port=taken.getsockname()[1])
        wanted = free_port()
        with pytest.raises(Reached):
            training.serve(file, resume=None, settings=[], run="a", port=wanted, plain=True)
        assert endpoints == [f"http://127.0.0.1:{wanted}"]
        with pytest.raises(RunInUse, match="setting `port`"):
            training.train(file, resume=None, settings=[], run="b", plain=True)


def test_a_resumed_run_reads_its_keys_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder(tmp_path / "run")
    folder.create({**SETTINGS, "host": "0.0.0.0"}, secrets=["worker_key", "admin_key"])
    for name in ("WORKER_KEY", "ADMIN_KEY", "READ_KEY"):
        monkeypatch.delenv(f"AGENT_LIGHTNING_{name}", raising=False)
    with pytest.raises(SettingError, match="begun with worker_key and admin_key"):
        training.read_settings(None, str(folder.path), [], None)
    monkeypatch.setenv("AGENT_LIGHTNING_WORKER_KEY", "alw-env")
    file = settings_file(tmp_path, worker_key="alw-file", admin_key="ala-file", group_size=5)
    config, name = training.read_settings(file, str(folder.path), [], None)
    assert name == "run"
    assert (config.server.worker_key, config.server.admin_key) == ("alw-env", "ala-file")
    assert config.loop.group_size == SETTINGS["group_size"], "a file beside --resume gives only keys"
    config, _ = training.read_settings(None, str(folder.path), ["admin_key=ala-set", "component=a,b"], None)
    assert (config.server.admin_key, config.loop.component) == ("ala-set", ("a", "b"))


def test_an_exported_model_has_the_text_of_a_template_that_was_named_by_its_path(tmp_path: Path):
    source = "{% for m in messages %}{{ m.content }}{% endfor %} of mine"
    (tmp_path / "mine.jinja").write_text(source)
    folder = RunFolder(tmp_path / "run")
    folder.create({**SETTINGS, "chat_template": str(tmp_path / "mine.jinja")})
    with save_folder(folder.checkpoint(1)) as draft:
        save_file({"unused": np.zeros(1, np.float32)}, draft / "adapter_model.safetensors")
        state = {"policy": "default", "version": 1, "lora_rank": 1, "lora_alpha": 1.0}
        (draft / "state.json").write_text(json.dumps(state))
    export(str(folder.path), tmp_path / "out", "1")
    assert (tmp_path / "out/chat_template.jinja").read_text() == source
