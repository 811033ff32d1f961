"""Stands before what a framework hands out to be awaited, entered or iterated later, and keeps it inside its scope."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import wrapt

from agent_lightning.client.crossing import Visit
from agent_lightning.client.scope import enter

_STEPS = frozenset({"next", "get_final_response"})  # methods of frameworks' objects that run what is left to run


class Deferred(wrapt.ObjectProxy):
    """In all other respects the object itself. The visit ends when it is awaited, left, or iterated to its end."""

    def __init__(self, wrapped: Any, visit: Visit, iterate: Callable[..., AsyncIterator[Any]]) -> None:
        super().__init__(wrapped)
        self._self_visit, self._self_iterate = visit, iterate

    async def __aenter__(self) -> Any:
        try:
            with enter(self._self_visit.scope):
                entered = await self.__wrapped__.__aenter__()
        except BaseException as error:
            self._self_visit.leave(error=error)
            raise
        if entered is self.__wrapped__:
            return self
        # What is driven step by step inside the block runs in the same scope; the visit ends with the block.
        return (
            Deferred(entered, self._self_visit, self._self_iterate) if hasattr(type(entered), "__anext__") else entered
        )

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        try:
            with enter(self._self_visit.scope):
                return await self.__wrapped__.__aexit__(kind, error, traceback)
        finally:
            self._self_visit.leave(error=error)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._self_awaited().__await__()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._self_iterate(self._self_visit, self.__wrapped__.__aiter__)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in _STEPS:
            return found

        async def step(*args: Any, **kwargs: Any) -> Any:
            with enter(self._self_visit.scope):
                return await found(*args, **kwargs)

        return step

    async def _self_awaited(self) -> Any:
        return await self._self_finished(lambda: self.__wrapped__)

    async def _self_finished(self, make: Callable[[], Any]) -> Any:
        try:
            with enter(self._self_visit.scope):
                result = await make()
        except BaseException as error:
            self._self_visit.leave(error=error)
            raise
        self._self_visit.leave(result=result)
        return result
