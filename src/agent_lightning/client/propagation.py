"""Carries the scope into threads, where Python does not carry context variables by itself. Copies only our variable."""

from __future__ import annotations

import threading
from typing import Any

from agent_lightning.client.patch import Patch
from agent_lightning.client.scope import enter, in_context

_pool = threading.local()


class OwnThread(threading.Thread):
    """A thread of ours: it serves all rollouts and belongs to none."""


def patch_threads() -> list[Patch]:
    """`loop.run_in_executor` and `Executor.map` go through the `submit` that is patched here."""
    from concurrent.futures import ThreadPoolExecutor

    return [Patch(ThreadPoolExecutor, "submit", _submit), Patch(threading.Thread, "start", _start)]


def _submit(wrapped: Any, pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    scope = in_context()
    # A worker thread that `submit` starts outlives this rollout: the scope goes with the item, not with the thread.
    before = getattr(_pool, "submitting", False)
    _pool.submitting = True
    try:
        if scope is None or not args:
            return wrapped(*args, **kwargs)

        def carried(function: Any, *own: Any, **named: Any) -> Any:
            with enter(scope):
                return function(*own, **named)

        return wrapped(carried, *args, **kwargs)
    finally:
        _pool.submitting = before


def _start(wrapped: Any, thread: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    scope = in_context()
    if scope is None or isinstance(thread, OwnThread) or getattr(_pool, "submitting", False):
        return wrapped(*args, **kwargs)
    run = thread.run

    def carried() -> None:
        del thread.run  # a thread that holds itself is never collected
        with enter(scope):
            run()

    thread.run = carried
    return wrapped(*args, **kwargs)
