"""When a call is tried again."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.client.config import RETRY_STRATEGIES
from agent_lightning.client.retry import CAP_SECONDS, RETRIED_STATUS, Backoff, retry_after


@given(
    strategy=st.sampled_from(RETRY_STRATEGIES),
    deadline=st.floats(0.1, 100.0),
    draws=st.lists(st.floats(0.0, 0.999), min_size=1, max_size=60),
    asked=st.one_of(st.none(), st.floats(0.0, 20.0)),
)
def test_the_deadline_is_never_passed_and_the_servers_wish_is_honoured(
    strategy: str, deadline: float, draws: list[float], asked: float | None
) -> None:
    now = 0.0
    chance = iter(draws)
    backoff = Backoff(strategy=strategy, deadline=deadline, clock=lambda: now, draw=lambda: next(chance))
    headers = {} if asked is None else {"retry-after": str(asked)}
    for _ in draws:
        pause = backoff.after_status(503, headers)
        if pause is None:
            break
        assert strategy != "none"
        assert 0.0 <= pause <= CAP_SECONDS + (asked or 0.0)
        assert asked is None or pause >= asked
        now += pause
        assert now < deadline


def test_pauses_grow_to_a_cap_or_stay_as_they_are() -> None:
    def pauses(strategy: str) -> list[float | None]:
        backoff = Backoff(strategy=strategy, deadline=1e9, clock=lambda: 0.0, draw=lambda: 1.0)
        return [backoff.after_status(429, {}) for _ in range(8)]

    assert pauses("exponential_backoff") == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert pauses("fixed") == [1.0] * 8


def test_an_unreachable_server_is_given_up_sooner_than_a_busy_one() -> None:
    now = 0.0
    backoff = Backoff(strategy="fixed", deadline=600.0, patience=5.0, clock=lambda: now, draw=lambda: 0.5)
    tries = 0
    while (pause := backoff.after_lost_connection()) is not None:
        now, tries = now + pause, tries + 1
    assert tries == 9
    assert backoff.after_status(503, {}) is not None


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 410, 422, 425, 500])
def test_only_what_may_pass_is_tried_again(status: int) -> None:
    assert status not in RETRIED_STATUS
    assert Backoff(strategy="fixed", deadline=1e12).after_status(status, {}) is None
    assert Backoff(strategy="fixed", deadline=1e12).after_status(503, {"x-should-retry": "false"}) is None


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert retry_after({"retry-after": "2"}) == 2.0
    assert retry_after({}) is None
    assert retry_after({"retry-after": "soon"}) is None
    date = retry_after({"retry-after": formatdate(time.time() + 10, usegmt=True)})
    assert date is not None
    assert 8.0 < date < 11.0
