"""Advantage rules, preference pairs and advantages of tokens against numbers worked by hand and numpy."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.credit import RULES, CreditConfig, assign
from agent_lightning.credit.tokens import gae, to_go, whitened
from agent_lightning.errors import SettingError
from agent_lightning.records import Pair, Trajectory
from lived import lived

COMPARING = [name for name, rule in RULES.items() if rule.compares and rule.leaves_out is None]
REWARDS = st.lists(st.integers(-8, 8).map(lambda value: value / 4), min_size=2, max_size=9)


def worth(name: str, rewards: list[float | None], **given) -> list[float | None]:
    return RULES[name].worth(rewards, CreditConfig(reward_normalizer=1.0, **given))


def test_leave_one_out_by_hand():
    """Of 1, 0, 0.5 the others' means are 0.25, 0.75, 0.5."""
    assert worth("leave_one_out", [1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])
    assert worth("leave_one_out", [1.0, None, 0.0]) == pytest.approx([1.0, None, -1.0])


def test_the_difference_from_the_mean_by_hand():
    assert worth("group_mean", [1.0, 0.0, 0.5]) == pytest.approx([0.5, -0.5, 0.0])


def test_rewards_as_they_are_also_in_a_flat_group():
    assert worth("reward", [0.5, None, 0.5]) == [0.5, None, 0.5]


def test_the_best_are_imitated_and_a_failure_is_not():
    assert worth("best", [0.2, 0.9, 0.5]) == [0.0, 1.0, 0.0]
    assert worth("best", [0.2, 0.9, None, 0.5], sft_best=2) == [0.0, 1.0, None, 1.0]
    assert worth("best", [0.0, 0.0]) == [0.0, 0.0]
    assert worth("best", [1.0, 1.0]) == [1.0, 1.0]
    assert worth("best", [0.0, 1.0], sft_best=5) == [0.0, 1.0]


@given(REWARDS, st.integers(-20, 20), st.sampled_from(COMPARING))
def test_rules_that_compare_do_not_see_a_shift(rewards, shift, name):
    moved = worth(name, [reward + shift for reward in rewards])
    assert moved == pytest.approx(worth(name, list(rewards)), abs=1e-6)


@given(REWARDS, st.randoms(use_true_random=False), st.sampled_from(sorted(RULES)))
def test_no_rule_depends_on_the_order_of_siblings(rewards, chance, name):
    order = list(range(len(rewards)))
    chance.shuffle(order)
    base = worth(name, list(rewards))
    assert worth(name, [rewards[i] for i in order]) == pytest.approx([base[i] for i in order], abs=1e-9)


@given(REWARDS, st.integers(1, 16), st.sampled_from(["group_mean", "leave_one_out", "reward"]))
def test_rules_without_a_deviation_scale_with_the_rewards(rewards, scale, name):
    base = worth(name, list(rewards))
    assert worth(name, [reward * scale for reward in rewards]) == pytest.approx([scale * x for x in base], abs=1e-9)


def test_a_critic_is_told_each_calls_share_of_the_reward():
    """s = 0.5, 1 and lengths 2, 4: m = 0.6, 1.2."""
    config = CreditConfig(advantage="step_rewards", credit_decay=0.5, reward_normalizer=1.0)
    (item,) = assign({"g": [lived("a", 2.0, [2, 4])]}, config).credited
    assert item.rewards == pytest.approx((1.2, 2.4))
    assert item.advantages == () and item.advantage is None


def test_over_a_trajectory_steps_keep_their_own_rewards_and_the_last_gets_the_rollouts():
    one = lived("a", 2.0, [2, 4])
    paid = replace(one, steps=(replace(one.steps[0], reward=0.25), one.steps[1]))
    config = CreditConfig(advantage="step_rewards", gae_over="trajectory", reward_normalizer=1.0)
    (item,) = assign({"g": [paid]}, config).credited
    assert item.rewards == pytest.approx((0.25, 2.0))
    assert item.multipliers == (1.0, 1.0)


