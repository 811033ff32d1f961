"""Names the part of an agent that runs, for frameworks that do not say it themselves. Does nothing outside of a rollout."""

from __future__ import annotations

import logging
from typing import Any

from agent_lightning.client import naming
from agent_lightning.client.crossing import Crossing
from agent_lightning.client.frameworks import FRAMEWORKS
from agent_lightning.client.frameworks.framework import Part
from agent_lightning.client.patch import Patch
from agent_lightning.client.scope import Scope, current

_log = logging.getLogger("agent_lightning")

MODULES = tuple(dict.fromkeys(part.module for framework in FRAMEWORKS for part in framework.parts))


def patch_module(module: Any) -> list[Patch]:
    """Wrap what an imported module of a framework has of parts. One that is not there is said, and left unnamed."""
    made = []
    for part in (part for framework in FRAMEWORKS for part in framework.parts if part.module == module.__name__):
        *classes, function = part.path.split(".")
        owner = module
        try:
            for name in classes:
                owner = getattr(owner, name)
            made.append(Patch(owner, function, _named_by(part)))
        except (AttributeError, TypeError) as error:
            _log.warning(
                "agent-lightning knows no %s.%s in this version (%s): calls below it carry no name of their component",
                part.module,
                part.path,
                error,
            )
    return made


class _Visit:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def leave(self, *, error: BaseException | None = None, result: Any = None) -> None:
        """Nobody waits for a part."""


class _Into(Crossing):
    def __init__(self, scope: Scope, part: Part) -> None:
        self._visit, self.hands_out_more = _Visit(scope), part.hands_out_more

    def begin(self) -> _Visit:
        return self._visit


def _named_by(part: Part) -> Any:
    def wrapper(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = current()
        name = part.name(instance, args, kwargs) if scope is not None and scope.routed else None
        if scope is None or name is None:
            return wrapped(*args, **kwargs)
        return _Into(naming.in_part(scope, name), part).run(wrapped, args, kwargs)

    return wrapper
