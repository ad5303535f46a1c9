"""Liveness: a heartbeat keeps what its worker holds, and nothing else."""

from __future__ import annotations

from datetime import timedelta

from s3queue.protocol.liveness import HeartbeatWriter


def test_a_claim_that_is_dropped_late_does_not_take_another_one_of_its_name_along(bench):
    queue = bench.queue()
    queue.enqueue(b"1", name="one")
    first = queue.claim("messages/one")
    heartbeat = HeartbeatWriter(queue, timedelta(seconds=30))
    heartbeat.hold(first)
    queue.complete(first)
    queue.enqueue(b"2", name="one")
    second = queue.claim("messages/one")
    heartbeat.hold(second)

    heartbeat.drop(first)

    assert heartbeat.held() == [second]
