"""A checkpoint of everything: the learner's state and the trainer's, in one folder that is whole or not there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from agent_lightning.models.folder import save_folder
from agent_lightning.replica.replica import Replicas
from agent_lightning.trainer.folder import STATE, RunFolder
from agent_lightning.trainer.progress import Position


async def save(replicas: Replicas, folder: RunFolder, position: Position) -> Path:
    """Write the checkpoint of this step and make it the latest. Raises CheckpointError; the old ones stay whole."""
    target = folder.checkpoint(position.step)
    whole = save_folder(target)
    draft = await asyncio.to_thread(whole.__enter__)
    try:
        await replicas.save(draft)
        (draft / STATE).write_text(json.dumps(position.state(), indent=1), encoding="utf-8")
    except BaseException as error:
        # The draft is removed; what was there before stays.
        if not whole.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        await asyncio.to_thread(whole.__exit__, None, None, None)
    folder.point("latest", target)
    return target
