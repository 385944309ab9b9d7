"""How often and how patiently a step is tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runs.errors import PatternError
from runs.patterns import RetryPolicy


@pytest.mark.contract("BYD-4")
def test_delays_grow_from_the_first_to_the_longest():
    policy = RetryPolicy(attempts=7, first_delay=0.5, factor=3, max_delay=20)
    assert [policy.delay_before(attempt) for attempt in range(1, 8)] == [0, 0.5, 1.5, 4.5, 13.5, 20, 20]


def test_no_number_of_attempts_overflows():
    assert RetryPolicy(attempts=1000, factor=1e300).delay_before(1000) == 30.0
    assert RetryPolicy(attempts=1000, first_delay=0).delay_before(1000) == 0


@pytest.mark.contract("BYD-4")
def test_another_attempt_follows_only_named_errors_and_only_while_attempts_are_left():
    policy = RetryPolicy(attempts=3, on=[OSError])
    assert policy.allows(1, ConnectionError())
    assert policy.allows(2, TimeoutError())
    assert not policy.allows(3, OSError())
    assert not policy.allows(1, ValueError())


@pytest.mark.contract("BYD-4")
def test_a_cancellation_is_never_retried():
    assert not RetryPolicy(attempts=5).allows(1, asyncio.CancelledError())
    for kind in (asyncio.CancelledError, KeyboardInterrupt, BaseException):
        with pytest.raises(PatternError, match="subclasses of Exception"):
            RetryPolicy(on=(kind,))  # pyright: ignore[reportArgumentType]


def test_without_words_a_step_is_tried_once():
    assert RetryPolicy() == RetryPolicy(attempts=1, first_delay=0.5, factor=2.0, max_delay=30.0, on=(Exception,))
    assert not RetryPolicy().allows(1, OSError())


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": 1001},
        {"attempts": True},
        {"attempts": 2.0},
        {"first_delay": -0.1},
        {"first_delay": float("nan")},
        {"first_delay": "1"},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"factor": True},
        {"max_delay": -1},
        {"on": ("OSError",)},
        {"on": (5,)},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]):
    with pytest.raises(PatternError, match="A retry policy"):
        RetryPolicy(**options)
