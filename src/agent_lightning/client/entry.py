"""One passage of an agent through its entry point: it joins the rollout it runs in, or begins a live one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agent_lightning.client import naming, report
from agent_lightning.client.component import Selector
from agent_lightning.client.crossing import Crossing
from agent_lightning.client.frameworks.framework import Entry
from agent_lightning.client.live import LiveSource
from agent_lightning.client.scope import Scope, current
from agent_lightning.client.semconv import Status


class Passage:
    """How calls into one injected agent are run."""

    def __init__(self, *, source: LiveSource, selector: Selector, name: str | None, title: str) -> None:
        self.source, self.title = source, title
        self._selector, self._name = selector, name

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], entry: Entry | None = None
    ) -> Any:
        """Call the agent's own `function`."""
        asked = entry.asked(args, kwargs) if entry is not None else args[0] if args else None
        return _Through(self, asked, entry).run(function, args, kwargs)

    def joined(self, outer: Scope) -> _Visit:
        return _Visit(naming.in_agent(outer, self._selector, self._name))

    def begun(self, scope: Scope) -> _Visit:
        inner = naming.in_agent(scope, self._selector, self._name)
        return _Visit(inner, source=self.source, title=self.title)


class _Through(Crossing):
    def __init__(self, passage: Passage, asked: Any, entry: Entry | None) -> None:
        self._passage, self._asked, self._entry = passage, asked, entry
        self.hands_out_more = entry is not None and entry.hands_out_more

    def begin(self) -> _Visit:
        outer = current()
        passage = self._passage
        return passage.joined(outer) if outer else passage.begun(passage.source.begin(self._asked))

    async def abegin(self) -> _Visit:
        outer = current()
        passage = self._passage
        if outer:
            return passage.joined(outer)
        return passage.begun(await asyncio.to_thread(passage.source.begin, self._asked))

    def runs_on(self, result: Any) -> asyncio.Future[Any] | None:
        if self._entry is None or self._entry.runs_on is None:
            return super().runs_on(result)
        return self._entry.runs_on(result)


class _Visit:
    """`leave` ends the rollout if this passage began it; the second time it does nothing."""

    def __init__(self, scope: Scope, *, source: LiveSource | None = None, title: str = "") -> None:
        self.scope, self._source, self._title = scope, source, title

    def leave(self, *, error: BaseException | None = None, result: Any = None) -> None:
        source, self._source = self._source, None
        if source is not None and self.scope.routed:
            source.end(self.scope, error=error, result=result)
            report.rollout_span(self.scope, name=self._title, status=Status.OK if error is None else Status.ERROR)
