"""A run is held by one trainer at a time; what works beside it must not fail unheard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from agent_lightning.store.store import Store

RUN_LEASE = 30.0  # seconds; a trainer that was killed frees its run after that


@contextlib.asynccontextmanager
async def held(store: Store, run_id: str, settings: Mapping[str, Any]) -> AsyncIterator[None]:
    """Hold the run against a second trainer, and let go in the end. Raises RunInUse.

    Attempts of processes of this machine that are no more are given back: nobody has to wait for their leases.
    """
    holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
    await store.open_run(run_id, settings, holder=holder, lease_seconds=RUN_LEASE, gone=gone)

    async def renew() -> None:
        while True:
            await asyncio.sleep(RUN_LEASE / 3)
            await store.hold_run(run_id, holder=holder, lease_seconds=RUN_LEASE)

    try:
        async with background(renew(), "run lease"):
            await store.give_back(gone)
            yield
    finally:
        await store.release_run(run_id, holder=holder)


def gone(name: str) -> bool:
    """Whether "host/pid/..." was a process of this machine that is no more."""
    host, _, rest = name.partition("/")
    pid = rest.partition("/")[0]
    if host != socket.gethostname() or not (pid.isascii() and pid.isdigit()):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


@contextlib.asynccontextmanager
async def background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` beside the block, and end it with the block.

    If it fails, the block is cancelled and its error is raised; beside an error of the block's own it becomes a note.
    """
    owner = asyncio.current_task()
    assert owner is not None
    task = asyncio.create_task(work, name=name)
    stopped = over = False  # the block was cancelled for the failure; the block has ended

    def stop_owner(done: asyncio.Task[None]) -> None:
        nonlocal stopped
        if not over and not done.cancelled() and done.exception() is not None:
            stopped = True
            owner.cancel()

    task.add_done_callback(stop_owner)
    try:
        yield
    except BaseException as error:
        ours = isinstance(error, asyncio.CancelledError) and stopped and owner.uncancel() == 0
        if not ours:
            if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
                error.add_note(f"the {name} had failed before: {failure}")
            raise
    finally:
        over = True
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
