"""Guards: what stops a run, what warns, each with a name, a figure and a remedy. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent_lightning.credit import CreditReport
from agent_lightning.errors import TrainingStopped
from agent_lightning.metrics.declared import METRICS
from agent_lightning.records import Outcome, Rollout

CONSTANT_STEPS = 3  # steps of one and the same reward before it is called constant
SKIPPED_IN_A_ROW = 5  # updates skipped by the NaN guard before the run stops
FAILED_SHARE = 0.10  # of rollouts; above it a failure is worth an alert


@dataclass(slots=True)
class RewardWatch:
    """Remembers whether the reward has ever moved."""

    top: float  # success_reward: all rollouts at it means converged
    moved: bool = False
    constant: int = 0  # steps in a row with one reward for everything
    last: float | None = None
    skipped: int = 0
    alerts: list[str] = field(default_factory=list)

    def see(self, rewards: Sequence[float]) -> bool:
        """Take in one step's rewards; True when the task is solved: every rollout had the highest reward,
        CONSTANT_STEPS times running. Raises TrainingStopped for a reward that has been constant since the run began."""
        values = set(rewards)
        if len(values) > 1 or (self.last is not None and values != {self.last}):
            self.moved = True
        self.constant = self.constant + 1 if len(values) == 1 else 0
        self.last = next(iter(values)) if len(values) == 1 else None
        if self.constant < CONSTANT_STEPS:
            return False
        assert self.last is not None
        if self.last >= self.top:
            return True
        if not self.moved:
            raise TrainingStopped(
                f"the reward has been {self.last:g} for every rollout since the run began ({self.constant} steps): "
                "nothing can be learned from it. Check the reward function on a good and on a bad result, make the task "
                "easier, or give partial credit"
            )
        self.alerts.append(f"the reward has been {self.last:g} for every rollout for {self.constant} steps")
        return False

    def updated(self, applied: bool, reason: str | None) -> None:
        """Count skipped updates. Raises TrainingStopped after SKIPPED_IN_A_ROW."""
        self.skipped = 0 if applied else self.skipped + 1
        if self.skipped >= SKIPPED_IN_A_ROW:
            raise TrainingStopped(
                f"{self.skipped} updates in a row were skipped ({reason}): lower learning_rate or raise kl_coef, then "
                "resume the run"
            )


def check_rollouts(rollouts: Sequence[Rollout], report: CreditReport, *, first: bool) -> list[str]:
    """Alerts about a step's rollouts. Raises TrainingStopped where going on would train on nothing or on errors."""
    wrong = [rollout for rollout in rollouts if rollout.outcome is Outcome.NO_REWARD and rollout.detail]
    if wrong and (first or len(wrong) > FAILED_SHARE * len(rollouts)):
        raise TrainingStopped(f"{len(wrong)} of {len(rollouts)} rollouts could not be judged: {wrong[0].detail}")
    if report.rewarded == 0:
        raise TrainingStopped(f"none of {len(rollouts)} rollouts has a reward: {_reasons(rollouts)}")
    alerts = []
    failed = Counter(str(r.outcome) for r in rollouts if r.outcome not in (Outcome.OK, Outcome.NO_REWARD))
    for outcome, count in failed.most_common():
        if outcome == Outcome.NO_CALL or count > FAILED_SHARE * len(rollouts):
            detail = next(r.detail for r in rollouts if r.outcome == outcome)
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
    if set(counts) == {"ok"}:
        return "the agents finished, but neither a reward function nor emit_reward() gave one: pass reward=..."
    return "; ".join(parts)
