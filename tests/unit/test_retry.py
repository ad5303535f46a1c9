"""Retries: delays double up to the cap, attempts end, and jitter spreads a crowd."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.clock import RandomChance
from s3queue.errors import InvalidRequest
from s3queue.retry import RetryPolicy

SECOND = timedelta(seconds=1)


def test_delays_double_up_to_the_cap():
    policy = RetryPolicy(base=SECOND, cap=30 * SECOND, max_attempts=8)

    assert [delay.total_seconds() for delay in policy.schedule()] == [1, 2, 4, 8, 16, 30, 30]


def test_attempts_end():
    policy = RetryPolicy(max_attempts=3)

    assert [policy.can_retry(attempt) for attempt in (1, 2, 3, 4)] == [True, True, False, False]
    assert RetryPolicy(max_attempts=1).schedule() == []


policies = some.builds(
    RetryPolicy,
    base=some.timedeltas(timedelta(), timedelta(days=30)),
    cap=some.timedeltas(timedelta(days=30), timedelta(days=10_000)),
    jitter=some.booleans(),
)


@given(policies, some.integers(1, 10**9), some.integers())
def test_a_delay_is_within_bounds_for_any_attempt(policy, attempt, seed):
    longest = policy.delay(attempt)
    drawn = policy.delay(attempt, RandomChance(random.Random(seed)))

    assert timedelta() <= drawn <= longest <= policy.cap
    assert policy.delay(attempt + 1) >= longest
    if not policy.jitter:
        assert drawn == longest


def test_full_jitter_spreads_a_crowd_over_the_whole_delay():
    policy = RetryPolicy(base=8 * SECOND)
    chance = RandomChance(random.Random(1))

    delays = [policy.delay(1, chance).total_seconds() for _ in range(1000)]

    assert min(delays) < 0.5
    assert max(delays) > 7.5
    assert 3.5 < sum(delays) / 1000 < 4.5


@pytest.mark.parametrize(
    "options", [{"max_attempts": 0}, {"base": -SECOND}, {"base": 2 * SECOND, "cap": SECOND}], ids=str
)
def test_a_policy_that_makes_no_sense_is_refused(options):
    with pytest.raises(InvalidRequest):
        RetryPolicy(**options)
