"""`gc`: old texts and tokens go, numbers stay. `forget`: one rollout goes, down to the last byte in the files."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sqlite3 import Connection

import typer

from agent_lightning.cli.kept import Need, needs, replayed_after
from agent_lightning.cli.runs import run_folder
from agent_lightning.errors import Conflict, LightningError, SettingError
from agent_lightning.records import Rollout, RolloutStatus
from agent_lightning.store import attempts, retention, rollouts
from agent_lightning.store.retention import Freed, TrainedOn
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.store.upkeep import PAUSE, Upkeep
from agent_lightning.trainer import report
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.holding import gone
from agent_lightning.trainer.journal import Journal
from agent_lightning.trainer.replay import decode, encode

AT_ONCE = 50  # rollouts cleared in one transaction: a server beside it waits for milliseconds
UNITS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
NOBODY = Need()


def seconds_of(age: str) -> float:
    """ "30d" -> 2592000.0. Raises SettingError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mhdw])\s*", age)
    if match is None:
        raise SettingError(f"--older-than is {age!r}: wanted a number of minutes, hours, days or weeks, such as 30d")
    return float(match[1]) * UNITS[match[2]]


# --- gc -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    ids: Sequence[str]
    kept: Counter[str]  # why -> old rollouts that keep their text


def gc(run: str, *, older_than: str, keep_training: bool, dry_run: bool) -> None:
    folder, before = run_folder(run), time.time() - seconds_of(older_than)
    with Upkeep(folder.store, gone=gone) as upkeep:
        size = upkeep.size
        plan = upkeep.read(planned, before, keep_training)
        version = None if keep_training else replayed_after(folder)
        if dry_run:
            freed = upkeep.read(retention.weigh, plan.ids)
            if version is not None:
                freed += upkeep.read(retention.weigh_payloads, folder.name, version, before)
            typer.echo(f"would delete {told(freed)}")
        else:
            freed = _clear(upkeep, plan.ids)
            if version is not None:
                freed += upkeep.write(retention.clear_payloads, folder.name, version, before)
            typer.echo(f"deleted {told(freed)}")
            typer.echo(_space(upkeep, size))
    for why, count in plan.kept.most_common():
        typer.echo(f"kept {count:,} older rollouts: {why}")


def planned(db: Connection, before: float, keep_training: bool) -> Plan:
    """Which old rollouts nobody needs. What is not needed now will not be needed later, so that a trainer may go on."""
    wanted, kept, ids = needs(db), Counter[str](), []
    trained = retention.trained(db) if keep_training else set()
    for old in retention.old(db, before):
        need = wanted.get(old.run_id, NOBODY)
        if need.to_go_on(old.id, old.mode, old.step):
            kept["a trainer that goes on will read them"] += 1
        elif need.to_report(old.mode, old.step):
            kept["the run's report shows them"] += 1
        elif old.id in trained:
            kept["a batch was trained on them (--keep-training)"] += 1
        else:
            ids.append(old.id)
    return Plan(ids=ids, kept=kept)


def _clear(upkeep: Upkeep, ids: Sequence[str]) -> Freed:
    freed = Freed()
    for start in range(0, len(ids), AT_ONCE):
        freed += upkeep.write(retention.clear, ids[start : start + AT_ONCE], time.time())
        time.sleep(PAUSE)  # whoever waits to write comes in between
    return freed


def _space(upkeep: Upkeep, size: int) -> str:
    """Give free pages back, in the way that harms nobody; says how much."""
    held = upkeep.held()
    if held is None:
        upkeep.give_back()
    elif upkeep.gives_back():
        upkeep.give_back_beside()
    else:
        return (
            f"run {held['id']} is being trained: the free space stays in {upkeep.path} and is used again; to give it "
            "back to the disk, do this again when the run is stopped"
        )
    return f"{upkeep.path}: {size / 1e6:,.1f} MB before, {upkeep.size / 1e6:,.1f} MB now"


def told(freed: Freed) -> str:
    return (
        f"the text and tokens of {freed.rollouts:,} rollouts: {freed.calls:,} calls, {freed.spans:,} spans, the samples "
        f"of {freed.batches:,} batches; {freed.bytes / 1e6:,.1f} MB"
    )


# --- forget ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    ids: Sequence[str]
    freed: Freed
    trained_on: Sequence[TrainedOn]
    others: Sequence[str]  # rollouts of the same task that keep its input


