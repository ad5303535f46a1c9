"""A sweep keeps within its budget of requests and time, and the next one goes on from there."""

from __future__ import annotations

import pytest

from support.workbench import next_tick


def test_an_idle_sweeper_that_is_asked_every_few_seconds_costs_nothing_between_sweeps(bench, queue):
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    bench.store.take()

    for _ in range(12):
        bench.clock.advance(5)
        assert next_tick(sweeper) is None

    assert bench.store.take() == {"list": 2}


def test_a_sweep_keeps_within_its_budget_of_requests_and_the_next_one_goes_on(bench, queue):
    for _ in range(60):
        queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(60)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))
    freed = []
    for _ in range(20):
        bench.store.take()
        report = sweeper.sweep(requests=50)
        # Settings, the published count and the progress come on top.
        assert sum(bench.store.take().values()) <= 53
        freed.append(report.endings.get("retried", 0))
        if report.complete:
            break

    assert sum(freed) == 60
    assert report.complete
    assert max(freed) < 12


def test_leases_that_cannot_be_decided_do_not_use_up_every_budget(bench, queue):
    for number in range(40):
        bench.memory.put(f"orders/messages/{number:03d}", b"x")
        bench.memory.put(f"orders/leases/messages/{number:03d}", b'{"v":99}')
    path = queue.enqueue(b"x", name="last")
    queue.claim(path)
    bench.clock.advance(60)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))

    freed = sum(sweeper.sweep(requests=60).endings.get("retried", 0) for _ in range(8))

    assert freed == 1


def test_a_sweep_keeps_within_its_budget_of_time(bench, queue):
    for _ in range(60):
        queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(60)

    def slow(operation, key, perform):
        bench.clock.advance(0.5)
        return perform()

    bench.around = slow
    began = bench.clock.monotonic()
    report = bench.sweeper(bench.queue(worker_id="sweeper")).sweep(seconds=20)

    assert not report.complete
    assert bench.clock.monotonic() - began < 25
    assert 0 < report.endings["retried"] < 60


def test_leases_that_need_reading_do_not_keep_due_messages_waiting(bench, dispatched):
    queue = bench.queue()
    for _ in range(100):
        queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(40)
    due = queue.enqueue(b"x", delay=1)
    bench.clock.advance(60)
    orphan = queue.enqueue(b"x")
    bench.clock.advance(60)

    report = bench.sweeper(bench.queue(worker_id="sweeper"), dispatched).sweep(requests=20)

    assert not report.complete
    assert {due, orphan} <= set(dispatched)


def test_a_sweep_out_of_its_budget_among_the_messages_goes_on_from_there(bench, dispatched):
    queue = bench.queue(concurrency=100)
    paths = {queue.enqueue(b"x") for _ in range(3500)} | {queue.enqueue(b"x", delay=1) for _ in range(1500)}
    bench.clock.advance(61)
    sweeper = bench.sweeper(queue, dispatched)
    reports = [sweeper.sweep(requests=5) for _ in range(6)]

    assert set(dispatched) == paths
    assert not reports[0].complete
    assert not reports[0].stats.exact
    assert any(report.complete for report in reports)


def test_a_count_that_began_in_the_middle_does_not_claim_to_be_exact(bench, queue):
    for _ in range(2500):
        queue.enqueue(b"x")
    sweeper = bench.sweeper(queue)
    first, second = sweeper.sweep(requests=3), sweeper.sweep(requests=100)

    assert (first.complete, first.stats.exact) == (False, False)
    assert (second.complete, second.stats.exact) == (True, False)
    third = sweeper.sweep(requests=100)
    assert (third.stats.pending, third.stats.exact) == (2500, True)


@pytest.mark.parametrize("budget", [{"requests": 0}, {"seconds": 0}, {"requests": 1}])
def test_a_budget_of_nothing_is_no_error(bench, queue, budget):
    queue.claim(queue.enqueue(b"x"))

    assert not bench.sweeper(queue).sweep(**budget).complete
