"""What counting the last hour costs is what the estimate says."""

from __future__ import annotations

import pytest

from s3queue import QueueSettings
from s3queue.costs.estimate import estimate
from s3queue.costs.workload import Workload


@pytest.mark.parametrize("a_minute", [5, 60, 1500])
def test_a_busy_queue_pays_two_lists_and_up_to_twenty_gets_a_minute(bench, a_minute):
    queue = bench.queue(visibility_timeout=3600)
    assert queue.claim(queue.enqueue(b"held"))
    sweeper = bench.sweeper(queue, counts_hour=True)
    for _ in range(2):
        # The first minute's sweep may find a few more: of the first seconds, and none of the last two.
        for _ in range(a_minute):
            queue.complete(queue.claim(queue.enqueue(b"x")))
        bench.clock.advance(60)
        bench.store.take()
        sweeper.sweep()
    verbs = [verb for verb, key in bench.store.log if key.startswith("orders/records/")]

    found = estimate(Workload(rate=a_minute / 60, handler_seconds=600)).sweeping * 60

    predicted = {verb: found.counts[verb.upper(), "records"] for verb in ("list", "get")}
    assert {verb: verbs.count(verb) for verb in ("list", "get")} == pytest.approx(predicted, rel=0.01)


def test_a_queue_without_records_or_without_messages_pays_nothing():
    for load in (Workload(rate=0), Workload(rate=5, settings=QueueSettings.of(history=False))):
        assert ("LIST", "records") not in {which for which, count in estimate(load).sweeping.counts.items() if count}
