"""What a user sees while a training runs: a live table on a terminal, one line a step elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from agent_lightning.train import TrainResult
from agent_lightning.trainer.config import TrainConfig

COLUMNS = (
    ("success", "reward.success", "{:.0%}"),
    ("reward", "reward.mean", "{:.3f}"),
    ("loss", "learner.loss", "{:+.4f}"),
    ("entropy", "learner.entropy", "{:.3f}"),
    ("KL", "learner.kl", "{:.4f}"),
    ("grad", "learner.grad_norm", "{:.2f}"),
    ("gap", "learner.sampler_gap", "{:.4f}"),
    ("flat", "group.flat", "{:.0%}"),
    ("tok/s", "engine.tokens_per_second", "{:.0f}"),
)
SHOWN_STEPS = 12


class Lines:
    """One line for each thing that happened."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)

    def hear(self, kind: str, step: int, body: Mapping[str, Any]) -> None:
        line = _line(kind, step, body)
        if line is not None:
            self._console.print(line, markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Display:
    """A bar, the last steps as a table, held-out success, and alerts below."""

    def __init__(self, *, total_steps: int, time_limit: float | None = None, console: Console | None = None) -> None:
        """`time_limit` in seconds of training, as the setting."""
        self._total = total_steps
        self._time_limit = math.inf if time_limit is None else time_limit
        self._console = console or Console()
        self._stage = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.completed}/{task.total}")
        )
        self._stage_id = self._stage.add_task("starting", total=1)
        self._steps: list[tuple[int, Mapping[str, Any]]] = []
        self._evals: list[tuple[int, float, float]] = []
        self._alerts: list[str] = []
        self._notes: list[str] = []
        self._began = time.monotonic()
        self._first_step: int | None = None
        self._trained = 0.0  # seconds of the steps that were heard of
        self._live = Live(console=self._console, get_renderable=self._rendered, refresh_per_second=4)

    def hear(self, kind: str, step: int, body: Mapping[str, Any]) -> None:
        match kind:
            case "step":
                self._first_step = step - 1 if self._first_step is None else self._first_step
                self._steps = [*self._steps, (step, body)][-SHOWN_STEPS:]
                self._trained += body["seconds"]
            case "eval" | "before" | "after":
                self._evals.append((step, body["seen"]["success"], body["seen"]["reward"]))
            case "alert":
                self._alerts = [*self._alerts, body["text"]][-4:]
            case "note":
                self._notes.append(body["text"])
            case "starting" | "serving" | "update":
                self._stage.update(self._stage_id, description=str(body.get("text") or kind), completed=0, total=1)
            case "progress":
                self._stage.update(
                    self._stage_id,
                    description=f"{body['stage']} of step {body['step']}",
                    completed=body["done"],
                    total=body["total"],
                )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _rendered(self) -> Group:
        table = Table(title=self._title(), title_justify="left", pad_edge=False)
        table.add_column("step", justify="right")
        for name, _, _ in COLUMNS:
            table.add_column(name, justify="right")
        for step, body in self._steps:
            table.add_row(str(step), *(_figure(body, key, form) for _, key, form in COLUMNS))
        held_out = "   ".join(f"step {step}: {success:.0%}" for step, success, _ in self._evals[-6:])
        lines = [f"held-out success  {held_out}"] if held_out else []
        lines += [f"note: {note}" for note in self._notes]
        lines += [f"! {alert}" for alert in self._alerts]
        return Group(table, *(Text(line) for line in lines), self._stage)  # as text: what users wrote is no markup

    def _title(self) -> str:
        if not self._steps or self._first_step is None:
            return f"step 0 of {self._total}"
        step = self._steps[-1][0]
        pace = (time.monotonic() - self._began) / max(1, step - self._first_step)
        left = min(pace * (self._total - step), max(0.0, self._time_limit - self._trained))
        return f"step {step} of {self._total}, about {left / 60:.0f} min left"


def show_result(result: TrainResult, config: TrainConfig) -> None:
    """The last lines: what it was good for, and where everything is."""
    console = Console(highlight=False, soft_wrap=True)
    for kind, before, after in _kinds(result):
        console.print(f"  {kind:<12} {before['success']:>5.0%} -> {after['success']:>4.0%}  (n={after['n']})")
    if result.before is not None and result.after is not None:
        before, after = result.before["seen"], result.after["seen"]
        unseen = result.after.get("unseen")
        if unseen:
            base = (result.before.get("unseen") or {}).get("success", 0.0)
            console.print(f"unseen kind of task: {base:.0%} -> {unseen['success']:.0%} (n={unseen['n']})")
        minutes = result.seconds / 60
        console.print(
            f"held-out success: {before['success']:.2f} -> {after['success']:.2f} (n={after['n']}, {minutes:.1f} minutes)"
        )
    console.print(f"report      {result.run / 'report.html'}")
    console.print(f"checkpoint  {result.best}")
    console.print(f"run         {result.run}")


def _kinds(result: TrainResult) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    if result.before is None or result.after is None:
        return []
    before, after = result.before["kinds"], result.after["kinds"]
    return [(kind, before[kind], after[kind]) for kind in after if kind in before]


def _line(kind: str, step: int, body: Mapping[str, Any]) -> str | None:
    match kind:
        case "step":
            figures = "  ".join(f"{name} {_figure(body, key, form)}" for name, key, form in COLUMNS)
            return f"step {step}: {figures}  {body['seconds']:.1f} s"
        case "eval" | "before" | "after":
            split = {"eval": "validation", "before": "test, before", "after": "test, after"}[kind]
            seen = body["seen"]
            return f"{split}: success {seen['success']:.1%}, reward {seen['reward']:.3f} (n={seen['n']})"
        case "alert" | "note":
            return f"{'!' if kind == 'alert' else 'note:'} {body['text']}"
        case "starting":
            return str(body["text"])
        case "serving":
            return f"serving {body['model']} at {body['endpoint']}"
    return None


def _figure(body: Mapping[str, Any], key: str, form: str) -> str:
    value = body["figures"].get(key)
    return "-" if value is None else form.format(value)
