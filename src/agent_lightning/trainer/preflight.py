"""What a few rollouts tell of a training before it begins: what is wrong, what would be trained, how long it takes. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_lightning.credit import Credited, CreditReport
from agent_lightning.errors import AgentError, LightningError, RewardError
from agent_lightning.records import Call, CallStatus, Outcome, Rollout, Sample
from agent_lightning.trainer import reading
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.detail import why_untrained

Z99 = 2.326  # standard deviations up to the 99th percentile
NEAR_LIMIT = 0.9  # of the context


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What was seen."""

    config: TrainConfig
    rollouts: Sequence[Rollout]
    credit: CreditReport
    calls: Mapping[str, Sequence[Call]]  # by rollout id
    collect_seconds: float  # for all of them
    update_seconds: float | None  # of one update of rate 0 on their samples; None when there was none
    memory: int  # bytes of this process and its children, resident, at the highest
    context_length: int  # tokens
    max_step_timeout: float  # seconds
    val_tasks: int
    test_tasks: int

    @property
    def completed(self) -> list[Call]:
        return [call for calls in self.calls.values() for call in calls if call.status is CallStatus.COMPLETED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds. Collection and update are scaled by the number of rollouts, so batching makes it less."""

    collect: float  # of one step
    update: float  # of one step
    evaluation: float  # of the whole run
    run: float
    call_p99: float | None  # of one call under the run's load; None without a call
    limited: bool  # time_limit ends the run before total_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    name: str
    calls: int
    trained: int
    why: str | None  # why some are not


def refusal(tried: Tried) -> LightningError | None:
    """Why a training would be pointless, with the remedy; None when it can begin."""
    rollouts, n = tried.rollouts, len(tried.rollouts)
    wrong = next((r for r in rollouts if r.outcome is Outcome.NO_REWARD and r.detail), None)
    if wrong is not None:
        count = sum(r.outcome is Outcome.NO_REWARD for r in rollouts)
        return RewardError(f"{count} of {n} rollouts could not be judged: {wrong.detail}")
    outcomes = Counter(str(r.outcome) for r in rollouts)
    if all(not item.trajectory.steps for item in tried.credit.credited):
        detail = next((r.detail for r in rollouts if r.detail), "no call of a trained component was recorded")
        return AgentError(f"none of {n} rollouts made a call that could be trained ({_counted(outcomes)}): {detail}")
    if outcomes.get(str(Outcome.OK), 0) == 0:
        detail = next((r.detail for r in rollouts if r.detail), "no detail was recorded")
        return AgentError(f"none of {n} rollouts finished ({_counted(outcomes)}): {detail}")
    rewards = [item.reward for item in tried.credit.credited if item.reward is not None]
    if not rewards:
        return RewardError(
            f"none of {n} rollouts has a reward: neither a reward function nor emit_reward() gave one; set reward"
        )
    if len(set(rewards)) == 1:
        return RewardError(
            f"all {len(rewards)} judged rollouts got the reward {rewards[0]:g}: nothing can be learned from a constant. "
            "Check the reward function on a good and on a bad result, give partial credit, make the tasks easier, or try "
            "more of them with --tasks"
        )
    return None


def estimate(tried: Tried) -> Estimate:
    loop = tried.config.loop
    n, wanted = len(tried.rollouts), loop.tasks_per_step * loop.group_size
    each = tried.collect_seconds / n
    collect, update = each * wanted, (tried.update_seconds or 0.0) / n * wanted
    evaluations = loop.total_steps // loop.eval_every + 1
    tests = 2 * tried.test_tasks if loop.test_rollouts else 0
    evaluation = each * (evaluations * tried.val_tasks + tests)
    training = loop.total_steps * (collect + update)
    limited = loop.time_limit is not None and training > loop.time_limit
    return Estimate(
        collect=collect,
        update=update,
        evaluation=evaluation,
        run=min(training, loop.time_limit or math.inf) + evaluation,
        call_p99=_call_p99(tried, wanted),
        limited=limited,
    )


def _call_p99(tried: Tried, wanted: int) -> float | None:
    """Of a log-normal distribution through the calls' times, times how much fuller the run is; at least the longest."""
    seconds = [max(1e-4, (call.finished_at or 0.0) - call.admitted_at) for call in tried.completed]
    if not seconds:
        return None
    logs = [math.log(value) for value in seconds]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / max(1, len(logs) - 1))
    workers = tried.config.runner.workers
    load = min(workers, wanted) / min(workers, len(tried.rollouts))
    return max(*seconds, math.exp(mean + Z99 * spread)) * max(1.0, load)


