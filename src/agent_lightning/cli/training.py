"""`train` and `serve`: settings in, a display while it runs, one line and three paths at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_lightning.cli.display import Display, Lines, show_result
from agent_lightning.cli.runs import run_folder
from agent_lightning.cli.work import lend_provider_keys
from agent_lightning.client.agent import load
from agent_lightning.errors import SettingError
from agent_lightning.train import Trainer, opened, splits_of
from agent_lightning.trainer.config import TrainConfig, secrets_of
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.loop import Splits
from agent_lightning.trainer.tasks import read_tasks

PORT = 8000


def train(file: Path | None, *, resume: str | None, settings: Sequence[str], run: str | None, plain: bool) -> None:
    config, name = read_settings(file, resume, settings, run)
    work = config.work
    if work.agent is None:
        raise SettingError('agent is not set: name it as agent = "module:attribute" in the settings file')
    splits = read_splits(config)
    lend_provider_keys()
    agent, reward = load(work.agent), load(work.reward) if work.reward else None
    with _watched(plain, config) as display:
        trainer = Trainer(agent, reward=reward, config=config, run=name, listeners=(display.hear,))
        with _left_in_order(trainer.folder, "train"):
            result = trainer.fit(splits.train, splits.val, splits.test)
    show_result(result, config)


def serve(
    file: Path | None,
    *,
    resume: str | None,
    settings: Sequence[str],
    run: str | None,
    port: int | None,
    plain: bool,
    host: str | None = None,
) -> None:
    config, name = read_settings(file, resume, settings, run)
    splits = read_splits(config)
    folder = Trainer(config=config, run=name).folder
    where: dict[str, Any] = {"host": host, "port": port}
    chosen = {name: value for name, value in where.items() if value is not None}
    config = replace(config, server=replace(config.server, **chosen))

    async def go(display: Display | Lines) -> Any:
        async with opened(config, folder, listeners=(display.hear,), port=PORT) as session:
            return await session.train(splits)

    with _watched(plain, config) as display, _left_in_order(folder, "serve"):
        result = asyncio.run(go(display))
    show_result(result, config)


@contextlib.contextmanager
def _left_in_order(folder: RunFolder, command: str) -> Iterator[None]:
    """After Ctrl-C, say what there is and with which command to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if folder.report.is_file():
            print(f"report so far  {folder.report}", file=sys.stderr)
        if (folder.path / "run.json").is_file():
            print(f"go on with: agent-lightning {command} --resume {folder.path}", file=sys.stderr)
        raise


def read_settings(
    file: Path | None, resume: str | None, settings: Sequence[str], run: str | None
) -> tuple[TrainConfig, str | None]:
    """Settings of a new run, or of the run to go on with; and its name. Beside --resume a file gives only the keys,
    which no run writes down."""
    given = dict(_pair(text) for text in settings)
    if resume is None:
        if file is None and not given:
            raise SettingError("name a settings file: `agent-lightning train lightning.toml`, or --resume RUN")
        return TrainConfig.read(given, file=file), run
    if run is not None:
        raise SettingError("--resume takes the name from the run: leave out --run")
    folder = run_folder(resume, str(given.get("runs", "runs")))
    keys = secrets_of(file, os.environ)
    missing = [name for name in folder.secrets() if name not in keys and name not in given]
    if missing:
        raise SettingError(
            f"the run {folder.name!r} was begun with {' and '.join(missing)}, which are not written down: set "
            f"AGENT_LIGHTNING_{missing[0].upper()}, or name the settings file that has them beside --resume"
        )
    joined = {**folder.settings(), **keys, **given, "runs": str(folder.path.parent)}
    return TrainConfig.read(joined, env={}), folder.name


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise SettingError(f"--set {text!r}: NAME=VALUE is wanted")
    return name.strip(), value.strip()


def read_splits(config: TrainConfig) -> Splits:
    work = config.work
    if work.train_tasks is None:
        raise SettingError('train_tasks is not set: name a file of JSON lines, one {"input": ...} each')
    val = read_tasks(Path(work.val_tasks), "val") if work.val_tasks else []
    test = read_tasks(Path(work.test_tasks), "test") if work.test_tasks else []
    return splits_of(read_tasks(Path(work.train_tasks), "train"), val, test)


def _watched(plain: bool, config: TrainConfig) -> Display | Lines:
    loop = config.loop
    if plain or not sys.stdout.isatty():
        return Lines()
    return Display(total_steps=loop.total_steps, time_limit=loop.time_limit)
