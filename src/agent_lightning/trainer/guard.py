"""Guards: what stops a run, what warns, each with a name, a figure and a remedy. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_lightning.credit import CreditReport
from agent_lightning.errors import TrainingStopped
from agent_lightning.metrics.declared import METRICS
from agent_lightning.records import Outcome, Rollout

CONSTANT_STEPS = 3  # steps of one and the same reward before it is called constant
SKIPPED_IN_A_ROW = 5  # updates skipped by the NaN guard before the run stops
NAN = "nan"  # why the learner skips an update whose sums are not finite
FLAT = 1e-9  # a smaller standard deviation of rewards is none
FAILED_SHARE = 0.10  # of rollouts; above it a failure is worth an alert


@dataclass(slots=True)
class RewardWatch:
    """Remembers whether the reward has ever moved, and how many updates were skipped in a row."""

    top: float  # success_reward: all rollouts at it means converged
    moved: bool = False
    constant: int = 0  # steps in a row with one reward for everything
    last: float | None = None  # that reward
    skipped: int = 0

    @property
    def solved(self) -> bool:
        """Every rollout had the highest reward, CONSTANT_STEPS times running."""
        return self.constant >= CONSTANT_STEPS and self.last is not None and self.last >= self.top

    def note(self, figures: Mapping[str, float]) -> None:
        """Take in one step's reward.mean and reward.std."""
        mean, flat = figures["reward.mean"], figures["reward.std"] < FLAT
        same = flat and (self.last is None or abs(mean - self.last) < FLAT)
        if not same:
            self.moved = True
        self.constant = (self.constant + 1 if same and self.last is not None else 1) if flat else 0
        self.last = mean if flat else None

    def see(self, figures: Mapping[str, float]) -> list[str]:
        """Take in one step; an alert for a reward that stands still. Raises TrainingStopped for one that has been
        constant since the run began."""
        self.note(figures)
        if self.constant < CONSTANT_STEPS or self.solved:
            return []
        assert self.last is not None
        if not self.moved:
            raise TrainingStopped(
                f"the reward has been {self.last:g} for every rollout since the run began ({self.constant} steps): "
                "nothing can be learned from it. Check the reward function on a good and on a bad result, make the task "
                "easier, or give partial credit"
            )
        return [f"the reward has been {self.last:g} for every rollout for {self.constant} steps"]

    def updated(self, *, applied: bool, reason: str | None) -> None:
        """Count updates that the NaN guard skipped. Raises TrainingStopped after SKIPPED_IN_A_ROW."""
        self.skipped = self.skipped + 1 if not applied and reason == NAN else 0
        if self.skipped >= SKIPPED_IN_A_ROW:
            raise TrainingStopped(
                f"{self.skipped} updates in a row gave numbers that are not finite and were skipped: lower learning_rate "
                "or raise kl_coef, then resume the run"
            )


def watched(rows: Sequence[Mapping[str, Any]], *, top: float) -> RewardWatch:
    """The watch of a run that is taken up again, from its journal's steps."""
    watch = RewardWatch(top=top)
    for row in rows:
        watch.note(row["figures"])
    return watch


def check_judged(rollouts: Sequence[Rollout], *, share: float = FAILED_SHARE) -> None:
    """Raises TrainingStopped where the reward function failed for more than `share` of them."""
    wrong = [rollout for rollout in rollouts if rollout.outcome is Outcome.NO_REWARD and rollout.detail]
    if len(wrong) > share * len(rollouts):
        raise TrainingStopped(f"{len(wrong)} of {len(rollouts)} rollouts could not be judged: {wrong[0].detail}")


def check_rollouts(
    rollouts: Sequence[Rollout], report: CreditReport, *, unjudged_share: float = FAILED_SHARE
) -> list[str]:
    """Alerts about a step's rollouts. Raises TrainingStopped where going on would train on nothing or on errors."""
    check_judged(rollouts, share=unjudged_share)
    if report.rewarded == 0:
        raise TrainingStopped(f"none of {len(rollouts)} rollouts has a reward: {_reasons(rollouts)}")
    alerts = []
    failed = Counter(str(rollout.outcome) for rollout in rollouts if rollout.outcome is not Outcome.OK)
    for outcome, count in failed.most_common():
        if outcome == Outcome.NO_CALL or count > FAILED_SHARE * len(rollouts):
            detail = next((r.detail for r in rollouts if r.outcome == outcome and r.detail), "no detail was given")
            alerts.append(f"{count} of {len(rollouts)} rollouts ended as {outcome}: {detail}")
    return alerts


def check_figures(figures: Mapping[str, float]) -> list[str]:
    """An alert for each metric that crossed its declared threshold."""
    alerts = []
    for name, value in figures.items():
        metric = METRICS.get(name)
        if metric is not None and metric.crossed(value):
            bound = f"above {metric.above:g}" if metric.above is not None else f"below {metric.below:g}"
            alerts.append(f"{name} is {value:.3g}, {bound}: {metric.remedy}")
    return alerts


def _reasons(rollouts: Sequence[Rollout]) -> str:
    """The most frequent outcomes with one example each."""
    counts = Counter(str(rollout.outcome) for rollout in rollouts)
    parts = []
    for outcome, count in counts.most_common(3):
        detail = next((r.detail for r in rollouts if str(r.outcome) == outcome and r.detail), None)
        parts.append(f"{count} x {outcome}" + (f" ({detail})" if detail else ""))
    if set(counts) <= {str(Outcome.OK), str(Outcome.NO_REWARD)} and not any(rollout.detail for rollout in rollouts):
        return (
            "the agents finished, but nobody gave one: pass reward=..., call emit_reward() in the agent, or let the "
            "reward function return a number instead of None"
        )
    return "; ".join(parts)
