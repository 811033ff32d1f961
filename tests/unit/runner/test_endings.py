"""How an attempt ended, read from what the agent raised."""

from __future__ import annotations

import pytest

from agent_lightning.client.scope import RolloutRecord
from agent_lightning.errors import RewardError
from agent_lightning.records import Outcome
from agent_lightning.runner.endings import ending_of
from agent_lightning.runner.rewarding import check_signature, parts_of


class StatusError(Exception):
    """As SDKs raise it."""

    def __init__(self, status: int | None, code: str | None = None) -> None:
        super().__init__(f"status {status}")
        self.status_code, self.code = status, code


def record(**given: int) -> RolloutRecord:
    made = RolloutRecord()
    for name, value in given.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("error", "given", "outcome"),
    [
        (ValueError("x"), {}, Outcome.AGENT_ERROR),
        (StatusError(400, "context_length_exceeded"), {}, Outcome.OVER_LONG_PROMPT),
        (StatusError(504, "step_timeout"), {}, Outcome.TIMEOUT),
        (RuntimeError("gave up"), {"timeouts": 1}, Outcome.TIMEOUT),
        (StatusError(503), {"failures": 1}, Outcome.INFRASTRUCTURE),
        (ConnectionError("refused"), {"failures": 1}, Outcome.INFRASTRUCTURE),
        (StatusError(503), {}, Outcome.AGENT_ERROR),  # of a provider of its own
        (ValueError("unrelated"), {"failures": 1}, Outcome.AGENT_ERROR),
    ],
)
def test_each_failure_has_its_name(error, given, outcome):
    ending = ending_of(error, record(**given))
    assert ending is not None
    assert ending.outcome is outcome


def test_a_sealed_attempt_ends_without_a_word():
    assert ending_of(StatusError(410), record()) is None


def test_the_cause_behind_a_wrapped_error_decides():
    try:
        try:
            raise StatusError(504, "step_timeout")
        except StatusError as error:
            raise RuntimeError("node failed") from error
    except RuntimeError as error:
        ending = ending_of(error, record())
    assert ending is not None
    assert ending.outcome is Outcome.TIMEOUT


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1.0", [1], {"a": None}, {"a": "x"}, object()])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(RewardError, match="wanted"):
        parts_of(value)


def test_numbers_mappings_and_nothing_are_taken():
    import numpy as np

    assert parts_of(0.5) == {"reward": 0.5}
    assert parts_of(True) == {"reward": 1.0}
    assert parts_of(np.float32(0.25)) == {"reward": 0.25}
    assert parts_of({"exact": 1, "style": 0.5}) == {"exact": 1.0, "style": 0.5}
    assert parts_of(None) == {}


def test_a_reward_function_of_the_wrong_shape_is_refused_at_once():
    with pytest.raises(RewardError, match=r"must take \(task, result, rollout\)"):
        check_signature(lambda task, result: 1.0)
