"""Credit against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.credit import CreditConfig, assign, group_advantages, weights
from agent_lightning.credit.figures import assignment_variance
from agent_lightning.errors import SettingError
from agent_lightning.records import Outcome
from lived import lived


def test_linear_decay_falls_to_its_floor_and_decays_beyond_the_window():
    got = weights.linear_decay(0.3, 0.1, 5)([7, 6, 5, 4, 3, 2, 1, 0])
    assert got == pytest.approx([0.1 * 0.7**3, 0.1 * 0.7**2, 0.07, 0.1, 0.1, 0.4, 0.7, 1.0])


def test_exponential_decay_and_final_only():
    assert weights.exponential_decay(0.3)([2, 1, 0]) == pytest.approx([0.49, 0.7, 1.0])
    assert weights.final_only()([2, 1, 0]) == [0.0, 0.0, 1.0]


def test_parallel_steps_share_a_place_and_gaps_do_not_count():
    assert weights.steps_before_last([0, 1, 1, 4]) == [2, 1, 1, 0]


def test_advantages_use_ddof_one_and_a_small_epsilon():
    got = group_advantages([1.0, 0.0, 0.0, 0.0], normalizer=0.8)
    std = 0.5  # squares: 0.75^2 + 3 x 0.25^2 = 0.75; / 3 = 0.25
    assert got == pytest.approx([0.8 * 0.75 / (std + 1e-4), *[-0.8 * 0.25 / (std + 1e-4)] * 3])


def test_an_unknown_reward_stays_unknown_and_out_of_the_statistics():
    got = group_advantages([1.0, None, 0.0], normalizer=1.0)
    assert got[1] is None
    assert got[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4))


@pytest.mark.parametrize("rewards", [[0.5, 0.5, 0.5], [0.5], [None, 0.3], [0.1 + 0.2, 0.3]])
def test_a_flat_group_gives_no_advantage(rewards):
    assert all(value in (0.0, None) for value in group_advantages(rewards, normalizer=1.0))


def test_two_steps_of_unequal_length_are_weighted_by_tokens():
    report = assign({"g": [lived("a", 1.0, [2, 4]), lived("b", 0.0, [3])]}, CreditConfig(credit_decay=0.5))
    first = report.credited[0]
    assert first.step_weights == pytest.approx((0.5, 1.0))
    # m = s x (2 + 4) / (2 x 0.5 + 4 x 1) = s x 1.2
    assert first.multipliers == pytest.approx((0.6, 1.2))
    assert first.credits == pytest.approx((1 / 3, 2 / 3))
    advantage = 0.8 * 0.5 / (math.sqrt(0.5) + 1e-4)
    assert first.advantages == pytest.approx((0.6 * advantage, 1.2 * advantage))


def test_uniform_equals_plain_grpo_bit_for_bit():
    rewards = [0.3, 1.0, 0.1]
    members = [lived(str(i), reward, [3, 1, 7]) for i, reward in enumerate(rewards)]
    report = assign({"g": members}, CreditConfig(credit_assignment="uniform"))
    plain = group_advantages(rewards, normalizer=0.8)
    assert [item.advantages for item in report.credited] == [(value,) * 3 for value in plain]


def test_assignment_variance_by_hand():
    # group a: credits 0.8 x (0.5, 1.5) at R' = 1: variance 0.16; group b: R' = 0 gives zeros
    groups = {"a": [(1.0, (0.5, 1.5))], "b": [(0.0, (1.0, 1.0))]}
    assert assignment_variance(groups, (0.0, 1.0)) == pytest.approx(0.08)


def test_failures_are_not_zeros():
    members = [
        lived("a", 1.0, [1]),
        lived("b", 0.0, [1]),
        lived("c", None, [1], outcome=Outcome.LOST_WORKER),
        lived("d", None, [1], outcome=Outcome.AGENT_ERROR),
    ]
    report = assign({"g": members}, CreditConfig())
    assert report.rewarded == 2
    assert report.dropped == {"lost_worker": 1, "agent_error": 1}
    assert report.credited[0].baseline == 0.5


def test_failure_reward_makes_an_agents_error_count():
    members = [lived("a", 1.0, [1]), lived("d", None, [1], outcome=Outcome.AGENT_ERROR)]
    report = assign({"g": members}, CreditConfig(failure_reward=-1.0))
    assert report.rewarded == 2
    assert report.credited[0].baseline == 0.0


def test_a_sibling_without_a_step_stays_in_the_baseline_and_gives_no_sample():
    report = assign({"g": [lived("a", 1.0, [1]), lived("b", 0.0, [])]}, CreditConfig())
    assert report.credited[0].baseline == 0.5
    assert report.credited[1].dropped == "no_call"
    assert report.rewarded == 2


@pytest.mark.parametrize("name", ["uniform", "final_only"])
def test_a_window_that_cannot_be_honoured_is_refused(name):
    with pytest.raises(SettingError, match="credit_window"):
        CreditConfig(credit_assignment=name, credit_window=3)


lengths = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@given(lengths, st.floats(0.0, 0.9), st.floats(0.01, 1.0), st.integers(1, 8))
def test_the_token_mean_of_the_multipliers_is_one(lengths, decay, floor, window):
    ks = list(range(len(lengths)))[::-1]
    ms = weights.multipliers(weights.linear_decay(decay, floor, window)(ks), lengths)
    assert np.average(ms, weights=lengths) == pytest.approx(1.0)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.floats(0.1, 5), st.floats(-5, 5))
def test_advantages_do_not_see_a_shift_of_the_rewards(rewards, scale, shift):
    base = group_advantages(rewards, normalizer=1.0)
    moved = group_advantages([reward + shift for reward in rewards], normalizer=1.0)
    if float(np.std(rewards, ddof=1)) > 1e-3:
        assert moved == pytest.approx(base, abs=1e-6)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.randoms(use_true_random=False))
def test_the_order_of_siblings_does_not_matter(rewards, chance):
    order = list(range(len(rewards)))
    chance.shuffle(order)
    base = group_advantages(rewards, normalizer=1.0)
    shuffled = group_advantages([rewards[i] for i in order], normalizer=1.0)
    assert shuffled == pytest.approx([base[i] for i in order], abs=1e-9)


def test_success_is_measured_against_success_reward_and_not_against_the_batch():
    group = [lived("a", 0.2, [1]), lived("b", 0.1, [1]), lived("c", 0.2, [1])]
    assert assign({"g": group}, CreditConfig()).figures["reward.success"] == 0.0
    assert assign({"g": group}, CreditConfig(success_reward=0.2)).figures["reward.success"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("strategy", ["uniform", "final_only", "exponential_decay"])
def test_a_strategy_without_a_window_refuses_one(strategy):
    with pytest.raises(SettingError, match="has no window"):
        CreditConfig(credit_assignment=strategy, credit_window=3)


@pytest.mark.parametrize(
    "given", [{"credit_window": 0}, {"reward_range": (1.0, 0.0)}, {"reward_range": (0.0, float("nan"))}]
)
def test_credit_settings_out_of_range_are_refused(given):
    with pytest.raises(SettingError, match=next(iter(given))):
        CreditConfig(**given)