def forget(run: str, rollout_id: str, *, whole_task: bool) -> None:
    folder = run_folder(run)
    with Upkeep(folder.store, gone=gone) as upkeep:
        upkeep.zero_what_is_deleted()
        done = upkeep.write(_forget, upkeep, rollout_id, whole_task)
        pages = _written_anew(folder)
        upkeep.rewrite()
    _tell(done, pages)


def _forget(db: Connection, upkeep: Upkeep, rollout_id: str, whole_task: bool) -> Forgotten:
    """Raises RunInUse while the run is held, NotFound, and Conflict for a rollout that is still needed."""
    upkeep.refuse_if_held("what it holds in memory cannot be forgotten beside it")
    attempts.expire(db, time.time())  # of a server that was killed
    rollout = rollouts.find(db, rollout_id)
    same = retention.same_task(db, rollout.run_id, rollout.task.id)
    ids = sorted({rollout_id, *same}) if whole_task else [rollout_id]
    need = needs(db).get(rollout.run_id, NOBODY)
    for each in ids:
        _refuse_if_needed(rollouts.find(db, each), need)
    trained_on = retention.trained_on(db, ids)
    freed = retention.forget(db, ids, time.time(), without(ids))
    return Forgotten(ids=ids, freed=freed, trained_on=trained_on, others=[each for each in same if each not in ids])


def _refuse_if_needed(rollout: Rollout, need: Need) -> None:
    if rollout.status not in (RolloutStatus.FINISHED, RolloutStatus.CANCELLED):
        raise Conflict(f"rollout {rollout.id!r} is {rollout.status}: wait until it has ended, or cancel it")
    why = need.to_go_on(rollout.id, rollout.mode, rollout.step)
    if why is not None:
        raise Conflict(
            f"rollout {rollout.id!r} cannot be forgotten now, because the run could not go on without it: {why}. Let the "
            "run go on past it (agent-lightning train --resume), or delete the run's folder"
        )


def without(ids: Collection[str]) -> Callable[[bytes], bytes]:
    """A committed batch without the samples of these rollouts: it can be repeated still."""

    def cut(payload: bytes) -> bytes:
        batch = decode(payload)
        return encode(replace(batch, samples=tuple(s for s in batch.samples if s.rollout_id not in ids)))

    return cut


def _written_anew(folder: RunFolder) -> str | None:
    """The run's figures and report again, from what is remembered now; says what could not be."""
    asyncio.run(_figures(folder))
    if not folder.report.is_file():
        return None
    try:
        written = report.write(folder)
    except LightningError as error:
        folder.report.unlink()
        return f"{folder.report} was deleted: it could not be written anew ({error})"
    if written is None:
        folder.report.unlink()
    return None


async def _figures(folder: RunFolder) -> None:
    store = await SqliteStore.open(folder.store)
    try:
        await Journal(store, folder.name, folder).open()
    finally:
        await store.close()


def _tell(done: Forgotten, pages: str | None) -> None:
    for each in done.ids:
        typer.echo(f"forgotten: {each}")
    typer.echo(f"deleted {told(done.freed)}")
    if pages is not None:
        typer.echo(pages)
    if done.trained_on:
        typer.echo("policy versions trained on it, from which every later version descends:")
    else:
        typer.echo("no policy version was trained on it")
    for batch in done.trained_on:
        place = f", checkpoint {batch.checkpoint}" if batch.checkpoint else ""
        state = "" if batch.applied else ", its update was skipped"
        typer.echo(f"  {batch.policy} version {batch.version} (run {batch.run_id}, step {batch.step}{place}{state})")
    if done.others:
        typer.echo(
            f"{len(done.others):,} other rollouts of the same task keep its input ({', '.join(done.others[:3])}"
            f"{', ...' if len(done.others) > 3 else ''}): forget them too with --whole-task"
        )
    typer.echo("not reached: backups, exported models and files written by `trajectories`, your own task files")


# --- upgrade --------------------------------------------------------------------------------------------------------


def upgrade(run: str) -> None:
    """Opening the store brings it forward, in one transaction."""
    folder = Path(run) if (Path(run) / "store.db").is_file() else run_folder(run).path
    with Upkeep(folder / "store.db", gone=gone) as upkeep:
        typer.echo(f"{upkeep.path} has the schema of this version")
