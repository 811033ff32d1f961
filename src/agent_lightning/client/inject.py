"""`inject_runtime`: one line that puts an existing agent under training, and a handle that takes it out again.

Entries are wrapped on the agent's class, because wrappers on an object break its copying; which objects are meant is
kept in a registry.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from agent_lightning.client import registry
from agent_lightning.client.agent import adapter_for
from agent_lightning.client.component import Selector, select
from agent_lightning.client.config import ClientConfig, read_config
from agent_lightning.client.copies import NAMES, CopyHook
from agent_lightning.client.frameworks.framework import Entry, Framework
from agent_lightning.client.patch import Patch
from agent_lightning.errors import AgentError

_wrapped: dict[tuple[type, str], tuple[Patch | CopyHook, int]] = {}  # and the number of handles that need it


class Handle:
    """What `inject_runtime` did, and the way back. Also a context manager."""

    def __init__(self, *, config: ClientConfig, framework: Framework | None, selector: Selector) -> None:
        self.config, self.selector = config, selector
        self.framework = None if framework is None else framework.name
        self.components: frozenset[str] = frozenset()
        self.attached = False
        self._undo: list[Callable[[], object]] = []
        self.passage: Any = None

    def detach(self) -> None:
        """Restore everything that this injection changed. Idempotent; other injections stay."""
        with registry.lock:
            self.attached = False
            registry.forget(self)
            for undo in reversed(self._undo):
                undo()
            self._undo.clear()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = "attached" if self.attached else "detached"
        return f"<Handle {self.framework or 'off'}, {state}, endpoint {self.config.endpoint}>"


def inject_runtime(
    agent: Any,
    *,
    endpoint: str | None = None,
    component: str | Iterable[str] | None = None,
    **settings: Any,
) -> Handle:
    """Send the LLM calls that `agent` makes for `component` to the training server, and record its rollouts.

    settings: the other client settings, see ClientConfig; an argument beats the environment beats lightning.toml.
    Raises SettingError for an unknown or wrong setting or an unknown component, AgentError for an object without an
    entry that could be wrapped. The same call again returns the same handle.
    """
    wanted = component if component is None or isinstance(component, str) else list(component)
    config = read_config({"endpoint": endpoint, "component": wanted, **settings})
    if not config.runtime_injection:
        return Handle(config=config, framework=None, selector=Selector())
    framework = adapter_for(agent)
    names = framework.components(agent)
    selector = select(config.component, names)
    with registry.lock:
        for known in registry.handles_of(agent):
            if known.config == config:
                return known
        handle = Handle(config=config, framework=framework, selector=selector)
        handle.components = names
        try:
            _attach(handle, agent, framework)
        except BaseException:
            handle.detach()
            raise
    return handle


def _attach(handle: Handle, agent: Any, framework: Framework) -> None:
    from agent_lightning.client import profiling
    from agent_lightning.client.entry import Passage
    from agent_lightning.client.install import install
    from agent_lightning.client.live import LiveSource
    from agent_lightning.client.outbox import OUTBOX

    name = framework.agent_name(agent)
    source = LiveSource(handle.config)
    handle.passage = Passage(
        source=source,
        selector=handle.selector,
        name=name,
        title=name or getattr(agent, "__qualname__", type(agent).__qualname__),
    )
    if isinstance(agent, types.FunctionType):
        _wrap_function(handle, agent)
    else:
        _wrap_class(handle, agent, framework)
    handle._undo += [install().remove, source.close]
    if handle.config.profiling_mode:
        profiling.begin(OUTBOX.lost)
    handle.attached = True


def _wrap_class(handle: Handle, agent: Any, framework: Framework) -> None:
    owner = type(agent)
    entries = framework.entries(agent)
    if isinstance(agent, type) or not entries:
        raise AgentError(f"{agent!r} has no entry point that could be wrapped: pass the agent object itself")
    for entry in entries:
        _share(handle, entry.owner, entry.method, lambda name, entry=entry: Patch(entry.owner, name, _entered(entry)))
    for name in (*framework.copiers(agent), *NAMES):
        if hasattr(owner, name):
            _share(handle, owner, name, lambda name: Patch(owner, name, _copied))
        elif name in NAMES:
            _share(handle, owner, name, lambda name: CopyHook(owner, name))
    registry.remember(handle, agent)


def _share(handle: Handle, owner: type, name: str, make: Callable[[str], Patch | CopyHook]) -> None:
    """Use the patch of `owner.name` that stands, or make it; the last handle that leaves undoes it."""
    patch, users = _wrapped.get((owner, name), (None, 0))
    if patch is None:
        try:
            patch = make(name)
        except (AttributeError, TypeError) as error:
            raise AgentError(
                f"{owner.__qualname__}.{name} cannot be wrapped ({error}): pass an object of a class of your own"
            ) from error
    _wrapped[owner, name] = (patch, users + 1)
    handle._undo.append(lambda: _unshare(owner, name))


def _unshare(owner: type, name: str) -> None:
    patch, users = _wrapped[owner, name]
    if users > 1:
        _wrapped[owner, name] = (patch, users - 1)
        return
    del _wrapped[owner, name]
    patch.undo()


def _wrap_function(handle: Handle, agent: types.FunctionType) -> None:
    """A function has no class to wrap: its name in its module is replaced."""
    module = sys.modules.get(agent.__module__)
    if module is None or vars(module).get(agent.__name__) is not agent:
        raise AgentError(
            f"{agent.__qualname__} is a function that its module does not hold under this name, so that its callers "
            "cannot be reached: define it at the top of a module, or pass an object with run, invoke or __call__"
        )
    handle._undo.append(Patch(module, agent.__name__, lambda w, _, a, k: handle.passage.run(w, a, k)).undo)


def _entered(entry: Entry) -> Callable[..., Any]:
    def wrapper(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handles = registry.handles_of(entry.agent(instance, args, kwargs))
        if not handles:
            return wrapped(*args, **kwargs)
        return handles[-1].passage.run(wrapped, args, kwargs, entry)

    return wrapper


def _copied(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    copy = wrapped(*args, **kwargs)
    registry.remember_copy(instance, copy)
    return copy
