"""R child processes behind one engine and one learner, kept alive.

All children hold the same weights. When one dies, its peers wait for it in vain, so all of them are ended and started
again from the folder that was saved or restored last (else from the seed): running requests fail with EngineBusy, an
update in flight with ReplicaLost. Calls that come meanwhile wait for the new crew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from agent_lightning.errors import CheckpointError, EngineBusy, EngineError, LearnerError, LightningError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import Batch, UpdateReport
from agent_lightning.replica.anchor import Anchor
from agent_lightning.replica.crew import Crew
from agent_lightning.replica.nursery import Nursery
from agent_lightning.replica.replica import ReplicaConfig, ReplicaLost
from agent_lightning.replica.shares import physical_cores, split, together

TORCH_HOST = "agent_lightning.replica.torch_host:TorchHost"
START_SECONDS = 600.0  # the first start may have to convert a model
WAIT_SECONDS = 30.0  # of a request for a crew that is being started again
LOAD_SECONDS = 0.25  # a child in an update answers late: then its last known load counts
RESTARTS, RESTART_SECONDS = 5, 300.0  # more restarts than this in so many seconds have a cause that stays

T = TypeVar("T")

log = logging.getLogger("agent_lightning.replica")


class ReplicaPool:
    """Implements Replicas. `says` hears what the children do while they start."""

    def __init__(
        self,
        config: ReplicaConfig,
        *,
        host: str = TORCH_HOST,
        start_seconds: float = START_SECONDS,
        says: Callable[[str], None] = log.info,
    ) -> None:
        self._config = config
        self._count = config.replicas or physical_cores()
        self._nursery = Nursery(config, host=host, says=says)
        self._start_seconds = start_seconds
        self._says = says
        self.restarts = 0
        self.last_words = ""  # why the last crew was lost, with the end of its stderr
        self.version = 0  # of the learner's weights
        self._crew: asyncio.Future[Crew] | None = None  # pending while a crew starts; failed when none can be had
        self._living: Crew | None = None  # the newest crew, ready or not
        self._keeper: asyncio.Task[None] | None = None
        self._anchors: deque[Anchor] = deque(maxlen=3)  # newest last; a draft that was given up vanishes again
        self._fell_back: str | None = None  # why the version went back, until a caller was told
        self._order = asyncio.Lock()  # of what changes weights: the same on every child
        self._acts: set[asyncio.Task[Any]] = set()

    @property
    def pids(self) -> list[int]:
        """Of the living children, by rank."""
        return [child.pid for child in self._living.children if child.spawned] if self._living else []

    async def start(self) -> None:
        """Start all children and give when they are ready.

        Raises what hinders a child (ModelError, SettingError, ...), or EngineError that names the one that is late.
        """
        assert self._keeper is None, "start is called once"
        self._crew = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(), name="supervision of the replicas")
        self._keeper.add_done_callback(self._unless_kept)
        try:
            await asyncio.shield(self._crew)
        except BaseException:
            await self.close()
            raise

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        crew = await self._soon()
        if any(line.runs(request.id) for line in crew.lines):
            raise EngineError(f"request {request.id!r} is running already: every running request needs its own id")
        async with contextlib.aclosing(crew.line_for(request.affinity).generate(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def abort(self, request_id: str) -> None:
        for line in self._living.lines if self._living else ():
            if line.runs(request_id):
                line.abort(request_id)

    async def publish(self, adapter: Adapter) -> None:
        await (await self._soon()).ask_all("publish", adapter=adapter)

    async def load(self) -> EngineLoad:
        crew = await self._soon()
        loads = await asyncio.gather(*(line.fresh_load(LOAD_SECONDS) for line in crew.lines))
        return together([load for load in loads if load is not None])

    async def update(self, batch: Batch, *, rate: float, version: int) -> UpdateReport:
        """See Replicas. Raises ReplicaLost when a child dies meanwhile; the same call may then be made again."""
        return await self._in_order(self._update(batch, rate, version))

    async def serve(self) -> int:
        return await self._in_order(self._serve())

    async def save(self, folder: Path) -> None:
        await self._in_order(self._save(folder))

    async def restore(self, folder: Path) -> int:
        return await self._in_order(self._restore(folder))

    async def close(self) -> None:
        """End all children. May be called again, and from a cancelled task."""
        if self._keeper is None:
            return
        self._keeper.cancel()
        try:
            await asyncio.wait([self._keeper])
        finally:
            if self._living is not None:
                self._living.kill()
            self._nursery.close()
            if self._crew is not None and not self._crew.done():
                self._refuse(EngineBusy("the replicas are closed"))
            while self._anchors:
                self._anchors.pop().close()

    async def _update(self, batch: Batch, rate: float, version: int) -> UpdateReport:
        crew = await self._ready()
        if version != self.version + 1:
            self._tell_if_fallen_back()
            raise LearnerError(
                f"update {version} came while the weights are at {self.version}: {self.version + 1} is next"
            )
        self._fell_back = None
        shares = split(batch, len(crew.children))
        questions = [{"batch": share, "rate": rate, "version": version} for share in shares]
        answers: list[tuple[UpdateReport, str]] = await self._heard(crew.ask_each("update", questions))
        report = answers[0][0]
        states = {(told.version, told.applied, fingerprint) for told, fingerprint in answers}
        if len(states) > 1:
            reason = f"the replicas disagree after update {version}: {sorted(states)}"
            crew.give_up(reason)
            raise self._lost(reason)
        self.version = report.version
        return report

    async def _serve(self) -> int:
        crew = await self._ready()
        self._tell_if_fallen_back()
        versions = await self._heard(crew.ask_all("serve"))
        assert set(versions) == {self.version}, f"the replicas serve {versions}, the learner has {self.version}"
        return self.version

    async def _save(self, folder: Path) -> None:
        crew = await self._ready()
        self._tell_if_fallen_back()
        await self._heard(crew.lines[0].ask("save", folder=_absolute(folder)))
        self._remember(folder, self.version)

    async def _restore(self, folder: Path) -> int:
        crew = await self._ready()
        version: int = (await self._heard(crew.ask_all("restore", folder=_absolute(folder))))[0]
        self._remember(folder, version)
        self.version, self._fell_back = version, None
        return version

    async def _in_order(self, act: Coroutine[Any, Any, T]) -> T:
        """One at a time, and to its end though the caller is cancelled: what we know must match what the children do."""

        async def turn() -> T:
            async with self._order:
                return await act

        task = asyncio.create_task(turn())
        self._acts.add(task)
        task.add_done_callback(self._acts.discard)
        return await asyncio.shield(task)

    async def _heard(self, answers: Coroutine[Any, Any, T]) -> T:
        """The answers, or ReplicaLost with the version that the replicas come back with."""
        try:
            return await answers
        except ReplicaLost as lost:
            raise self._lost(str(lost)) from None

    def _lost(self, reason: str) -> ReplicaLost:
        anchor = self._anchor()
        self.version, self._fell_back = anchor.version if anchor else 0, None
        return ReplicaLost(f"{reason}\nThe replicas come back with version {self.version}.", version=self.version)

    def _tell_if_fallen_back(self) -> None:
        """Nobody waited when the crew was lost: the first who asks for weights that are gone learns it."""
        if self._fell_back is not None:
            raise self._lost(self._fell_back)

    async def _ready(self) -> Crew:
        """The crew, once it is ready. Raises the reason when none can be had."""
        assert self._crew is not None, "start was not called"
        return await asyncio.shield(self._crew)

    async def _soon(self) -> Crew:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await self._ready()
        except TimeoutError:
            raise EngineBusy(
                f"the replicas are being started again; the last ones were lost: {self.last_words}"
            ) from None

    async def _keep(self) -> None:
        """Start a crew, wait until it is lost, start the next. Ends when cancelled, or when restarts do not help."""
        losses: deque[float] = deque(maxlen=RESTARTS + 1)
        while True:
            crew = self._living = Crew(
                self._config, self._count, nursery=self._nursery, says=self._says, failing=self._renew
            )
            try:
                reason = await self._live(crew)
            except (LightningError, OSError) as error:
                if not self.restarts:
                    return self._refuse(error)
                reason = str(error)
            finally:
                await crew.end()
            losses.append(asyncio.get_running_loop().time())
            if len(losses) > RESTARTS and losses[-1] - losses[0] < RESTART_SECONDS:
                return self._refuse(
                    EngineError(f"the replicas were lost {len(losses)} times in a row, lastly: {reason}")
                )
            self.restarts += 1
            self.last_words = reason
            log.warning("The replicas are started again, because %s", reason)

    def _unless_kept(self, keeper: asyncio.Task[None]) -> None:
        """A mistake of ours in the supervision must not leave anybody waiting."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._refuse(EngineError(f"the supervision of the replicas failed: {error!r}"))

    async def _live(self, crew: Crew) -> str:
        """One crew's life, told by its end."""
        await crew.start(self._start_seconds)
        anchor = self._anchor()
        if anchor is not None:
            await crew.ask_all("restore", folder=anchor.folder)
        version = anchor.version if anchor else 0
        if version != self.version:
            self._fell_back = self.last_words
            self.version = version
        assert self._crew is not None
        if not crew.lost.done():
            self._crew.set_result(crew)
        await asyncio.wait([crew.lost])
        return crew.lost.result()

    def _renew(self) -> None:
        """From this instant on calls wait for the next crew."""
        if self._crew is not None and self._crew.done():
            self._crew = asyncio.get_running_loop().create_future()

    def _refuse(self, error: Exception) -> None:
        """Whoever waits for a crew, now or later, gets this error."""
        self._renew()
        assert self._crew is not None
        self._crew.set_exception(error)
        self._crew.exception()  # nobody has to wait for it

    def _remember(self, folder: Path, version: int) -> None:
        if len(self._anchors) == self._anchors.maxlen:
            self._anchors.popleft().close()
        self._anchors.append(Anchor(folder, version))

    def _anchor(self) -> Anchor | None:
        """The newest folder that is still there; None before anything was saved. Raises CheckpointError."""
        if not self._anchors:
            return None
        present = [anchor for anchor in self._anchors if anchor.present]
        if not present:
            raise CheckpointError(
                f"the replicas have to come back from {self._anchors[-1].folder} and it is no longer there: "
                "keep the folder that was saved last"
            )
        return present[-1]


def _absolute(folder: Path) -> str:
    """A child need not stand in the directory in which we stand now."""
    return os.path.abspath(folder)
