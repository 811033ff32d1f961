"""One life of R children. They share a collective, so when one is lost all of them end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent_lightning.errors import EngineError, PeerLost
from agent_lightning.replica.line import Line
from agent_lightning.replica.nursery import Nursery
from agent_lightning.replica.process import ChildProcess
from agent_lightning.replica.replica import ReplicaConfig, ReplicaLost
from agent_lightning.replica.shares import Affinity

GRACE_SECONDS = 5.0  # for the other ranks to refuse, too, what one refused
STOP_SECONDS = 1.0


class Crew:
    """`start`, use, `end`. `lost` is set with the reason as soon as one child is gone."""

    def __init__(
        self,
        config: ReplicaConfig,
        count: int,
        *,
        nursery: Nursery,
        says: Callable[[str], None],
        failing: Callable[[], None],
    ) -> None:
        """`failing` is called at the first sign of a loss, before anything that waits for this crew hears of it."""
        self._config = config
        self._nursery = nursery
        self._failing = failing
        self.children = [ChildProcess(f"replica {rank}", says=says, ending=failing) for rank in range(count)]
        self.affinity = Affinity(count)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._meeting = Path(tempfile.mkdtemp(prefix="agent-lightning-"))  # where the ranks find each other
        self._watch: asyncio.Task[None] | None = None

    @property
    def lines(self) -> list[Line]:
        return [child.line for child in self.children]

    async def start(self, seconds: float) -> None:
        """Give when all children are ready. Raises what a child could not do, or EngineError naming the late one."""
        await self._nursery.open(seconds)
        for rank, child in enumerate(self.children):
            await child.spawn(self._nursery.fork, self._begin(rank))
            child.ended.add_done_callback(lambda ended: self.give_up(ended.result()))
        waiting = [child.ready for child in self.children]
        done, late = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for ready in done:
            ready.result()
        if late:
            raise EngineError(f"not ready after {seconds:.0f} s: " + "; ".join(self._late()))
        self._watch = asyncio.create_task(self._watch_hearts(), name="heartbeats of the replicas")

    def line_for(self, affinity: str) -> Line:
        lines = self.lines
        return lines[self.affinity.choose(affinity, [line.in_flight for line in lines])]

    async def ask_each(self, kind: str, questions: Sequence[dict[str, Any]]) -> list[Any]:
        """Question i to child i; gives the answers in order.

        Raises the first refusal. If the others do not refuse as well, they wait for the refusing rank in a collective
        that cannot end any more: then the crew is lost.
        """
        asked = [
            asyncio.ensure_future(line.ask(kind, **fields)) for line, fields in zip(self.lines, questions, strict=True)
        ]
        try:
            _, pending = await asyncio.wait(asked, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                pending = (await asyncio.wait(pending, timeout=GRACE_SECONDS))[1]
            refusals = [task.exception() for task in asked if task.done() and task.exception()]
            parted = bool(pending) or 0 < len(refusals) < len(asked)
            if parted and not self.lost.done():
                self.give_up(
                    f"only some of the replicas could {kind}: {refusals[0] if refusals else 'no reason given'}"
                )
            if refusals:
                raise _cause(refusals)
            return [task.result() for task in asked]
        finally:
            for task in asked:
                task.cancel()

    async def ask_all(self, kind: str, **fields: Any) -> list[Any]:
        return await self.ask_each(kind, [fields] * len(self.children))

    def give_up(self, reason: str) -> None:
        """End this life: the children cannot be trusted any more."""
        if not self.lost.done():
            self._lose(reason)
            self.kill()

    def kill(self) -> None:
        """End every child at once."""
        for child in self.children:
            child.kill()

    async def end(self) -> None:
        """Let ready children stop, then make them. None is left when this returns, also when it is cancelled."""
        try:
            if not self.lost.done() and self._watch is not None:
                self._lose("the replicas are closed")
                for child in self.children:
                    child.stop()
                await asyncio.wait([child.ended for child in self.children], timeout=STOP_SECONDS)
        finally:
            self._lose("the replicas are closed")
            if self._watch is not None:
                self._watch.cancel()
            self.kill()
            for child in self.children:
                child.reap()
            shutil.rmtree(self._meeting, ignore_errors=True)

    def _begin(self, rank: int) -> dict[str, Any]:
        return {
            "kind": "begin",
            "config": self._config,
            "rank": rank,
            "count": len(self.children),
            "meeting": self._meeting,
        }

    def _late(self) -> list[str]:
        return [
            f"{child.name} (pid {child.pid}) last said: {child.said}"
            for child in self.children
            if not child.ready.done()
        ]

    def _lose(self, reason: str) -> None:
        """Everything that waits for the children hears that they are gone."""
        if self.lost.done():
            return
        self._failing()
        self.lost.set_result(reason)
        for child in self.children:
            child.line.cut(reason)

    async def _watch_hearts(self) -> None:
        """Give the crew up when a child is silent for too long.

        A child that waits inside a collective is as alive as the ranks it waits for; when all wait, none is.
        """
        loop = asyncio.get_running_loop()
        limit = self._config.heartbeat_seconds
        pause = min(1.0, limit / 4)
        while not self.lost.done():
            before = loop.time()
            await asyncio.sleep(pause)
            if loop.time() - before > 2 * pause:  # this loop was held up, so nothing could be heard meanwhile
                for line in self.lines:
                    line.heard_at = loop.time()
            silent = [child for child in self.children if loop.time() - child.line.heard_at > limit]
            stuck = [child for child in silent if not child.line.waiting]
            if stuck or len(silent) == len(self.children):
                names = ", ".join(f"{child.name} (pid {child.pid})" for child in stuck or silent)
                self.give_up(f"{names} said nothing for {limit:g} s and was taken for dead")


def _cause(refusals: Sequence[BaseException | None]) -> BaseException:
    """What is wrong: a rank's own reason before the silence of a lost one, which is all that its peers can report."""
    own = [error for error in refusals if error is not None and not isinstance(error, ReplicaLost | PeerLost)]
    if own:
        return own[0]
    lost = next((error for error in refusals if isinstance(error, ReplicaLost)), None)
    return lost or ReplicaLost(str(refusals[0]))
