"""Forged state and pull workers: their threads live, and the other messages run."""

from __future__ import annotations

import pytest

from s3queue import Worker
from support.counting_store import CountingStore
from support.forged_documents import HUGE, KEYS, ForgedStore, forgeries, put_forged
from support.threads import hurry

FEW = 8


@pytest.mark.parametrize("kind", KEYS)
def test_a_pull_worker_and_its_sweeps_go_on_beside_forged_state(bench, kind):
    for forged in [HUGE, *forgeries(KEYS[kind][1], seed=2, few=FEW)]:
        bench.memory = ForgedStore("bench", clock=bench.clock)
        bench.store = CountingStore(bench.memory)
        queue = bench.queue(concurrency=2)
        put_forged(bench.memory, "orders", kind, forged)
        paths = [queue.enqueue(b'"x"') for _ in range(3)]
        # Long enough for the forged lease to be over, and for the sweeper to look at it.
        bench.clock.advance(120)
        worker = Worker(queue, lambda message: None, sweep=True)
        hurry(worker)

        worker.run_until_empty()

        assert [queue.status(path).state for path in paths] == ["completed"] * 3, forged
