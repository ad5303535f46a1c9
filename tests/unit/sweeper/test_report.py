"""What a sweep tells: counts for everyone, and a report that machines read."""

from __future__ import annotations


def test_a_sweep_publishes_what_it_counted_for_everyone(bench, queue):
    queue.enqueue(b"x")
    queue.enqueue(b"x", delay=600)
    queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(7)

    report = bench.sweeper(queue).sweep()

    stats = bench.queue(worker_id="another process").published_stats()
    assert stats == report.stats
    assert (stats.pending, stats.delayed, stats.processing, stats.oldest_seconds) == (1, 1, 1, 7.0)


def test_a_sweep_publishes_how_many_it_rescued_within_the_hour(bench, queue):
    sweeper = bench.sweeper(queue)
    reader = bench.queue(worker_id="another process")
    for _ in range(2):
        queue.enqueue(b"x")
    sweeper.sweep()
    assert reader.published_stats().rescued == 0

    bench.clock.advance(60)
    sweeper.sweep()
    assert reader.published_stats().rescued == 2

    queue.purge()
    bench.clock.advance(60)
    sweeper.sweep()
    assert reader.published_stats().rescued == 2, "it is idle by now, and has not forgotten"

    bench.clock.advance(3600)
    queue.enqueue(b"x")
    sweeper.sweep()
    assert reader.published_stats().rescued == 0


def test_a_report_can_be_read_by_machines(bench, queue):
    queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(60)

    report = bench.sweeper(queue).sweep().to_json()

    assert report["queue"] == "orders"
    assert report["endings"] == {"retried": 1}
    assert report["complete"] is True
    assert report["requests"] > 0
