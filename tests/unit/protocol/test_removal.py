"""Purge: what nobody works on goes, and only that."""

from __future__ import annotations


def test_purge_deletes_what_nobody_works_on(bench):
    queue = bench.queue()
    running = queue.enqueue(b"x")
    claim = queue.claim(running)
    waiting = queue.enqueue(b"x")
    queue.fail(queue.claim(waiting), "once")
    for _ in range(3):
        queue.enqueue(b"x")
        queue.enqueue(b"x", delay=60)
    other = bench.queue("orders-eu")
    other.enqueue(b"not mine")

    assert queue.purge() == 7

    queue.complete(claim)
    assert queue.status(running).state == "completed"
    assert not bench.keys("orders/messages/")
    assert not bench.keys("orders/delayed/")
    assert not bench.keys("orders/leases/")
    assert len(bench.keys("orders-eu/messages/")) == 1
