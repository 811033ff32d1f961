"""Guards: what stops a run, what warns, what is only counted."""

from __future__ import annotations

import pytest

from agent_lightning.credit import CreditReport
from agent_lightning.errors import TrainingStopped
from agent_lightning.records import Outcome
from agent_lightning.trainer import guard
from lived import rollout


def figures(mean: float, std: float = 0.0) -> dict[str, float]:
    return {"reward.mean": mean, "reward.std": std}


def test_a_reward_that_never_moved_stops_the_run_at_the_third_step():
    watch = guard.RewardWatch(top=1.0)
    assert watch.see(figures(0.5)) == []
    assert watch.see(figures(0.5)) == []
    with pytest.raises(TrainingStopped, match="for every rollout since the run began"):
        watch.see(figures(0.5))


def test_a_reward_that_stands_still_later_is_an_alert():
    watch = guard.RewardWatch(top=1.0)
    watch.see(figures(0.3, 0.1))
    assert [watch.see(figures(0.5)) for _ in range(2)] == [[], []]
    assert watch.see(figures(0.5)) == ["the reward has been 0.5 for every rollout for 3 steps"]


def test_all_at_the_top_three_times_is_solved():
    watch = guard.RewardWatch(top=1.0)
    for _ in range(3):
        assert not watch.solved
        watch.see(figures(1.0))
    assert watch.solved


def test_a_change_of_the_constant_is_a_move():
    watch = guard.RewardWatch(top=1.0)
    for mean in (0.5, 0.5, 0.6, 0.6, 0.6):
        watch.see(figures(mean))
    assert watch.moved
    assert watch.constant == 3


def test_a_resumed_run_remembers_what_the_reward_did():
    rows = [{"figures": figures(0.2, 0.3)}, {"figures": figures(0.5)}, {"figures": figures(0.5)}]
    watch = guard.watched(rows, top=1.0)
    assert watch.see(figures(0.5)) == ["the reward has been 0.5 for every rollout for 3 steps"]


def test_five_updates_that_are_not_finite_stop_the_run_and_flat_ones_do_not():
    watch = guard.RewardWatch(top=1.0)
    for _ in range(20):
        watch.updated(applied=False, reason="no samples")
    for _ in range(4):
        watch.updated(applied=False, reason="nan")
    watch.updated(applied=True, reason=None)
    for _ in range(4):
        watch.updated(applied=False, reason="nan")
    with pytest.raises(TrainingStopped, match="not finite"):
        watch.updated(applied=False, reason="nan")


def report(rewarded: int) -> CreditReport:
    return CreditReport(credited=(), rewarded=rewarded)


def test_failures_above_a_tenth_and_any_missing_call_are_alerts():
    good = [rollout(f"g{i}") for i in range(18)]
    bad = [rollout("b", outcome=Outcome.NO_CALL, detail="no call was seen")]
    alerts = guard.check_rollouts([*good, *bad], report(18))
    assert alerts == ["1 of 19 rollouts ended as no_call: no call was seen"]
    timeouts = [rollout(f"t{i}", outcome=Outcome.TIMEOUT, detail="slow") for i in range(3)]
    assert "3 of 21 rollouts ended as timeout: slow" in guard.check_rollouts([*good, *timeouts], report(18))


def test_nothing_rewarded_says_the_most_frequent_reasons():
    rollouts = [rollout(f"t{i}", outcome=Outcome.TIMEOUT, detail="too slow") for i in range(3)]
    with pytest.raises(TrainingStopped, match=r"3 x timeout \(too slow\)"):
        guard.check_rollouts(rollouts, report(0))
    silent = [rollout("a", outcome=Outcome.NO_REWARD)]
    with pytest.raises(TrainingStopped, match="pass reward="):
        guard.check_rollouts(silent, report(0))


def test_a_metric_beyond_its_threshold_says_what_to_do():
    alerts = guard.check_figures({"credit.assignment_variance": 0.3, "learner.kl": 0.1, "unknown": 1e9})
    assert len(alerts) == 1
    assert "credit_floor" in alerts[0]
