"""`agent-lightning show RUN`: where a run stands and what went wrong in it. Only reads, also while the run trains."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from rich.console import Console

from agent_lightning.cli.runs import is_run, run_folder, run_of_rollout
from agent_lightning.cli.showing_rollout import show_rollout
from agent_lightning.cli.words import block, console, inert, pairs, plain, shown, table
from agent_lightning.store.view import StoreView
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.overview import REASONS, Overview, last_figures, overview
from agent_lightning.trainer.wording import Wording

LAST_ALERTS = 8


def show(name: str, *, run: str | None, runs: str, full: bool) -> None:
    """A run by its name or folder, or a rollout by its id. Raises SettingError, StoreError, NotFound."""
    out = console()
    if run is None and is_run(name, runs):
        folder = run_folder(name, runs)
        with StoreView(folder.store) as view:
            show_run(out, overview(folder, view))
        return
    folder = run_folder(run, runs) if run is not None else run_of_rollout(name, runs)
    config = TrainConfig.of(folder.settings())
    with StoreView(folder.store) as view:
        show_rollout(out, view, config, name, Wording.of(config.replica.model), full=full)


def show_run(out: Console, run: Overview) -> None:
    out.print(pairs(_state(run)))
    out.print()
    settings = table("settings that differ from their defaults", "setting", "value", "default")
    for setting in run.settings:
        default = "" if setting.default is None else shown(setting.default, limit=80)
        settings.add_row(setting.name, plain(shown(setting.value, limit=200)), plain(default))
    block(out, settings)
    _held(out, run)
    _figures(out, run)
    _dropped(out, run)
    _alerts(out, run)
    out.print(pairs(_places(run.folder)))


def _state(run: Overview) -> list[tuple[str, str]]:
    total = run.config.loop.total_steps
    if run.holder is not None and run.lease_until > time.time():
        state = f"training, held by {run.holder}"
    elif run.holder is not None:
        state = f"its trainer {run.holder} was lost{_when(run.lease_until)}; {_go_on(run)}"
    elif run.labelled("after") or run.step >= total:
        state = "finished" + _when(run.ended_at)
    else:
        state = f"stopped{_when(run.ended_at)}; {_go_on(run)}"
    rollouts = ", ".join(f"{count:,} {status}" for status, count in run.states.items()) or "none yet"
    rows = [
        ("run", run.folder.name),
        ("state", state),
        ("steps", f"{run.step} of {total}, {run.seconds / 60:.1f} minutes of training"),
        ("rollouts", rollouts),
    ]
    if run.best is not None:
        rows.append(("best checkpoint", str(run.best)))
    compared = run.compared()
    if compared is not None:
        before, after = compared
        rows.append(("held-out success", f"{before.success:.0%} -> {after.success:.0%} ({after.split}, n={after.n})"))
    return rows


def _go_on(run: Overview) -> str:
    command = "train" if run.config.runner.workers else "serve"
    return f"go on with: agent-lightning {command} --resume {run.folder.path}"


def _when(at: float | None) -> str:
    return "" if at is None else f" {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def _held(out: Console, run: Overview) -> None:
    if not run.held:
        block(out, plain("no evaluation yet"))
        return
    numbers = ("step", "success", "reward", "n", "failed")
    shown_table = table("held-out evaluations", "split", *numbers, "unseen kind", right=numbers)
    for item in run.held:
        seen, unseen = item.body["seen"], item.body.get("unseen")
        shown_table.add_row(
            item.split if item.label == "eval" else f"{item.split}, {item.label}",
            str(item.step),
            f"{item.success:.1%}",
            f"{seen['reward']:.3f}",
            str(item.n),
            str(sum(item.body.get("failed", {}).values())),
            f"{unseen['success']:.1%} (n={unseen['n']})" if unseen else "",
        )
    block(out, shown_table)


def _figures(out: Console, run: Overview) -> None:
    rows = last_figures(run.steps)
    if not rows:
        block(out, plain("no finished step yet"))
        return
    figures = table(f"figures of step {run.step}", "figure", "value", "unit", "what it is", right=("value",))
    for name, value, unit, help in rows:
        figures.add_row(name, f"{value:.4g}", "" if unit == "1" else unit, help)
    block(out, figures)


def _dropped(out: Console, run: Overview) -> None:
    if not run.dropped:
        block(out, plain("no training rollout was dropped"))
        return
    dropped = table("training rollouts that gave no sample", "reason", "count", "why", "for example", right=("count",))
    for item in run.dropped:
        dropped.add_row(
            item.reason, f"{item.count:,}", REASONS.get(item.reason, item.reason), plain(item.example or "-")
        )
    out.print(dropped)
    block(out, plain(f"  agent-lightning show ID --runs {run.folder.path.parent} tells more of one", "dim"))


def _alerts(out: Console, run: Overview) -> None:
    for note in run.notes:
        block(out, plain(f"note: {inert(note)}"))
    if not run.alerts:
        block(out, plain("no alerts"))
        return
    alerts = table("alerts", "steps", "alert")
    for alert in run.alerts[-LAST_ALERTS:]:
        alerts.add_row(steps_text(alert.steps), plain(inert(alert.text)))
    if len(run.alerts) > LAST_ALERTS:
        alerts.caption = f"{len(run.alerts) - LAST_ALERTS} older ones are in {run.folder.metrics}"
    block(out, alerts)


def steps_text(steps: tuple[int, ...]) -> str:
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]}-{steps[-1]} ({len(steps)}x)"


def _places(folder: RunFolder) -> list[tuple[str, str]]:
    places = [("run", folder.path), ("store", folder.store), ("figures", folder.metrics)]
    places += [("report", folder.report)] if folder.report.is_file() else []
    places += [(f"{name} checkpoint", found) for name in ("best", "latest") if (found := folder.pointed(name))]
    return [(name, str(path)) for name, path in places]
