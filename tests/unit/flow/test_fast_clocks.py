"""A worker whose clock runs fast, for hours, keeps its queue's rate and uses it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from s3queue.protocol.store_time import StoreTime
from support.manual_clock import ManualClock

BEGIN = datetime(2026, 11, 16, 10, 15, tzinfo=UTC)


def test_the_estimate_of_s3s_clock_is_not_ahead_of_it_when_the_own_clock_has_gained_on_it():
    clock = ManualClock()
    time, began = StoreTime(clock), clock.monotonic()
    is_ahead = 0
    for _ in range(4000):
        clock.advance(0.37)
        # The own clock gains a second in a hundred.
        true = BEGIN + timedelta(seconds=(clock.monotonic() - began) / 1.01)
        is_ahead += time.now() > true
        time.note(true.replace(microsecond=0))
    assert is_ahead < 400


def test_tokens_that_were_granted_for_the_next_second_are_used_then(bench):
    """Not granted again at once, and again: that would use the whole rate up for nothing."""
    queue = bench.queue(rate="20/min")
    path = queue.enqueue(b"1")
    assert queue.claim(path)
    gate = queue.gate
    assert gate
    gate.limiter._time._ahead += 1.0
    gate.limiter._limits.clear()
    before = len([entry for entry in bench.store.log if entry[0] == "put" and "limits/" in entry[1]])

    assert queue.claim(queue.enqueue(b"2"))

    puts = [entry for entry in bench.store.log if entry[0] == "put" and "limits/" in entry[1]]
    assert len(puts) == before + 1
