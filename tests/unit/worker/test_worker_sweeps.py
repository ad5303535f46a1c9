"""A worker sweeps if nobody else does."""

from __future__ import annotations

from s3queue import Lock, Worker
from support.threads import eventually, hurry


def test_without_a_sweeper_function_the_worker_repairs_what_others_left_behind(bench):  # [P6]
    queue = bench.queue(rescue_after=1, retry_base=0)
    crashed = queue.enqueue(b"1")
    assert bench.queue().claim(crashed)
    delayed = queue.enqueue(b"2", delay=1)
    ran: list[int] = []

    worker = Worker(queue, ran.append, concurrency=1)
    pauses = hurry(worker)
    worker.start()
    for _ in range(20):
        # Each of its threads has its turn before time goes on, so that no lease of its own runs out.
        bench.clock.advance(5)
        pauses.wait_for_all(3)
    worker.stop()

    assert sorted(ran) == [1, 2]
    assert queue.status(crashed).state == queue.status(delayed).state == "completed"
    assert [attempt.failure and attempt.failure.type for attempt in queue.status(crashed).record.attempts] == [
        "LeaseExpired",
        None,
    ]


def test_only_one_of_several_workers_sweeps(bench):
    queue = bench.queue(rescue_after=60)
    workers = [Worker(bench.queue(rescue_after=60), lambda body: None, concurrency=1) for _ in range(3)]
    queue.enqueue(b"1", delay=3600)
    pauses = [hurry(worker) for worker in workers]
    for worker in workers:
        worker.start()
    eventually(lambda: bench.memory.head("orders/stats.json"))
    holder = Lock(queue.store, queue.keys.lock("sweeper"), ttl=5, clock=bench.clock)
    assert not holder.acquire()
    for paused in pauses:
        paused.wait_for_all(3)
    for worker in workers:
        worker.stop()

    assert bench.store.log.count(("put", "orders/stats.json")) == 1


def test_a_worker_leaves_the_sweeping_to_a_sweeper_function_that_is_at_work(bench):
    queue = bench.queue()
    queue.enqueue(b"1", delay=3600)
    bench.sweeper(queue).sweep()
    bench.store.take()

    worker = Worker(queue, lambda body: None, concurrency=1)
    pauses = hurry(worker)
    worker.start()
    pauses.wait_for_all(3)
    worker.stop()

    assert not [key for verb, key in bench.store.log if verb == "put" and "/locks/" in key]
    assert ("put", "orders/stats.json") not in bench.store.log
