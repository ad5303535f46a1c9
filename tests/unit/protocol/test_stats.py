"""Stats: how much lies in each state, exact unless bounded."""

from __future__ import annotations

from s3queue import (
    Stats,
)


def test_stats_count_every_state(bench):
    queue = bench.queue(max_attempts=2)
    paths = [queue.enqueue(b"x") for _ in range(8)]
    queue.enqueue(b"later", delay=600)
    queue.complete(queue.claim(paths[0]))
    queue.fail(queue.claim(paths[1]), "dead", dead=True)
    queue.fail(queue.claim(paths[2]), "again", retry_after=300)
    queue.claim(paths[3])
    queue.claim(paths[4])
    bench.clock.advance(10)
    queue.enqueue(b"x")

    stats = queue.stats()

    assert stats == Stats(
        pending=4,
        delayed=1,
        processing=2,
        failed=1,
        completed=1,
        dead=1,
        oldest_seconds=10.0,
        newest_seconds=0.0,
        finished_per_minute=2,
        busy_seconds=10.0,
        at=bench.clock.now(),
    )
    assert stats.total == 10


def test_the_oldest_age_ignores_what_is_not_due_and_counts_delay_from_its_due_time(bench, queue):
    queue.enqueue(b"x", delay=100)
    bench.clock.advance(50)
    assert queue.stats().oldest_seconds is None
    bench.clock.advance(60)
    assert queue.stats().oldest_seconds == 10


def test_stats_of_more_than_a_page_are_exact_unless_bounded(bench, queue):
    for _ in range(2500):
        queue.enqueue(b"x")

    assert queue.stats().pending == 2500
    bounded = queue.stats(pages=1)
    assert (bounded.pending, bounded.exact) == (1000, False)
