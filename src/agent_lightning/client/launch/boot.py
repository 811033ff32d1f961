"""In the launched program: every outermost run of an agent is a rollout; what no framework runs belongs to the process."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from typing import Any

from agent_lightning.client import naming, registry, report
from agent_lightning.client.component import EVERYTHING, Selector, select
from agent_lightning.client.config import read_config
from agent_lightning.client.frameworks import FRAMEWORKS
from agent_lightning.client.frameworks.framework import Door, Framework
from agent_lightning.client.inject import Handle, inject_runtime
from agent_lightning.client.install import also_patch, install
from agent_lightning.client.live import LiveSource
from agent_lightning.client.outbox import OUTBOX
from agent_lightning.client.patch import Patch
from agent_lightning.client.scope import Scope, belong_to_process, current
from agent_lightning.client.semconv import Status
from agent_lightning.errors import LightningError

_log = logging.getLogger("agent_lightning")


def begin() -> None:
    """Install everything. Called once, before the first framework or HTTP library is imported."""
    config = read_config({})
    install()
    for framework in FRAMEWORKS:
        for door in framework.doors:
            also_patch(door.module, lambda module, f=framework, d=door: _open(f, d, module))
    also_patch("multiprocessing.util", _flush_in_children)
    belong_to_process(_Process(config).scope)


def _open(framework: Framework, door: Door, module: Any) -> list[Patch]:
    owner = getattr(module, door.owner, None)
    return [
        Patch(owner, method, _outermost(framework, door, method))
        for method in door.methods
        if owner is not None and hasattr(owner, method)
    ]


def _outermost(framework: Framework, door: Door, method: str) -> Any:
    def wrapper(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        agent = door.agent(instance, args, kwargs)
        if current() is not None or registry.handles_of(agent):
            return wrapped(*args, **kwargs)
        handle = _injected(agent)
        if handle is None:
            return wrapped(*args, **kwargs)
        entry = next((entry for entry in framework.entries(agent) if entry.method == method), None)
        return handle.passage.run(wrapped, args, kwargs, entry)

    return wrapper


def _injected(agent: Any) -> Handle | None:
    """None for an agent that cannot be injected, or that has no part of the wanted name: it runs as it would."""
    try:
        return inject_runtime(agent)
    except LightningError as error:
        _log.warning("agent-lightning leaves a %s alone: %s", type(agent).__qualname__, error)
        return None


class _Process:
    """The rollout of a program whose calls no framework makes. Begun by the first of them, ended with the program."""

    def __init__(self, config: Any) -> None:
        self._source, self._lock = LiveSource(config), threading.Lock()
        self._scope: Scope | None = None
        self._selector: Selector = EVERYTHING
        try:
            self._selector = select(config.component, ())
        except LightningError as error:
            _log.warning("agent-lightning: calls outside of an agent are all trained: %s", error)

    def scope(self) -> Scope:
        with self._lock:
            if self._scope is None:
                begun = self._source.begin(sys.argv)
                self._scope = naming.in_agent(begun, self._selector, None)
                atexit.register(self._end)  # runs before the outbox's own, which was registered earlier
            return self._scope

    def _end(self) -> None:
        assert self._scope is not None
        if self._scope.routed:
            self._source.end(self._scope, error=getattr(sys, "last_value", None), result=None)
            report.rollout_span(self._scope, name=sys.argv[0] or "python", status=Status.OK)


def _flush_in_children(util: Any) -> list[Patch]:
    """Children that multiprocessing forks leave without `atexit`; it has finalizers of its own."""
    util.register_after_fork(OUTBOX, lambda box: util.Finalize(box, box.flush, exitpriority=0))
    return []
