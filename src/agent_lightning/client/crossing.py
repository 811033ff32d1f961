"""Running a stranger's function inside a scope, whatever it hands out: a value, or something that runs later.

The context variable is set only while the stranger's own code runs: around a call, a coroutine, or each single step of
a generator; never across a yield, where it would leak into the caller.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol

from agent_lightning.client.scope import Scope, enter


class Visit(Protocol):
    """One passage under way."""

    scope: Scope

    def leave(self, *, error: BaseException | None = None, result: Any = None) -> None:
        """It is over. The second time this does nothing."""
        ...


class Crossing:
    """How a function is run: `begin` says in which scope, and what happens at the end."""

    hands_out_more = False  # the function may return an async context manager, or what is awaited or iterated later

    def begin(self) -> Visit:
        raise TypeError(f"{type(self).__name__} must say how a passage begins")

    async def abegin(self) -> Visit:
        """The same, where waiting must not stop the event loop."""
        return self.begin()

    def runs_on(self, result: Any) -> asyncio.Future[Any] | None:
        """What is still to end when the function has returned `result`, None when nothing is."""
        return result if isinstance(result, asyncio.Future) else None

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `function`, whatever kind of function it is."""
        if inspect.isasyncgenfunction(function):
            return self._asyncgen(None, lambda: function(*args, **kwargs))
        if inspect.isgeneratorfunction(function):
            return self._generator(None, lambda: function(*args, **kwargs))
        if inspect.iscoroutinefunction(function):
            return self._coroutine(None, lambda: function(*args, **kwargs))
        return self._value(function, args, kwargs)

    def _value(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        visit = self.begin()
        try:
            with enter(visit.scope):
                result = function(*args, **kwargs)
        except BaseException as error:
            visit.leave(error=error)
            raise
        # A plain function may hand out something that runs later: the visit ends with it.
        if inspect.isasyncgen(result):
            return self._asyncgen(visit, lambda: result)
        if inspect.isgenerator(result):
            return self._generator(visit, lambda: result)
        if inspect.iscoroutine(result):
            return self._coroutine(visit, lambda: result)
        future = self.runs_on(result)
        if future is not None:
            future.add_done_callback(lambda done: _leave_with(visit, done))
            return result
        if self.hands_out_more and (hasattr(type(result), "__aenter__") or hasattr(type(result), "__aiter__")):
            from agent_lightning.client.deferred import Deferred

            return Deferred(result, visit, self._asyncgen)
        visit.leave(result=result)
        return result

    async def _coroutine(self, visit: Visit | None, make: Callable[[], Awaitable[Any]]) -> Any:
        visit = visit or await self.abegin()
        try:
            with enter(visit.scope):
                result = await make()
        except BaseException as error:
            visit.leave(error=error)
            raise
        visit.leave(result=result)
        return result

    def _generator(self, visit: Visit | None, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        visit = visit or self.begin()
        inner: Any = make()
        sent: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    with enter(visit.scope):
                        item = _advance(inner, sent, thrown)
                except StopIteration as stop:
                    visit.leave(result=stop.value)
                    return stop.value
                sent = thrown = None
                try:
                    sent = yield item
                except GeneratorExit:
                    raise
                except BaseException as error:
                    thrown = error
        except GeneratorExit:
            with enter(visit.scope):
                inner.close()
            visit.leave(result=None)
            raise
        except BaseException as error:
            visit.leave(error=error)
            raise

    async def _asyncgen(self, visit: Visit | None, make: Callable[[], AsyncIterator[Any]]) -> AsyncIterator[Any]:
        visit = visit or await self.abegin()
        inner: Any = make()
        sent: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    with enter(visit.scope):
                        item = await _aadvance(inner, sent, thrown)
                except StopAsyncIteration:
                    visit.leave(result=None)
                    return
                sent = thrown = None
                try:
                    sent = yield item
                except GeneratorExit:
                    raise
                except BaseException as error:
                    thrown = error
        except GeneratorExit:
            with enter(visit.scope):
                await _aclose(inner)
            visit.leave(result=None)
            raise
        except BaseException as error:
            visit.leave(error=error)
            raise


def _leave_with(visit: Visit, done: asyncio.Future[Any]) -> None:
    error = asyncio.CancelledError() if done.cancelled() else done.exception()
    visit.leave(error=error, result=None if error else done.result())


def _advance(inner: Any, sent: Any, thrown: BaseException | None) -> Any:
    return inner.send(sent) if thrown is None else inner.throw(thrown)


async def _aadvance(inner: Any, sent: Any, thrown: BaseException | None) -> Any:
    if not inspect.isasyncgen(inner):  # an iterator of a framework's own takes nothing in
        if thrown is not None:
            raise thrown
        return await anext(inner)
    return await (inner.asend(sent) if thrown is None else inner.athrow(thrown))


async def _aclose(inner: Any) -> None:
    if hasattr(inner, "aclose"):
        await inner.aclose()
