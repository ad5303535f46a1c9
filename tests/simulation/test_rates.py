"""A rate holds in every window of S3's clock, and is used: twenty workers, slow requests, lost answers, pauses."""

from __future__ import annotations

import pytest

from s3queue.settings import QueueSettings

from .limited import Crowd, Trouble, most_in_any
from .world import QUEUE

BEGIN = 37.0
BAD = Trouble(slowest=0.4, pauses=0.02, lost=0.02)


def _claims(crowd: Crowd, folder: str = "") -> list[float]:
    return [start.claimed_at for start in crowd.starts if folder in start.path]


@pytest.mark.parametrize(("rate", "window", "windows"), [("100/min", 60, 5), ("10/min", 60, 5), ("20/hour", 3600, 3)])
def test_twenty_workers_keep_a_rate_and_use_it(rate: str, window: int, windows: int) -> None:
    calls = int(rate.split("/")[0])
    crowd = Crowd(QueueSettings.of(rate=rate))
    crowd.put(calls * (windows + 1))
    # Not with a minute: windows begin anywhere.
    crowd.pull(20, after=BEGIN)
    crowd.run(window * windows + BEGIN)

    assert most_in_any(_claims(crowd), window) <= calls
    # S3's dates are whole seconds; the limit holds for the true time of the claims, too.
    assert most_in_any([start.at for start in crowd.starts], window - 1) <= calls
    later = [at for at in _claims(crowd) if at >= window + BEGIN]
    assert len(later) >= 0.9 * calls * (windows - 1)


def test_a_rate_per_second_is_kept_by_s3s_seconds() -> None:
    crowd = Crowd(QueueSettings.of(rate="20/s"))
    crowd.put(600)
    crowd.pull(20)
    crowd.run(15)

    assert most_in_any(_claims(crowd), 1) <= 20
    assert len([at for at in _claims(crowd) if 2 <= at < 12]) >= 0.9 * 20 * 10


@pytest.mark.parametrize("seed", range(4))
def test_a_rate_is_kept_whatever_happens_to_requests_and_processes(seed: int) -> None:
    crowd = Crowd(QueueSettings.of(rate="60/min", visibility_timeout=10), seed, BAD)
    crowd.put(300)
    crowd.pull(20)
    crowd.run(180)

    assert most_in_any(_claims(crowd), 60) <= 60
    assert len(crowd.starts) > 60


@pytest.mark.parametrize("seed", range(3))
def test_a_token_is_given_back_once_whatever_becomes_of_the_answer(seed: int) -> None:
    """They have tokens left when there is nothing to do, and give them back together; the crowd's grants are judged."""
    crowd = Crowd(QueueSettings.of(rate="100/min"), seed, Trouble(slowest=0.2, lost_grants=0.3))
    crowd.put(30, "before/")
    crowd.world.at(9.0, lambda: crowd.put(400, "after/"))
    crowd.pull(8)
    crowd.run(60)

    assert most_in_any(_claims(crowd), 60) <= 100
    assert _claims(crowd, "after/")


def test_each_customer_has_a_rate_of_its_own_and_one_does_not_hold_up_the_others() -> None:
    crowd = Crowd(QueueSettings.of(rate="20/min", rate_key="folder"))
    for folder in ("a/", "b/", "c/"):
        crowd.put(200 if folder == "a/" else 30, folder)
    crowd.pull(10)
    crowd.run(130)

    for folder in ("/a/", "/b/", "/c/"):
        assert most_in_any(_claims(crowd, folder), 60) <= 20
    assert len(_claims(crowd, "/b/")) == len(_claims(crowd, "/c/")) == 30
    assert len(_claims(crowd, "/a/")) >= 40


def test_functions_keep_a_rate_and_use_it_although_nobody_polls() -> None:
    crowd = Crowd(QueueSettings.of(rate="60/min", handler_timeout=5, rescue_after=20))
    crowd.put(400)
    crowd.serve(5)
    crowd.run(300)

    assert most_in_any(_claims(crowd), 60) <= 60
    assert len([at for at in _claims(crowd) if at >= 60]) >= 0.9 * 60 * 4


def test_no_attempt_is_used_by_waiting_for_a_token() -> None:
    crowd = Crowd(QueueSettings.of(rate="30/min", visibility_timeout=10), trouble=BAD)
    crowd.put(60)
    crowd.pull(5)
    crowd.run(200)

    paths = [start.path for start in crowd.starts if start.attempt == 1]
    assert len(set(paths)) == 60


def _batches(crowd: Crowd, count: int, lines: int) -> None:
    for number in range(count):
        crowd.world.store.put(f"{QUEUE}/messages/{number:06d}.ndjson", b"{}\n" * lines)


def test_the_lines_of_batches_keep_a_rate_per_minute() -> None:
    crowd = Crowd(QueueSettings.of(rate="60/min", visibility_timeout=20))
    _batches(crowd, 20, 50)
    crowd.pull(5)
    crowd.run(240)

    assert most_in_any([start.at for start in crowd.starts], 59) <= 60
    assert len([start for start in crowd.starts if start.at >= 60]) >= 0.8 * 60 * 3


@pytest.mark.parametrize("seed", range(3))
def test_the_lines_of_batches_are_at_most_a_second_late_for_a_rate_per_second(seed: int) -> None:
    crowd = Crowd(QueueSettings.of(rate="10/s", visibility_timeout=20), seed, takes=0.01)
    _batches(crowd, 40, 50)
    crowd.pull(8)
    crowd.run(40)

    seconds = [float(int(start.at)) for start in crowd.starts]
    for window in (1, 5, 20):
        assert most_in_any(seconds, window) <= 10 * (window + 1)
    assert len([at for at in seconds if 2 <= at < 32]) >= 0.5 * 10 * 30
