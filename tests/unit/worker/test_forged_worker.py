"""Forged state and pull workers: their threads live, and the other messages run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from s3queue import Lock, Queue, Worker
from s3queue.errors import InvalidName
from s3queue.keys import MAX_KEY_BYTES
from s3queue.sweeper.progress import Progress
from s3queue.worker.sweep_turn import SweepTurn
from s3queue.worker.sweep_turns import SWEEP_LOCK, SweepTurns
from support.counting_store import CountingStore
from support.forged_documents import ARCHIVED, FOREIGN, HUGE, KEYS, ForgedStore, forgeries, put_forged
from support.threads import hurry
from support.workbench import Workbench

FEW = 8


@pytest.mark.parametrize("kind", KEYS)
def test_a_pull_worker_and_its_sweeps_go_on_beside_forged_state(bench, kind):
    for forged in [HUGE, ARCHIVED, FOREIGN, *forgeries(KEYS[kind][1], seed=2, few=FEW)]:
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


@pytest.mark.parametrize("how", [ARCHIVED, FOREIGN], ids=["archived", "foreign key"])
@pytest.mark.parametrize("key", ["locks/sweeper", "workers/holder", "stats.json", "sweep.json", "queue.json"])
def test_a_worker_has_its_turn_in_sweeping_although_state_cannot_be_read(bench, key, how):  # [P6]
    bench.memory = ForgedStore("bench", clock=bench.clock)
    bench.store = CountingStore(bench.memory)
    queue = bench.queue()
    if "workers" in key:
        lock = Lock(bench.store, queue.keys.lock(SWEEP_LOCK), 3600, owner="holder", clock=bench.clock)
        assert lock.acquire()
    bench.put(f"orders/{key}", how)

    assert_is_swept(bench, queue)


LONG = json.dumps({"v": 1, "token": 1, "owner": "x" * 1020, "ttl_seconds": 3e9}).encode()


@pytest.mark.parametrize("body", [b'{"v":2}', LONG], ids=["of a newer version", "with an owner that has no key"])
def test_a_lock_that_nobody_can_hold_does_not_end_all_sweeping(bench, body):  # [P6]
    """A version that was rolled back has left it; or a stranger."""

    def refuse_long(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if len(key) > MAX_KEY_BYTES:
            raise InvalidName(f"{operation} {key[:20]}: the key is too long for S3")
        return perform()

    bench.around = refuse_long
    bench.put("orders/locks/sweeper", body)

    assert_is_swept(bench, bench.queue())


def test_the_lock_of_a_newer_version_is_left_to_it_while_it_is_renewed(bench):
    turns = SweepTurns(bench.queue(visibility_timeout=10, rescue_after=600))
    for number in range(30):
        bench.put("orders/locks/sweeper", json.dumps({"v": 2, "number": number}).encode())
        for _ in range(3):
            bench.clock.advance(100)
            assert not turns.is_ours()


def assert_is_swept(bench: Workbench, queue: Queue) -> None:
    """A message of a worker that has died is tried again within an hour."""
    path = queue.enqueue(b"1")
    assert bench.queue(worker_id="died").claim(path)
    turns, turn = SweepTurns(queue), SweepTurn(queue, len)
    while bench.clock.monotonic() < 3600:
        bench.clock.advance(max(5.0, turn.sweep(turns, expects_leases=True)))
    held = queue.read_lease(path)
    assert held
    assert held.lease.state == "waiting"