def components(tried: Tried) -> list[Component]:
    """Components whose calls came to the training server, most calls first."""
    found: dict[str, list[str | None]] = {}
    for item in tried.credit.credited:
        for call in tried.calls.get(item.trajectory.rollout.id, ()):
            found.setdefault(call.component, []).append(_left_out(call, item, tried.config))
    made = [
        Component(
            name=name or "(unnamed)",
            calls=len(reasons),
            trained=sum(reason is None for reason in reasons),
            why=next((reason for reason in reasons if reason is not None), None),
        )
        for name, reasons in found.items()
    ]
    return sorted(made, key=lambda item: -item.calls)


def _left_out(call: Call, credited: Credited, config: TrainConfig) -> str | None:
    """None for a step of the trajectory, even if this once its group is flat."""
    is_step = any(step.call_id == call.id for step in credited.trajectory.steps)
    return None if is_step and credited.dropped is None else why_untrained(call, credited, config)


def longest(tried: Tried) -> int:
    """Tokens of the longest prompt with its answer."""
    found = [len(step.state) + len(step.action) for item in tried.credit.credited for step in item.trajectory.steps]
    return max(found, default=0)


def cut_share(tried: Tried) -> float:
    """Share of answers that max_new_tokens ended."""
    done = tried.completed
    return sum(call.finish_reason == "length" for call in done) / len(done) if done else 0.0


def warnings(tried: Tried, guess: Estimate) -> list[str]:
    """What may go wrong, each with what to do."""
    found = []
    n = len(tried.rollouts)
    if guess.call_p99 is not None and guess.call_p99 > tried.max_step_timeout / 2:
        found.append(
            f"the slowest calls (p99) are estimated at {guess.call_p99:.1f} s, more than half of max_step_timeout = "
            f"{tried.max_step_timeout:g} s: raise max_step_timeout, lower max_new_tokens or workers, or add replicas"
        )
    if longest(tried) > NEAR_LIMIT * tried.context_length:
        found.append(
            f"a prompt with its answer took {longest(tried)} of {tried.context_length} tokens: longer ones end as "
            "over_long_prompt; raise context_length or shorten the agent's history"
        )
    if cut_share(tried) > 0.5:
        found.append(
            f"{cut_share(tried):.0%} of the answers were cut at max_new_tokens = "
            f"{tried.config.gateway.max_new_tokens}: raise it unless the agent asks for no more"
        )
    for outcome, count in Counter(str(r.outcome) for r in tried.rollouts if r.outcome is not Outcome.OK).items():
        detail = next((r.detail for r in tried.rollouts if str(r.outcome) == outcome and r.detail), "")
        found.append(f"{count} of {n} rollouts ended as {outcome}: {detail}")
    if tried.credit.figures.get("group.flat", 0.0) == 1.0:
        found.append("every group's siblings got the same reward: a larger group_size makes differences likelier")
    cut = sum(item.trajectory.cut for item in tried.credit.credited)
    if cut:
        found.append(f"{cut} old steps were left out: raise max_trajectory_length to train them")
    return found


def sample_of(tried: Tried) -> Sample | None:
    """A sample of the longest rollout that gives one, for the eye."""
    usable = [item for item in tried.credit.credited if item.dropped is None]
    best = max(usable, key=lambda item: (len(item.trajectory.steps), item.reward or 0.0), default=None)
    if best is None:
        return None
    limit = tried.config.learner.max_sample_tokens
    return reading.samples_of(best, max_tokens=limit)[0]


def _counted(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {outcome}" for outcome, count in outcomes.items())
