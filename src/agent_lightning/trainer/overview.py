"""What a run has done so far, read from its folder and store: the source of `show RUN` and of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from agent_lightning.metrics.declared import METRICS
from agent_lightning.records import Outcome
from agent_lightning.store.view import Dropped, StoreView
from agent_lightning.trainer.config import NAMES, SECRETS, TrainConfig
from agent_lightning.trainer.folder import RunFolder

REASONS: Mapping[str, str] = {
    Outcome.OK: "finished",
    Outcome.AGENT_ERROR: "the agent raised an error; a failure is not a zero, so it is left out unless failure_reward is set",
    Outcome.TIMEOUT: "the agent did not finish within rollout_deadline",
    Outcome.NO_REWARD: "nobody gave a reward, or the reward function failed",
    Outcome.NO_CALL: "no call of a trained component was seen",
    Outcome.OVER_LONG_PROMPT: "a prompt did not fit the context of the model",
    Outcome.INFRASTRUCTURE: "our side failed, attempt after attempt; it never counts",
    Outcome.LOST_WORKER: "the worker stopped sending heartbeats, attempt after attempt; it never counts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    value: Any
    default: Any  # None where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One evaluation of held-out tasks."""

    label: str  # "before", "eval" or "after"
    step: int
    body: Mapping[str, Any]  # Evaluation.as_json()

    @property
    def split(self) -> str:
        return "validation" if self.label == "eval" else "test"

    @property
    def success(self) -> float:
        return float(self.body["seen"]["success"])

    @property
    def n(self) -> int:
        return int(self.body["seen"]["n"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    text: str
    steps: tuple[int, ...]  # at which it was given


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    folder: RunFolder
    config: TrainConfig
    settings: Sequence[Setting]  # those that differ from their defaults
    steps: Sequence[tuple[int, Mapping[str, Any]]]  # (step, body) by step
    held: Sequence[Held]  # in the order in which they were measured
    alerts: Sequence[Alert]  # oldest first
    dropped: Sequence[Dropped]
    notes: Sequence[str] = ()  # how the run works, where that is not as usual
    states: Mapping[str, int] = field(default_factory=dict)  # rollouts by status
    holder: str | None = None  # who trains it now
    lease_until: float = 0.0  # Unix seconds: later than that its holder is dead
    ended_at: float | None = None

    @property
    def step(self) -> int:
        return self.steps[-1][0] if self.steps else 0

    @property
    def seconds(self) -> float:
        """Of training steps."""
        return sum(float(body.get("seconds", 0.0)) for _, body in self.steps)

    @property
    def best(self) -> Path | None:
        return self.folder.pointed("best")

    def labelled(self, label: str) -> list[Held]:
        return [item for item in self.held if item.label == label]

    def compared(self) -> tuple[Held, Held] | None:
        """What to hold against each other: the test split before and after; else the first and the newest validation."""
        before, after = self.labelled("before"), self.labelled("after")
        if before and after:
            return before[0], after[-1]
        evals = self.labelled("eval")
        return (evals[0], evals[-1]) if len(evals) > 1 else None

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of one figure where it is a finite number."""
        found = [(step, body["figures"].get(name)) for step, body in self.steps]
        return [(step, float(value)) for step, value in found if value is not None and math.isfinite(value)]


def overview(folder: RunFolder, view: StoreView) -> Overview:
    """Raises SettingError where there is no run, StoreError where its store cannot be read."""
    config = TrainConfig.of(folder.settings())
    run = view.run(folder.name)
    events = view.events(folder.name)
    steps = sorted(((row["step"], row["body"]) for row in events if row["kind"] == "step"), key=lambda row: row[0])
    return Overview(
        folder=folder,
        config=config,
        settings=changed(config),
        steps=steps,
        held=[
            Held(label=row["kind"], step=row["step"], body=row["body"])
            for row in events
            if row["kind"] in ("before", "eval", "after")
        ],
        alerts=_alerts(events),
        notes=[row["body"]["text"] for row in events if row["kind"] == "note"],
        dropped=_dropped(view.dropped(folder.name), steps),
        states=view.states(folder.name),
        holder=run["holder"],
        lease_until=run["lease_until"] or 0.0,
        ended_at=run["ended_at"],
    )


def changed(config: TrainConfig) -> list[Setting]:
    """Settings whose values are not their defaults; keys are not shown."""
    found: dict[str, Setting] = {}
    parts = (config.work, config.loop, config.replica, config.learner, config.schedule, config.credit, config.gateway)
    for part in (*parts, config.runner, config.server):
        for item in fields(part):
            value = getattr(part, item.name)
            default = item.default if item.default is not MISSING else None
            if item.default_factory is not MISSING:
                default = item.default_factory()
            if item.name in NAMES and value != default:
                shown = "(not shown)" if item.name in SECRETS else value
                found.setdefault(item.name, Setting(name=item.name, value=shown, default=default))
    return list(found.values())


def last_figures(steps: Sequence[tuple[int, Mapping[str, Any]]]) -> list[tuple[str, float, str, str]]:
    """(name, value, unit, help) of the newest step's figures, in the order in which metrics are declared."""
    if not steps:
        return []
    figures = steps[-1][1]["figures"]
    return [
        (name, float(figures[name]), metric.unit, metric.help) for name, metric in METRICS.items() if name in figures
    ]


def _alerts(events: Sequence[Mapping[str, Any]]) -> list[Alert]:
    steps: dict[str, list[int]] = {}
    for row in events:
        if row["kind"] == "alert":
            steps.setdefault(str(row["body"].get("text", "")), []).append(row["step"])
    return [Alert(text=text, steps=tuple(at)) for text, at in steps.items()]


def _dropped(stored: Sequence[Dropped], steps: Sequence[tuple[int, Mapping[str, Any]]]) -> list[Dropped]:
    """What the store knows, with the trainer's own counts where they are higher (it also drops rollouts without steps)."""
    prefix = "rollout.dropped."
    counted: dict[str, int] = {}
    for _, body in steps:
        for name, value in body["figures"].items():
            if name.startswith(prefix):
                reason = name.removeprefix(prefix)
                counted[reason] = counted.get(reason, 0) + int(value)
    known = {item.reason: item for item in stored}
    merged = []
    for reason in [*known, *(reason for reason in counted if reason not in known)]:
        item = known.get(reason)
        count = max(item.count if item else 0, counted.get(reason, 0))
        merged.append(Dropped(reason=reason, count=count, example=item.example if item else None))
    return merged
