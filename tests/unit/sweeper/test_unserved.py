"""What the sweeper handed over and nobody tried comes again after `rescue_after`, however long a lease lasts."""

from __future__ import annotations

import pytest

from support.virtual_processes import Process, VirtualProcesses
from support.workbench import Workbench

LONG = {"visibility_timeout": 900, "rescue_after": 60}


def ticking(sweeper) -> Process:
    while True:
        report = sweeper.tick()
        assert not (report and report.error), report
        yield 2.0 if report is None or report.next_tick is None else min(report.next_tick, 2.0)


def _fail(queue, after: float) -> str:
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "once", retry_after=after)
    return path


@pytest.mark.parametrize("after", [0, 10, 120, 1000])
def test_a_retry_that_nobody_tried_is_handed_over_again(bench: Workbench, dispatched, after):  # [P6]
    queue = bench.queue(**LONG)
    path = _fail(queue, after)
    processes = VirtualProcesses(bench.clock)
    processes.start(ticking(bench.sweeper(queue, dispatched)))
    processes.run(after + 5)
    assert dispatched == [path]

    processes.run(50)
    assert dispatched == [path], "not before it may have been tried"
    processes.run(20)
    assert dispatched == [path, path]
    processes.run(65)
    assert dispatched == [path, path, path]


def test_an_expired_lease_that_nobody_tried_again_is_handed_over_again(bench: Workbench, dispatched):  # [P6]
    queue = bench.queue(**LONG)
    path = queue.enqueue(b"x")
    assert queue.claim(path)
    processes = VirtualProcesses(bench.clock)
    processes.start(ticking(bench.sweeper(bench.queue(worker_id="sweeper", **LONG), dispatched)))
    processes.run(910)
    assert dispatched == [path]

    processes.run(70)
    assert dispatched == [path, path]


def test_a_reminder_that_was_lost_delays_a_retry_by_rescue_after(bench: Workbench, dispatched):  # [P6]
    queue = bench.queue(**LONG)
    path = _fail(queue, 1000)
    for key in bench.keys("orders/retries/"):
        bench.memory.delete(key)
    processes = VirtualProcesses(bench.clock)
    processes.start(ticking(bench.sweeper(queue, dispatched)))
    processes.run(1000)
    assert dispatched == []

    processes.run(70)
    assert dispatched == [path]


def test_a_retry_that_is_tried_costs_no_more_than_before(bench: Workbench, dispatched):
    """The sweeper reads no lease of a healthy queue, however long its handler runs."""
    queue = bench.queue(**LONG)
    paths = [_fail(queue, 10) for _ in range(20)]
    processes = VirtualProcesses(bench.clock)
    processes.start(ticking(bench.sweeper(bench.queue(worker_id="sweeper", **LONG), dispatched)))
    processes.run(12)
    assert sorted(dispatched) == sorted(paths)
    claims = [queue.claim(path, read_first=True) for path in paths]
    assert all(claims)
    bench.store.log.clear()

    processes.run(300)

    assert [key for verb, key in bench.store.log if verb in ("get", "head") and "/leases/" in key] == []
    assert sorted(dispatched) == sorted(paths)


def test_a_heartbeat_is_not_read_more_often_because_of_an_old_reminder(bench: Workbench, dispatched):  # [P2]
    queue = bench.queue(**LONG)
    path = queue.enqueue(b"x")
    assert queue.claim(path)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper", **LONG), dispatched)
    queue.leases.remind(path, bench.clock.now())
    processes = VirtualProcesses(bench.clock)
    processes.start(ticking(sweeper))
    processes.run(5)
    assert dispatched == [path], "a hint that leads nowhere"
    bench.store.log.clear()

    processes.run(800)

    assert len([key for verb, key in bench.store.log if verb == "get" and "/leases/" in key]) == 1
    assert dispatched == [path]
