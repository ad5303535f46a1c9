"""A breaker stops twenty workers, lets exactly one message probe, and lets the backlog go once that succeeds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from s3queue.limits import Breaker
from s3queue.settings import QueueSettings

from .limited import Crowd, Start, Trouble

#: Others learn of it with their next look at the settings, or from their own next failure.
KNOWN_WITHIN = 10.5
WORKERS = 20


def _crowd(seed: int, healed_at: float, trouble: Trouble | None = None, **options: object) -> Crowd:
    settings = QueueSettings.of(
        breaker=Breaker(failures=10, pause=30, on=[ConnectionError]),
        max_attempts=5,
        retry_base=60,
        retry_cap=60,
        visibility_timeout=10,
        **options,
    )
    crowd = Crowd(settings, seed, trouble or Trouble())

    def handler(start: Start) -> None:
        if start.at < healed_at:
            raise ConnectionRefusedError("it is down")

    crowd.handler = handler
    return crowd


def _opened(crowd: Crowd) -> float:
    return next(at for name, at in crowd.events if name == "breaker.opened")


@pytest.mark.parametrize("seed", range(3))
def test_a_breaker_opens_for_everyone_probes_with_one_message_and_closes(seed: int) -> None:
    crowd = _crowd(seed, healed_at=100.0)
    crowd.put(300)
    crowd.pull(WORKERS)
    crowd.run(260)

    opened = _opened(crowd)
    # Each worker fails at most once more before it knows, whatever it was doing when the breaker opened.
    assert len([start for start in crowd.starts if start.at <= opened]) <= 10 + WORKERS
    while_open = [start for start in crowd.starts if opened < start.at < 100]
    assert len([start for start in while_open if start.at < opened + KNOWN_WITHIN]) <= WORKERS
    # After the pause there is one probe, then, a pause later, another one: never two at a time.
    probes = [start.at for start in while_open if start.at >= opened + KNOWN_WITHIN]
    assert 1 <= len(probes) <= 3
    # S3's dates are whole seconds.
    assert all(after - before >= 29 for before, after in pairwise(probes))
    closed = next(at for name, at in crowd.events if name == "breaker.closed")
    assert len([start for start in crowd.starts if 100 <= start.at < closed - 0.1]) == 1
    assert {start.path for start in crowd.starts if start.at >= 100} >= {
        f"messages/{number:06d}" for number in range(300)
    }
    assert [name for name, _ in crowd.events].count("breaker.closed") == 1


@pytest.mark.parametrize("seed", range(6))
def test_there_is_never_a_second_probe_whatever_happens_to_requests_and_processes(seed: int) -> None:
    crowd = _crowd(seed, healed_at=10_000.0, trouble=Trouble(slowest=0.4, pauses=0.02, longest_pause=5.0, lost=0.03))
    crowd.put(100)
    crowd.pull(WORKERS)
    crowd.run(300)

    opened = _opened(crowd)
    probes = [start.at for start in crowd.starts if start.at > opened + KNOWN_WITHIN + 5.0]
    assert probes
    # A probe whose worker stood still may be followed by the next one when its time is over, not before.
    assert all(after - before >= 10 for before, after in pairwise(probes))


def test_no_attempt_is_used_while_it_is_open() -> None:
    crowd = _crowd(0, healed_at=90.0)
    crowd.put(50)
    crowd.pull(WORKERS)
    crowd.run(300)

    failed = [start for start in crowd.starts if start.at < 90.0]
    assert len(failed) <= 10 + 2 * WORKERS + 3
    finished = [key for key in crowd.world.objects if "/records/" in key]
    assert len(finished) == 50


def test_functions_probe_with_one_message_when_the_pause_is_over() -> None:
    crowd = _crowd(0, healed_at=100.0, handler_timeout=5, rescue_after=20)
    crowd.put(200)
    crowd.serve(8)
    crowd.run(400)

    opened = _opened(crowd)
    probes = [start.at for start in crowd.starts if opened + KNOWN_WITHIN <= start.at < 100]
    assert 1 <= len(probes) <= 3
    assert len([key for key in crowd.world.objects if "/records/" in key]) == 200


def test_a_rate_and_a_breaker_work_together() -> None:
    crowd = _crowd(0, healed_at=60.0, rate="60/min")
    crowd.put(100)
    crowd.pull(WORKERS)
    crowd.run(400)

    assert len([key for key in crowd.world.objects if "/records/" in key]) == 100
