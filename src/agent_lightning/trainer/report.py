"""report.html: what a training did, in one file without any outside asset. Everything in it is escaped.

`write(folder)` reads the run's folder and store from beside the trainer, so that it can be called at any moment.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agent_lightning.credit import assign
from agent_lightning.store.view import StoreView
from agent_lightning.trainer import charts
from agent_lightning.trainer.charts import Series
from agent_lightning.trainer.detail import rebuilt
from agent_lightning.trainer.examples import examples
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.overview import REASONS, Overview, overview
from agent_lightning.trainer.wording import Wording

CREDIT_STEPS = 5  # newest training steps whose credit is shown
MOST_ALERTS = 40
FEW_VALUES = 8  # different rewards up to which each gets a bar of its own
SMALL = (
    ("learner.entropy", "Entropy", "nats a token; near 0 the policy no longer explores"),
    ("learner.kl", "KL to the base model", "nats a token"),
    ("learner.grad_norm", "Gradient norm", "before clipping"),
    ("learner.loss", "Loss", "of the update"),
    ("group.flat", "Flat groups", "share of groups whose siblings all got the same reward: no signal"),
    ("learner.sampler_gap", "Sampler gap", "mean difference of log-probabilities between sampler and learner, nats"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    svg: Markup
    caption: str = ""
    legend: Markup | str = ""


def write(folder: RunFolder) -> Path | None:
    """Write the report whole or not at all; None when nothing has been measured yet. Raises StoreError, CheckpointError."""
    with StoreView(folder.store) as view:
        run = overview(folder, view)
        if not run.held and not run.steps:
            return None
        text = render(view, run, Wording.of(run.config.replica.model), now=time.time())
    folder.write_report(text)
    return folder.report


def render(view: StoreView, run: Overview, wording: Wording, *, now: float) -> str:
    """The page as text that UTF-8 can write."""
    page = _environment().get_template("report.html.jinja")
    text = page.render(
        run=run,
        reasons=REASONS,
        state=_state(run),
        written=f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC",
        hero=_hero(run),
        curves=_curves(run),
        histogram=_histogram(run),
        kinds=_kinds(run),
        examples=examples(view, run, wording),
        credit=_credit(view, run),
        small=_small(run),
        alerts=[{"text": alert.text, "steps": _span(alert.steps)} for alert in run.alerts[-MOST_ALERTS:]],
        settings=[
            {"name": item.name, "value": _value(item.value), "default": _value(item.default)} for item in run.settings
        ],
        places=_places(run),
        commands=_commands(run),
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def _environment() -> Environment:
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _state(run: Overview) -> str:
    if run.labelled("after"):
        return "finished"
    return "not finished: this is how far it has come"


def _hero(run: Overview) -> Mapping[str, Any] | None:
    compared = run.compared()
    if compared is None:
        return None
    before, after = compared
    low, high = wilson(after.success, after.n)
    unseen = after.body.get("unseen")
    base = before.body.get("unseen") or {}
    return {
        "split": after.split,
        "before": f"{before.success:.0%}",
        "after": f"{after.success:.0%}",
        "n": after.n,
        "interval": f"{low:.0%} to {high:.0%}",
        "unseen": f"{base.get('success', 0.0):.0%} → {unseen['success']:.0%} (n = {unseen['n']})" if unseen else "",
    }


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % score interval of a share of n (Wilson 1927)."""
    if n == 0:
        return 0.0, 1.0
    z2 = 1.96**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = 1.96 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def _curves(run: Overview) -> list[Chart]:
    """Training reward and validation success: on one axis where both are shares, else apart."""
    rewards = Series(name="training reward (mean of the step's rollouts)", points=run.series("reward.mean"), style="c")
    success = Series(
        name="validation success (greedy)",
        points=[(held.step, held.success) for held in run.labelled("eval")],
        style="a",
    )
    caption = "The checkpoint with the best validation reward is the one that is kept as best."
    if all(0.0 <= value <= 1.0 for _, value in rewards.points) and rewards.points and success.points:
        both = (success, rewards)
        svg = charts.lines("learning curve", both, percent=True)
        return [
            Chart(title="By training step", svg=svg, legend=charts.legend(both), caption=caption),
            *_reward_only(run),
        ]
    found = [
        Chart(title="Validation success", svg=charts.lines("validation success", [success], percent=True)),
        Chart(title="Training reward", svg=charts.lines("training reward", [rewards])),
    ]
    return [chart for chart in found if chart.svg]


def _reward_only(run: Overview) -> list[Chart]:
    """Mean validation reward: what chooses the checkpoint, on its own scale."""
    points = [(held.step, float(held.body["seen"]["reward"])) for held in run.labelled("eval")]
    svg = charts.lines("validation reward", [Series(name="validation reward", points=points)])
    return [Chart(title="Mean validation reward", svg=svg, caption="Greedy rollouts of the validation split.")]


