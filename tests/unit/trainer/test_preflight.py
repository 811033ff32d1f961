"""What a few rollouts tell of a training before it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_lightning.credit import assign
from agent_lightning.errors import AgentError, RewardError
from agent_lightning.records import Call, CallStatus, Outcome, Reward, Rollout, Task, nats, token_ids
from agent_lightning.runner.rewarding import parts_of
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.preflight import Tried, components, estimate, longest, refusal, sample_of, warnings
from agent_lightning.trajectory import build


def tried(
    rewards: list[float | None], *, outcomes: list[Outcome] | None = None, seconds: float = 1.0, **given: Any
) -> Tried:
    """One call a rollout, two siblings a task; a prompt of 10 tokens and an answer of 5."""
    settings = {"model": "tiny", "total_steps": 10, "warmup_steps": 0, "warmup_trajectories": 0}
    config = TrainConfig.of({**settings, **given})
    rollouts, calls, groups = [], {}, {}
    for place, reward in enumerate(rewards):
        outcome = outcomes[place] if outcomes else Outcome.OK
        rollout = Rollout(
            id=f"r{place}",
            run_id="preflight",
            task=Task(id=f"t{place // 2}", input="x"),
            mode="train",
            group_id=f"t{place // 2}",
            outcome=outcome,
            detail=None if outcome is Outcome.OK else f"detail of {outcome}",
        )
        made = [] if outcome is Outcome.NO_CALL else [call(rollout, seconds)]
        parts = (
            []
            if reward is None
            else [Reward(id=f"w{place}", rollout_id=rollout.id, attempt_id="a", name="exact", value=reward)]
        )
        rollouts.append(rollout)
        calls[rollout.id] = made
        groups.setdefault(rollout.group_id, []).append(
            build(rollout, made, parts, policy="default", wanted=config.loop.component)
        )
    return Tried(
        config=config,
        rollouts=rollouts,
        credit=assign(groups, config.credit),
        calls=calls,
        collect_seconds=8.0,
        update_seconds=2.0,
        memory=1,
        context_length=100,
        max_step_timeout=30.0,
        val_tasks=10,
        test_tasks=20,
    )


def call(rollout: Rollout, seconds: float) -> Call:
    return Call(
        id=f"call-{rollout.id}",
        attempt_id="a",
        rollout_id=rollout.id,
        policy="default",
        component="crew/writer",
        dialect="chat",
        order=0,
        index=0,
        parent_call_id=None,
        prompt_offset=0,
        suffix_ids=token_ids(range(10)),
        sampled_ids=token_ids(range(5)),
        logprobs=nats([-1.0] * 5),
        version_from=0,
        version_to=0,
        status=CallStatus.COMPLETED,
        finish_reason="stop",
        request={},
        response={},
        request_hash="",
        requested_sampling={},
        used_sampling={"temperature": 1.0},
        admitted_at=100.0,
        finished_at=100.0 + seconds,
    )


def test_rewards_that_differ_are_accepted() -> None:
    assert refusal(tried([0.0, 1.0, 0.0, 0.0])) is None


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        (tried([0.5] * 4), RewardError, "all 4 judged rollouts got the reward 0.5"),
        (tried([None] * 4), RewardError, "neither a reward function nor emit_reward"),
        (tried([None] * 4, outcomes=[Outcome.NO_CALL] * 4), AgentError, "detail of no_call"),
        (tried([None] * 4, outcomes=[Outcome.AGENT_ERROR] * 4), AgentError, "detail of agent_error"),
        (tried([1.0, 0.0, 0.0, None], outcomes=[Outcome.OK] * 3 + [Outcome.NO_REWARD]), RewardError, "1 of 4"),
        (tried([1.0, 0.0], component="somebody"), AgentError, "no call of a trained component"),
    ],
)
def test_what_cannot_be_trained_is_refused(seen: Tried, kind: type[Exception], words: str) -> None:
    found = refusal(seen)
    assert isinstance(found, kind)
    assert words in str(found)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "good", [1.0], {"part": "good"}])
def test_a_reward_that_is_no_finite_number_is_an_error(value: Any) -> None:
    with pytest.raises(RewardError, match="is wanted"):
        parts_of(value)


def test_times_grow_with_the_number_of_rollouts() -> None:
    guess = estimate(tried([0.0, 1.0, 0.0, 0.0], tasks_per_step=8, group_size=8, eval_every=5))
    assert (guess.collect, guess.update) == (8.0 / 4 * 64, 2.0 / 4 * 64)
    assert guess.evaluation == 8.0 / 4 * (3 * 10 + 2 * 20)
    assert guess.run == 10 * (guess.collect + guess.update) + guess.evaluation and not guess.limited
    limited = estimate(tried([0.0, 1.0, 0.0, 0.0], tasks_per_step=8, group_size=8, eval_every=5, time_limit=60.0))
    assert limited.run == 60.0 + limited.evaluation and limited.limited


def test_calls_that_are_slow_for_their_limit_are_a_warning() -> None:
    slow, fast = (tried([0.0, 1.0, 0.0, 0.0], seconds=seconds, workers=8) for seconds in (8.0, 7.0))
    assert estimate(slow).call_p99 == pytest.approx(16.0)  # the run has twice as many in flight
    assert any("max_step_timeout = 30" in text for text in warnings(slow, estimate(slow)))
    assert not any("max_step_timeout" in text for text in warnings(fast, estimate(fast)))


def test_a_nearly_full_context_and_failures_are_warnings() -> None:
    seen = tried([0.0, 1.0, 0.0, None], outcomes=[Outcome.OK] * 3 + [Outcome.TIMEOUT])
    assert longest(seen) == 15
    told = warnings(replace(seen, context_length=16), estimate(seen))
    assert any("15 of 16 tokens" in text for text in told)
    assert any("1 of 4 rollouts ended as timeout" in text for text in told)


def test_components_say_whether_they_are_trained_and_why_not() -> None:
    part = components(tried([0.0, 1.0, 0.0, 0.0]))[0]
    assert (part.name, part.calls, part.trained, part.why) == ("crew/writer", 4, 4, None)
    left = components(tried([0.0, 1.0], component="somebody"))[0]
    assert (left.calls, left.trained) == (2, 0)
    assert left.why == "component 'crew/writer' is not one of somebody"


def test_the_sample_marks_what_is_trained() -> None:
    sample = sample_of(tried([0.0, 1.0]))
    assert sample is not None
    assert list(sample.trained) == [0] * 10 + [1] * 5
    assert sample_of(tried([None, None])) is None
