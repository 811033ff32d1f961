"""Looking at a run's store from another process: one connection that cannot write, beside whoever holds the run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import func, select

from agent_lightning.errors import NotFound, StoreError
from agent_lightning.records import Attempt, Call, PolicyVersion, Reward, Rollout
from agent_lightning.store import calls, opening, rewards, rollouts, rows, schema, training
from agent_lightning.store.statements import param, sql

T = TypeVar("T")
_R, _A, _W = schema.rollouts, schema.attempts, schema.rewards
_TRAINED = (_R.c.run_id == param("run_id"), _R.c.mode == "train")
_FAILED = sql(
    select(_R.c.outcome, func.count(), func.min(_R.c.id))
    .where(*_TRAINED, _R.c.outcome.is_not(None), _R.c.outcome != "ok")
    .group_by(_R.c.outcome)
)
_REWARDED = select(_W.c.id).where(_W.c.rollout_id == _R.c.id, _W.c.target == "rollout").exists()
_UNREWARDED = sql(select(func.count(), func.min(_R.c.id)).where(*_TRAINED, _R.c.outcome == "ok", ~_REWARDED))
_STATES = sql(select(_R.c.status, func.count()).where(_R.c.run_id == param("run_id")).group_by(_R.c.status))
_HAS = sql(select(_R.c.id).where(_R.c.id == param("id")))
_ATTEMPTS = sql(select(_A).where(_A.c.rollout_id == param("rollout_id")).order_by(_A.c.number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Train rollouts that gave no sample for one reason."""

    reason: str  # an outcome's value
    count: int
    example: str | None  # a rollout's id


class StoreView:
    """Reads like SqliteStore, without a loop and without a lane. Close it, or use it in `with`.

    Raises StoreError when the file is missing, foreign, or of another schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise StoreError(f"{path} does not exist: the run has no store yet")
        try:
            self._db = read_only(path)
        except sqlite3.Error as error:
            raise opening.explain(str(path), error) from error
        try:
            if opening.is_older(str(path), self._db):
                raise StoreError(
                    f"{path} was written by an older version of agent-lightning: bring it forward with `agent-lightning "
                    f"upgrade {path.parent}`, or look at it with that version"
                )
        except StoreError:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def runs(self) -> list[Mapping[str, Any]]:
        return self._read(training.runs)

    def run(self, run_id: str) -> Mapping[str, Any]:
        """Id, settings, holder, held_since, lease_until, created_at, ended_at. Raises NotFound."""
        found = [run for run in self.runs() if run["id"] == run_id]
        if not found:
            raise NotFound(f"{self.path} holds no run {run_id!r}")
        return found[0]

    def events(self, run_id: str, kind: str | None = None) -> list[Mapping[str, Any]]:
        return self._read(training.events, run_id, kind)

    def versions(self, run_id: str) -> list[PolicyVersion]:
        return self._read(training.versions, run_id, None)

    def rollout(self, rollout_id: str) -> Rollout:
        """Raises NotFound."""
        return self._read(rollouts.find, rollout_id)

    def has_rollout(self, rollout_id: str) -> bool:
        return self._read(lambda db: db.execute(_HAS, {"id": rollout_id}).fetchone()) is not None

    def rollouts(
        self, run_id: str, *, step: int | None = None, mode: str | None = None, ids: Sequence[str] | None = None
    ) -> list[Rollout]:
        """In order of (step, group, sibling)."""
        return self._read(rollouts.listed, run_id, step, mode, ids)

    def siblings(self, rollout: Rollout) -> list[Rollout]:
        """The rollout's group, itself included."""
        found = self.rollouts(rollout.run_id, step=rollout.step, mode=rollout.mode)
        return [other for other in found if other.group_id == rollout.group_id]

    def attempts(self, rollout_id: str) -> list[Attempt]:
        return self._read(
            lambda db: [rows.attempt_of(row) for row in db.execute(_ATTEMPTS, {"rollout_id": rollout_id})]
        )

    def calls_of(self, rollout_ids: Sequence[str]) -> dict[str, list[Call]]:
        return self._read(calls.of_newest, rollout_ids)

    def rewards_of(self, rollout_ids: Sequence[str]) -> dict[str, list[Reward]]:
        return self._read(rewards.of_newest, rollout_ids)

    def states(self, run_id: str) -> dict[str, int]:
        """Status -> rollouts."""
        return self._read(lambda db: dict(db.execute(_STATES, {"run_id": run_id}).fetchall()))

    def dropped(self, run_id: str) -> list[Dropped]:
        """By reason, most frequent first."""
        given = {"run_id": run_id}
        found = [
            Dropped(reason=reason, count=count, example=example)
            for reason, count, example in self._read(lambda db: db.execute(_FAILED, given).fetchall())
        ]
        count, example = self._read(lambda db: db.execute(_UNREWARDED, given).fetchone())
        if count:
            found.append(Dropped(reason="no_reward", count=count, example=example))
        return sorted(found, key=lambda item: -item.count)

    def _read(self, operation: Callable[..., T], *given: Any) -> T:
        try:
            return operation(self._db, *given)
        except sqlite3.Error as error:
            raise opening.explain(str(self.path), error) from error


def read_only(path: Path) -> sqlite3.Connection:
    try:
        return opening.read_file(path)
    except sqlite3.OperationalError:
        if path.with_name(path.name + "-wal").exists():
            raise
    # A closed store in a folder where nothing may be written: without a log there is nothing to share.
    return sqlite3.connect(f"{opening.address(path)}?mode=ro&immutable=1", uri=True, check_same_thread=False)