def _histogram(run: Overview) -> Chart | None:
    compared = run.compared()
    if compared is None:
        return None
    rewards = [[float(value) for value in held.body.get("rewards", {}).values()] for held in compared]
    if not all(rewards):
        return None
    labels, counts = binned(*rewards)
    series = [
        Series(name=f"{name} (step {held.step})", points=list(enumerate(row)), style=style)
        for name, held, row, style in zip(("before", "after"), compared, counts, ("b", "a"), strict=True)
    ]
    split = compared[1].split
    return Chart(
        title=f"Rewards of the {split} split",
        svg=charts.bars(f"rewards of the {split} split", labels, series, unit="rollouts"),
        legend=charts.legend(series),
        caption="Number of rollouts by reward. One that gave no reward counts as the lowest.",
    )


def binned(before: Sequence[float], after: Sequence[float]) -> tuple[list[str], list[list[int]]]:
    """Labels, and counts of both over the same bins: one a value where there are few, else ten of equal width."""
    values = sorted({round(value, 6) for value in (*before, *after)})
    if len(values) <= FEW_VALUES:
        rows = [[sum(round(reward, 6) == value for reward in side) for value in values] for side in (before, after)]
        return [f"{value:.4g}" for value in values], rows
    edges = np.histogram_bin_edges(np.asarray([*before, *after]), bins=10)
    rows = [[int(count) for count in np.histogram(np.asarray(side), bins=edges)[0]] for side in (before, after)]
    return [f"{edge:.3g}" for edge in edges[:-1]], rows


def _kinds(run: Overview) -> list[Mapping[str, Any]]:
    compared = run.compared()
    if compared is None:
        return []
    before, after = (held.body.get("kinds", {}) for held in compared)
    return [_kind_row(kind, before[kind], after[kind]) for kind in after if kind in before]


def _kind_row(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    change = after["success"] - before["success"]
    return {
        "kind": kind,
        "before": f"{before['success']:.0%}",
        "after": f"{after['success']:.0%}",
        "change": f"{change * 100:+.0f}".replace("-", "−") if round(change, 3) else "0",
        "direction": "up" if change > 0 else "down" if change < 0 else "",
        "n": after["n"],
    }


def _credit(view: StoreView, run: Overview) -> Mapping[str, Any] | None:
    """Mean multiplier and credit by position of the step, over the newest training steps; None where the algorithm
    takes rollouts as wholes."""
    if not run.config.credit.rule.spreads:
        return None
    first = max(0, run.step - CREDIT_STEPS)
    groups: dict[str, list[Any]] = {}
    for step in range(first, run.step):
        for item in rebuilt(view, run.config, view.rollouts(run.folder.name, step=step, mode="train")):
            groups.setdefault(item.rollout.group_id, []).append(item)
    ms: dict[int, list[float]] = {}
    cs: dict[int, list[float]] = {}
    for item in assign(groups, run.config.credit).credited:
        if item.dropped is None:
            ranks = sorted({step.index for step in item.trajectory.steps})
            for step, m, c in zip(item.trajectory.steps, item.multipliers, item.credits, strict=True):
                ms.setdefault(ranks.index(step.index) + 1, []).append(m)
                cs.setdefault(ranks.index(step.index) + 1, []).append(c)
    if not ms:
        return None
    places = sorted(ms)
    labels = [f"step {place}" for place in places]
    many = ", ".join(f"{label}: {len(ms[place])} calls" for label, place in zip(labels, places, strict=True))

    def chart(title: str, values: Mapping[int, list[float]], style: str, unit: str, caption: str) -> Chart:
        points = [(place, float(np.mean(values[place]))) for place in places]
        svg = charts.bars(title, labels, [Series(name="mean", points=points, style=style)], unit=unit)
        return Chart(title=title, svg=svg, caption=caption)

    return {
        "charts": [
            chart("Mean multiplier m", ms, "a", "", "Factor on a rollout's advantage; its token mean is 1."),
            chart("Mean credit c", cs, "c", "of reward", "The share of the rollout's reward that the step gets."),
        ],
        "note": f"{run.config.credit.credit_assignment}, training steps {first + 1} to {run.step}. {many}.",
    }


def _small(run: Overview) -> list[Chart]:
    found = []
    for name, title, caption in SMALL:
        points = run.series(name)
        if points:
            svg = charts.lines(title, [Series(name=title, points=points)], small=True)
            found.append(Chart(title=title, svg=svg, caption=caption))
    return found


def _places(run: Overview) -> list[tuple[str, str]]:
    folder = run.folder
    places = [("run", folder.path), ("store", folder.store), ("figures", folder.metrics)]
    places += [(f"{name} checkpoint", found) for name in ("best", "latest") if (found := folder.pointed(name))]
    return [(name, str(path.resolve())) for name, path in places]


def _commands(run: Overview) -> list[tuple[str, str]]:
    path = run.folder.path.resolve()
    found = [
        ("Write the best model, merged, in Hugging Face format:", f"agent-lightning export {path} OUT"),
        ("Look at the run, or at one rollout step by step:", f"agent-lightning show {path}"),
    ]
    example = next((item.example for item in run.dropped if item.example), None)
    if example is not None:
        found.append(("Why a rollout was dropped:", f"agent-lightning show {example} --runs {path.parent}"))
    if not run.labelled("after"):
        found.insert(0, ("Go on with the run:", f"agent-lightning train --resume {path}"))
    return found


def _span(steps: Sequence[int]) -> str:
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]}–{steps[-1]} ({len(steps)}×)"


def _value(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 600 else f"{text[:600]} …"
