"""Calls and rewards become trajectories, branches and samples, token for token."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.records import Call, CallStatus, Reward, nats, token_ids
from agent_lightning.trajectory import branches, build, samples, write_jsonl
from lived import call, rollout


def reward(name="reward", value=1.0, target="rollout", target_id="", id="r"):
    return Reward(
        id=id, rollout_id="rollout", attempt_id="attempt", name=name, value=value, target=target, target_id=target_id
    )


def chain():
    first = call("a", order=0, suffix=[1, 2, 3], sampled=[10, 11])
    second = call("b", order=1, parent=first, suffix=[4], sampled=[12])
    return first, second


def test_a_transition_holds_the_exact_prompt_and_the_next_one():
    trajectory = build(rollout("x"), chain(), [reward()], policy="default")
    assert trajectory.reward == 1.0
    one, two = trajectory.steps
    assert one.state.tolist() == [1, 2, 3]
    assert two.state.tolist() == [1, 2, 3, 10, 11, 4]
    assert one.next_state == two.state
    assert two.next_state is None


def test_two_turns_make_one_sample_in_which_both_actions_are_trained():
    trajectory = build(rollout("x"), chain(), [reward()], policy="default")
    (sample,) = samples(trajectory, [0.5, -0.25])
    assert sample.tokens.tolist() == [1, 2, 3, 10, 11, 4, 12]
    assert sample.trained.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert sample.advantages.tolist() == [0, 0, 0, 0.5, 0.5, 0, -0.25]
    assert sample.logprobs.tolist() == [0, 0, 0, -0.5, -0.5, 0, -0.5]
    assert sample.rollout_tokens == 3


def test_constrained_tokens_weigh_their_legal_mass_and_those_without_a_choice_nothing():
    first, second = chain()
    bound = replace(first, legal_mass=nats([0.25, 0.0]))
    forced = replace(second, legal_mass=nats([0.0]))
    trajectory = build(rollout("x"), [bound, second], [reward()], policy="default")
    (sample,) = samples(trajectory, [0.5, -0.25])
    assert sample.trained.tolist() == [0, 0, 0, 1, 0, 0, 1]
    assert sample.advantages.tolist() == [0, 0, 0, 0.5, 0, 0, -0.25]
    assert sample.legal_mass.tolist() == [0, 0, 0, 0.25, 0, 0, 1.0]
    assert sample.logprobs.tolist() == [0, 0, 0, -0.5, 0, 0, -0.5]
    assert sample.rollout_tokens == 2
    (alone,) = samples(build(rollout("x"), [first, forced], [reward()], policy="default"), [1.0, 1.0], max_tokens=6)
    assert (sum(alone.trained), alone.rollout_tokens, alone.call_ids) == (2, 2, ("a",))
    nothing = build(rollout("x"), [replace(first, legal_mass=nats([0.0, 0.0])), forced], [reward()], policy="default")
    assert samples(nothing, [1.0, 1.0]) == []


def test_the_weighted_gradient_is_that_of_the_free_policy_whose_illegal_tokens_have_no_advantage():
    """sum over the legal of b(a) Z A(a) d log p(a) = sum over the legal of p(a) A(a) d log p(a), worked in numbers."""
    logits, advantage, legal = [0.3, -1.0, 2.0, 0.5], [1.0, -2.0, 0.5, 7.0], [True, True, False, True]
    weights = [math.exp(value) for value in logits]
    p = [value / sum(weights) for value in weights]
    mass = sum(share for share, may in zip(p, legal, strict=True) if may)
    step = replace(chain()[0], sampled_ids=token_ids([0]), logprobs=nats([0.0]), legal_mass=nats([mass]))
    found, wanted = [0.0] * 4, [0.0] * 4
    for a in (0, 1, 3):
        drawn = replace(step, logprobs=nats([math.log(p[a])]))
        (sample,) = samples(build(rollout("x"), [drawn], [reward()], policy="default"), [advantage[a]])
        for k in range(4):
            slope = (a == k) - p[k]  # d log p(a) / d logit k
            found[k] += p[a] / mass * sample.legal_mass[-1] * sample.advantages[-1] * slope
            wanted[k] += p[a] * advantage[a] * slope
    assert found == pytest.approx(wanted, abs=1e-6)


def test_a_step_shared_by_two_branches_is_trained_once():
    first, second = chain()
    other = call("c", order=2, parent=first, suffix=[5, 6], sampled=[13])
    made = samples(build(rollout("x"), [first, second, other], [reward()], policy="default"), [1.0, 1.0, 1.0])
    assert [sample.call_ids for sample in made] == [("a", "b"), ("c",)]
    assert made[1].tokens.tolist() == [1, 2, 3, 10, 11, 5, 6, 13]
    assert made[1].trained.tolist() == [0] * 7 + [1]


def test_a_quarantined_call_is_context_of_what_followed_and_never_trained():
    first = call("a", order=0, suffix=[1, 2, 3], sampled=[10, 11])
    second = call("b", order=1, parent=first, suffix=[4], sampled=[12], trainable=False, error="the text differs")
    third = call("c", order=2, parent=second, suffix=[5], sampled=[13])
    made = samples(build(rollout("x"), [first, second, third], [reward()], policy="default"), [1.0, 1.0])
    assert [sample.call_ids for sample in made] == [("a",), ("c",)]
    assert made[1].tokens.tolist() == [1, 2, 3, 10, 11, 4, 12, 5, 13]
    assert made[1].trained.tolist() == [0] * 8 + [1]


def test_a_branch_that_is_too_long_is_cut_into_one_sample_a_call():
    made = samples(build(rollout("x"), chain(), [reward()], policy="default"), [1.0, 1.0], max_tokens=6)
    assert [sample.tokens.tolist() for sample in made] == [[1, 2, 3, 10, 11], [1, 2, 3, 10, 11, 4, 12]]
    assert [sum(sample.trained) for sample in made] == [2, 1]
    assert {sample.rollout_tokens for sample in made} == {3}


def test_only_completed_trainable_calls_of_the_component_are_steps():
    first, second = chain()
    calls = [
        first,
        second,
        call("running", order=2, suffix=[9], sampled=[], status=CallStatus.RUNNING),
        call("judge", order=3, suffix=[9], sampled=[20], component="team/judge"),
        call("odd", order=4, suffix=[9], sampled=[21], trainable=False),
        call("other", order=5, suffix=[9], sampled=[22], policy="another"),
    ]
    trajectory = build(rollout("x"), calls, [reward()], policy="default", wanted=["solver"])
    assert [step.call_id for step in trajectory.steps] == ["a", "b"]


def test_the_latest_value_of_a_part_wins_and_weights_apply():
    rewards = [reward(value=0.0, id="1"), reward("style", 0.5, id="2"), reward(value=1.0, id="3")]
    trajectory = build(rollout("x"), chain(), rewards, policy="default", weights={"style": 0.2})
    assert trajectory.reward == pytest.approx(1.1)


def test_step_and_component_parts_never_add_into_the_rollouts_reward():
    rewards = [
        reward(value=1.0, id="1"),
        reward("hint", 0.3, "step", "a", id="2"),
        reward("role", 0.7, "component", "solver", id="3"),
    ]
    trajectory = build(rollout("x"), chain(), rewards, policy="default")
    assert trajectory.reward == 1.0
    assert [step.reward for step in trajectory.steps] == pytest.approx([0.3, 0.7])


def test_without_a_rollout_part_the_reward_is_unknown():
    trajectory = build(rollout("x"), chain(), [reward("hint", 0.3, "step", "a")], policy="default")
    assert trajectory.reward is None


def test_the_newest_steps_are_kept_and_the_cut_is_counted():
    trajectory = build(rollout("x"), chain(), [reward()], policy="default", max_length=1)
    assert [step.call_id for step in trajectory.steps] == ["b"]
    assert trajectory.cut == 1
    (sample,) = samples(trajectory, [1.0])
    assert sample.trained.tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_export_writes_one_line_a_rollout(tmp_path):
    trajectory = build(rollout("x"), chain(), [reward()], policy="default")
    assert write_jsonl([trajectory, trajectory], tmp_path / "out.jsonl") == 2
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines[0]["transitions"][1]["state"] == [1, 2, 3, 10, 11, 4]


@st.composite
def forests(draw):
    """Calls in which each one starts a branch or extends any earlier one."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    calls: list[Call] = []
    for order in range(draw(st.integers(1, 12))):
        parent = chance.choice([None, *calls])
        suffix = [chance.randrange(100) for _ in range(chance.randint(1 if parent is None else 0, 4))]
        sampled = [chance.randrange(100) for _ in range(chance.randint(1, 4))]
        calls.append(call(f"c{order}", order=order, parent=parent, suffix=suffix, sampled=sampled))
    return calls


@given(forests())
def test_each_sampled_token_is_trained_exactly_once(calls):
    trajectory = build(rollout("x"), calls, [reward()], policy="default")
    made = samples(trajectory, [1.0] * len(calls))
    assert sorted(name for sample in made for name in sample.call_ids) == sorted(c.id for c in calls)
    assert sum(sum(sample.trained) for sample in made) == sum(len(c.sampled_ids) for c in calls)
    assert {sample.rollout_tokens for sample in made} == {sum(len(c.sampled_ids) for c in calls)}


@given(forests())
def test_a_branch_spells_exactly_what_the_model_saw(calls):
    by_id = {c.id: c for c in calls}

    def seen(c):
        head = (
            []
            if c.parent_call_id is None
            else seen(by_id[c.parent_call_id]) + by_id[c.parent_call_id].sampled_ids.tolist()
        )
        return head + c.suffix_ids.tolist()

    for branch in branches(build(rollout("x"), calls, [reward()], policy="default")):
        for span in branch.trained:
            assert branch.tokens[: span.start].tolist() == seen(by_id[span.step.call_id])
            assert branch.tokens[span.start : span.end] == span.step.action
