"""A checkpoint of everything: the learner's state and the trainer's, in one folder that is whole or not there."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_lightning.models.folder import save_folder
from agent_lightning.replica.replica import Replicas
from agent_lightning.trainer.folder import STATE, RunFolder
from agent_lightning.trainer.progress import Position


async def save(
    replicas: Replicas, folder: RunFolder, position: Position, done: Mapping[str, Any] | None = None
) -> Path:
    """Write the checkpoint of this step and make it the latest. Raises CheckpointError; the old ones stay whole.

    `done` is what the journal will say of the step: a process that is killed before it could say so says it later.
    """
    target = folder.checkpoint(position.step)
    async with _whole(target) as draft:
        await replicas.save(draft)
        state = {"position": position.state(), "done": done}
        (draft / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    folder.point("latest", target)
    return target


@asynccontextmanager
async def _whole(target: Path) -> AsyncIterator[Path]:
    """`save_folder` without holding up the loop while it hashes and flushes."""
    folder = save_folder(target)
    draft = await asyncio.to_thread(folder.__enter__)
    try:
        yield draft
    except BaseException:
        folder.__exit__(*sys.exc_info())
        raise
    await asyncio.to_thread(folder.__exit__, None, None, None)
