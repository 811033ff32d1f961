"""Rollouts of the same held-out task before and after: which ones to show, and what was written in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_lightning.records import Call, CallStatus, Outcome, Rollout
from agent_lightning.store.view import StoreView
from agent_lightning.trainer.overview import REASONS, Held, Overview
from agent_lightning.trainer.wording import Wording

LONGEST_TEXT = 4_000  # characters of one written text
MOST_STEPS = 12  # of one rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    who: str  # component
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    label: str  # "before" or "after"
    step: int
    reward: str
    note: str  # how it failed, "" when it did not
    steps: Sequence[Written]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    id: str
    kind: str
    input: str
    sides: Sequence[Side]


def examples(view: StoreView, run: Overview, wording: Wording, *, count: int = 3) -> list[Example]:
    """Held-out tasks that turned from failure to success come first, then those that gained most."""
    compared = run.compared()
    if compared is None:
        return []
    before, after = (_rollouts(view, run, held) for held in compared)
    kinds = {task: str(rollout.task.meta.get("kind", "")) for task, rollout in after.items()}
    chosen = chosen_tasks(
        *(held.body.get("rewards", {}) for held in compared),
        success=run.config.loop.success_reward,
        kinds={task: kind for task, kind in kinds.items() if task in before},
        count=count,
    )
    pairs = [(before[task], after[task]) for task in chosen]
    calls = view.calls_of([rollout.id for pair in pairs for rollout in pair])
    return [
        Example(
            id=first.task.id,
            kind=kinds[first.task.id],
            input=_shortened(_text(first.task.input)),
            sides=[
                _side(label, held, rollout, calls[rollout.id], wording)
                for label, held, rollout in zip(("before", "after"), compared, (first, last), strict=True)
            ],
        )
        for first, last in pairs
    ]


def chosen_tasks(
    before: Mapping[str, float], after: Mapping[str, float], *, success: float, kinds: Mapping[str, str], count: int
) -> list[str]:
    """Ids of `count` of the tasks in `kinds`: turned to success, then largest gain; different kinds before the same."""
    known = [task for task in kinds if task in before and task in after]
    ranked = sorted(
        known, key=lambda task: (not before[task] < success <= after[task], before[task] - after[task], task)
    )
    chosen: list[str] = []
    for task in ranked:
        if kinds[task] not in {kinds[other] for other in chosen} and len(chosen) < count:
            chosen.append(task)
    rest = [task for task in ranked if task not in chosen]
    return sorted([*chosen, *rest[: count - len(chosen)]], key=ranked.index)


def _rollouts(view: StoreView, run: Overview, held: Held) -> dict[str, Rollout]:
    """Rollouts of one evaluation that have their text, by task id."""
    label, mode = ("val", "val") if held.label == "eval" else (held.label, "test")
    prefix = f"{run.folder.name}.{label}-{held.step:06d}."
    found = view.rollouts(run.folder.name, step=held.step, mode=mode)
    kept = [rollout for rollout in found if rollout.cleared_at is None]
    return {rollout.task.id: rollout for rollout in kept if rollout.id.startswith(prefix)}


def _side(label: str, held: Held, rollout: Rollout, calls: Sequence[Call], wording: Wording) -> Side:
    reward = held.body["rewards"].get(rollout.task.id)
    done = [call for call in calls if call.status is CallStatus.COMPLETED]
    note = "" if rollout.outcome is Outcome.OK else f"{rollout.outcome}: {REASONS.get(str(rollout.outcome), '')}"
    if len(done) > MOST_STEPS:
        note = f"{note} {len(done) - MOST_STEPS} more steps are not shown".strip()
    return Side(
        label=label,
        step=held.step,
        reward="unknown" if reward is None else f"{reward:g}",
        note=note,
        steps=[
            Written(who=call.component or "the agent", text=_shortened(wording.written(call)))
            for call in done[:MOST_STEPS]
        ],
    )


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and value and all(isinstance(part, str) for part in value.values()):
        return "\n".join(f"{name}: {part}" for name, part in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT:,} more)"
