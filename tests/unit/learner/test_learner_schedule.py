"""The learning rate, by hand."""

from __future__ import annotations

import json

import pytest

from agent_lightning.errors import CheckpointError, SettingError
from agent_lightning.learner.schedule import Schedule

SHORT = Schedule(warmup_trajectories=10, warmup_steps=4, warmup_learning_rate=1e-6, learning_rate=5e-6)


def test_the_rate_is_low_until_enough_was_collected_and_then_rises_in_a_straight_line():
    schedule, rates = SHORT, []
    for trajectories in (0, 8, 9, 10, 12, 14, 16, 18, 20):
        rates.append(schedule.rate(trajectories))
        schedule = schedule.stepped(trajectories)
    assert rates == pytest.approx([1e-6, 1e-6, 1e-6, 1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 5e-6])


def test_without_warmup_the_first_rate_is_the_full_one():
    assert Schedule(warmup_trajectories=0, warmup_steps=0, learning_rate=2e-4).rate(0) == 2e-4


def test_every_rollback_halves_the_rate():
    assert SHORT.halved().halved().rate(0) == pytest.approx(0.25e-6)


def test_the_state_survives_json():
    there = SHORT.stepped(10).stepped(10).halved()
    back = SHORT.restored(json.loads(json.dumps(there.state())))
    assert back == there


def test_a_garbled_state_is_a_checkpoint_error():
    with pytest.raises(CheckpointError, match="multiplier"):
        SHORT.restored({"risen": 1})


def test_a_negative_rate_is_refused():
    with pytest.raises(SettingError, match="learning_rate is -1"):
        Schedule(learning_rate=-1)
