"""One passage of an agent through its entry point: it joins the rollout it runs in, or begins a live one.

The context variable is set only while the agent's own code runs: around a call, a coroutine, or each single step of a
generator; never across a yield, where it would leak into the caller.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from agent_lightning.client import report
from agent_lightning.client.component import Selector
from agent_lightning.client.live import LiveSource
from agent_lightning.client.scope import Scope, current, enter
from agent_lightning.client.semconv import Status


class Passage:
    """How calls into one injected agent are run."""

    def __init__(self, *, source: LiveSource, selector: Selector, name: str | None, title: str) -> None:
        self._source, self._selector, self._name, self._title = source, selector, name, title

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the agent's own `function`, whatever kind of function it is."""
        if inspect.isasyncgenfunction(function):
            return self._asyncgen(None, lambda: function(*args, **kwargs), args)
        if inspect.isgeneratorfunction(function):
            return self._generator(None, lambda: function(*args, **kwargs), args)
        if inspect.iscoroutinefunction(function):
            return self._coroutine(None, lambda: function(*args, **kwargs), args)
        return self._value(function, args, kwargs)

    def _value(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        visit = self._visit(args)
        try:
            with enter(visit.scope):
                result = function(*args, **kwargs)
        except BaseException as error:
            visit.leave(error=error)
            raise
        # A plain function may hand out something that runs later: the rollout ends with it.
        if inspect.isasyncgen(result):
            return self._asyncgen(visit, lambda: result, args)
        if inspect.isgenerator(result):
            return self._generator(visit, lambda: result, args)
        if inspect.iscoroutine(result):
            return self._coroutine(visit, lambda: result, args)
        visit.leave(result=result)
        return result

    async def _coroutine(self, visit: _Visit | None, make: Callable[[], Awaitable[Any]], args: tuple[Any, ...]) -> Any:
        visit = visit or await self._avisit(args)
        try:
            with enter(visit.scope):
                result = await make()
        except BaseException as error:
            visit.leave(error=error)
            raise
        visit.leave(result=result)
        return result

    def _generator(
        self, visit: _Visit | None, make: Callable[[], Iterator[Any]], args: tuple[Any, ...]
    ) -> Iterator[Any]:
        visit = visit or self._visit(args)
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

    async def _asyncgen(
        self, visit: _Visit | None, make: Callable[[], AsyncIterator[Any]], args: tuple[Any, ...]
    ) -> AsyncIterator[Any]:
        visit = visit or await self._avisit(args)
        inner: Any = make()
        sent: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    with enter(visit.scope):
                        item = await (inner.asend(sent) if thrown is None else inner.athrow(thrown))
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
                await inner.aclose()
            visit.leave(result=None)
            raise
        except BaseException as error:
            visit.leave(error=error)
            raise

    def _visit(self, args: tuple[Any, ...]) -> _Visit:
        outer = current()
        return self._joined(outer) if outer else self._begun(self._source.begin(_first(args)))

    async def _avisit(self, args: tuple[Any, ...]) -> _Visit:
        outer = current()
        if outer:
            return self._joined(outer)
        return self._begun(await asyncio.to_thread(self._source.begin, _first(args)))

    def _joined(self, outer: Scope) -> _Visit:
        return _Visit(outer.joined(self._selector, self._name))

    def _begun(self, scope: Scope) -> _Visit:
        return _Visit(scope.joined(self._selector, self._name), source=self._source, title=self._title)


class _Visit:
    """One passage under way. `leave` ends the rollout if this passage began it; the second time it does nothing."""

    def __init__(self, scope: Scope, *, source: LiveSource | None = None, title: str = "") -> None:
        self.scope, self._source, self._title = scope, source, title

    def leave(self, *, error: BaseException | None = None, result: Any = None) -> None:
        source, self._source = self._source, None
        if source is not None and self.scope.routed:
            source.end(self.scope, error=error, result=result)
            report.rollout_span(self.scope, name=self._title, status=Status.OK if error is None else Status.ERROR)


def _advance(inner: Any, sent: Any, thrown: BaseException | None) -> Any:
    return inner.send(sent) if thrown is None else inner.throw(thrown)


def _first(args: tuple[Any, ...]) -> Any:
    return args[0] if args else None
