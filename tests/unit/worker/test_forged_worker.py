"""Forged state and pull workers: their threads live, and the other messages run."""

from __future__ import annotations

import pytest

from s3queue import Lock, Worker
from s3queue.sweeper.progress import Progress
from s3queue.worker.sweep_turns import SWEEP_LOCK, SweepTurns
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


@pytest.mark.parametrize("key", ["orders/workers/holder", "orders/stats.json", "orders/sweep.json"])
def test_whoever_takes_turns_in_sweeping_reads_no_gigabytes(bench, key):
    bench.memory = ForgedStore("bench", clock=bench.clock)
    bench.store = CountingStore(bench.memory)
    queue = bench.queue()
    if "workers" in key:
        lock = Lock(bench.store, queue.keys.lock(SWEEP_LOCK), 3600, owner="holder", clock=bench.clock)
        assert lock.acquire()
        bench.clock.advance(60)
    bench.memory.put(key, HUGE)
    root = bench.store.list("orders/", delimiter="/")

    SweepTurns(queue).is_ours()
    assert Progress.read(queue, bench.store, root) == Progress()

    assert ("get", key) in bench.store.log
