"""One rollout, step by step: what the policy read and wrote, what each step was credited with, and why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_lightning import trajectory
from agent_lightning.credit import Credited, assign
from agent_lightning.records import Attempt, Call, CallStatus, Outcome, Rollout, RolloutStatus, Trajectory
from agent_lightning.store.view import StoreView
from agent_lightning.trainer import reading
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.wording import Wording


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDetail:
    """One call of the newest attempt."""

    call: Call
    asked: str  # the new part of the prompt
    written: str
    prompt_tokens: int | None  # the whole prompt; None for a call that was never completed
    credited: CreditedStep | None  # None for a call that gave no step
    why: str | None  # why it is not trained, in words; None when it is


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedStep:
    weight: float  # s_k
    multiplier: float  # m_k
    credit: float | None  # c_k; None while the reward is unknown
    advantage: float | None  # A_i x m_k; None where the rollout is not trained or a critic will tell
    reward: float  # of the step itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDetail:
    rollout: Rollout
    attempts: Sequence[Attempt]
    trajectory: Trajectory
    credited: Credited
    siblings: Mapping[str, float | None]  # rollout id -> reward, itself included
    open_siblings: int  # that have not finished: the advantage is not the last word
    steps: Sequence[StepDetail]

    @property
    def trained(self) -> bool:
        return self.rollout.mode == "train" and self.credited.dropped is None


def detail(view: StoreView, config: TrainConfig, rollout_id: str, wording: Wording) -> RolloutDetail:
    """Raises NotFound for an id that the store does not hold."""
    rollout = view.rollout(rollout_id)
    group = view.siblings(rollout) if rollout.mode == "train" else [rollout]
    trajectories = rebuilt(view, config, group)
    report = assign({rollout.group_id: trajectories}, config.credit_at(rollout.step))
    own = next(item for item in report.credited if item.trajectory.rollout.id == rollout_id)
    calls = view.calls_of([rollout_id])[rollout_id]
    complete = [call for call in calls if call.status is CallStatus.COMPLETED]
    lengths = {call_id: len(ids) for call_id, ids in trajectory.prompts(complete).items()}
    return RolloutDetail(
        rollout=rollout,
        attempts=view.attempts(rollout_id),
        trajectory=own.trajectory,
        credited=own,
        siblings={item.trajectory.rollout.id: item.reward for item in report.credited},
        open_siblings=sum(not _over(other) for other in group),
        steps=[
            StepDetail(
                call=call,
                asked=wording.asked(call),
                written=wording.written(call),
                prompt_tokens=lengths.get(call.id),
                credited=_step(own, call),
                why=why_untrained(call, own, config),
            )
            for call in calls
        ],
    )


def rebuilt(view: StoreView, config: TrainConfig, rollouts: Sequence[Rollout]) -> list[Trajectory]:
    """Trajectories as the trainer builds them, in the order given."""
    ids = [rollout.id for rollout in rollouts]
    return reading.built(rollouts, view.calls_of(ids), view.rewards_of(ids), config)


def why_untrained(call: Call, credited: Credited, config: TrainConfig) -> str | None:
    """In words; None for a call that is trained."""
    rollout = credited.trajectory.rollout
    checks: tuple[tuple[bool, str], ...] = (
        (call.status is CallStatus.RUNNING, "it is still running"),
        (call.status is CallStatus.SEALED, "its attempt ended before the answer was complete"),
        (call.status is CallStatus.BROKEN, f"it broke: {call.error or 'no reason was recorded'}"),
        (rollout.cleared_at is not None, "its text and tokens were deleted; its numbers were kept"),
        (not call.trainable, f"its tokens failed a check: {call.error or 'no reason was recorded'}"),
        (call.policy != config.replica.policy, f"it was answered by policy {call.policy!r}"),
        (not call.sampled_ids, "the model wrote nothing"),
        (
            not trajectory.component_matches(call.component, config.loop.component),
            f"component {call.component!r} is not one of {', '.join(config.loop.component)}",
        ),
        (
            all(step.call_id != call.id for step in credited.trajectory.steps),
            f"it is older than the newest max_trajectory_length = {config.loop.max_trajectory_length} steps",
        ),
        (rollout.mode in ("val", "test"), "the rollout measures: greedy, never trained"),
        (rollout.mode == "live", "the rollout is live traffic, which this run does not train on"),
        (not _over(rollout), "the rollout has not finished"),
        (credited.dropped is not None, f"the rollout was dropped: {credited.dropped}"),
        (credited.left_out is not None, credited.left_out or ""),
        (credited.advantage == 0.0 and not _other_terms(config), "all siblings got the same reward: no signal"),
    )
    return next((words for holds, words in checks if holds), None)


def _other_terms(config: TrainConfig) -> bool:
    """KL and entropy terms train on a flat group too."""
    return config.learner.kl_coef != 0 or config.learner.entropy_coef != 0


def _over(rollout: Rollout) -> bool:
    return rollout.status in (RolloutStatus.FINISHED, RolloutStatus.CANCELLED)


def _step(credited: Credited, call: Call) -> CreditedStep | None:
    for place, step in enumerate(credited.trajectory.steps):
        if step.call_id == call.id:
            trained = credited.trajectory.rollout.mode == "train" and credited.dropped is None
            return CreditedStep(
                weight=credited.step_weights[place],
                multiplier=credited.multipliers[place],
                credit=None if credited.reward is None else credited.credits[place],
                advantage=credited.advantages[place] if trained and credited.advantages else None,
                reward=step.reward,
            )
    return None


def drop_reason(detail: RolloutDetail) -> str | None:
    """The reason code of a train rollout that gave no sample."""
    rollout = detail.rollout
    if rollout.mode != "train" or not _over(rollout):
        return None
    if rollout.status is RolloutStatus.CANCELLED:
        return "cancelled"
    return detail.credited.dropped or (None if rollout.outcome is Outcome.OK else str(rollout.outcome))