def test_an_over_long_answer_is_punished_step_by_step():
    """Limit 10, buffer 4: six tokens cost nothing, eight half, ten and more all."""
    members = [lived(str(n), 1.0, [1, n]) for n in (6, 8, 10, 30)]
    config = CreditConfig(advantage="reward", credit_assignment="uniform", reward_normalizer=1.0)
    punished = replace(config, overlong_tokens=10, overlong_buffer=4, overlong_penalty=0.5)
    report = assign({"g": members}, punished)
    assert [item.advantages[0] for item in report.credited] == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert all(item.reward == 1.0 for item in report.credited)
    assert assign({"g": members}, config).credited[3].advantages[0] == 1.0
    with pytest.raises(SettingError, match="overlong_buffer"):
        CreditConfig(overlong_tokens=10, overlong_buffer=11)


def preferred(members: list[Trajectory], **given) -> tuple[tuple[str, str], ...]:
    report = assign({"g": members}, CreditConfig(advantage="pairs", **given))
    return tuple((pair.chosen, pair.rejected) for pair in report.pairs)


def test_pairs_are_siblings_whose_rewards_differ_widest_first():
    members = [lived("a", 0.0, [1]), lived("b", 1.0, [1]), lived("c", 0.6, [1]), lived("d", 1.0, [])]
    assert preferred(members) == (("b", "a"), ("c", "a"), ("b", "c"))
    assert preferred(members, pair_margin=0.5) == (("b", "a"), ("c", "a"))
    assert preferred(members, pairs_per_group=1) == (("b", "a"),)


def test_a_rollout_in_no_pair_gives_no_sample_and_says_why():
    members = [lived("a", 0.0, [1]), lived("b", 1.0, [1]), lived("c", 0.4, [1])]
    report = assign({"g": members}, CreditConfig(advantage="pairs", pair_margin=0.7))
    assert [item.left_out is None for item in report.credited] == [True, True, False]
    assert report.rewarded == 3 and "pair_margin" in (report.credited[2].left_out or "")


def test_pairs_of_steps_need_the_same_prompt_and_another_answer():
    good, bad = lived("a", 1.0, [2, 2]), lived("b", 0.0, [3, 2])
    report = assign({"g": [good, bad]}, CreditConfig(advantage="pairs", pair_level="step"))
    assert report.pairs == (Pair(chosen="a", rejected="b", chosen_call="a-0", rejected_call="b-0"),)
    same = replace(bad, steps=tuple(replace(step, action=array("i", [10, 11])) for step in bad.steps))
    assert assign({"g": [good, same]}, CreditConfig(advantage="pairs", pair_level="step")).pairs == ()


def test_gae_by_hand():
    """V = 0.5, 1, reward 2 at the end, gamma 0.9, lambda 0.5: d = 0.4, 1; A = 0.4 + 0.45 x 1, 1."""
    got = gae(np.array([0.0, 2.0]), np.array([0.5, 1.0]), np.array([False, True]), gamma=0.9, decay=0.5)
    assert got == pytest.approx([0.85, 1.0])


def test_nothing_flows_over_the_end_of_an_episode():
    rewards, values = np.array([1.0, 5.0]), np.array([0.0, 3.0])
    assert gae(rewards, values, np.array([True, True]), gamma=1.0, decay=1.0) == pytest.approx([1.0, 2.0])
    assert to_go(np.array([1.0, 2.0, 4.0]), np.array([False, True, True])) == pytest.approx([3.0, 2.0, 4.0])


@given(st.integers(0, 1000), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_gae_is_the_sum_of_discounted_errors(seed, gamma, decay):
    """Against arXiv:1506.02438, equation 16, written out as a double sum."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, 3)
    rewards, values = rng.normal(size=(2, lengths.sum()))
    last = np.zeros(lengths.sum(), bool)
    last[np.cumsum(lengths) - 1] = True
    wanted, start = [], 0
    for length in lengths:
        r, v = rewards[start : start + length], np.append(values[start : start + length], 0.0)
        errors = r + gamma * v[1:] - v[:-1]
        wanted += [sum((gamma * decay) ** k * errors[t + k] for k in range(length - t)) for t in range(length)]
        start += length
    np.testing.assert_allclose(gae(rewards, values, last, gamma=gamma, decay=decay), wanted, atol=1e-6)


def test_whitened_numbers_have_mean_zero_and_variance_one():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    got = whitened(values, float(values.mean()), float(values.var()))
    assert got.mean() == pytest.approx(0.0) and got.std() == pytest.approx(1.0)
