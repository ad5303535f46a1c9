"""A worker sweeps if nobody else does."""

from __future__ import annotations

import time

from s3queue import Lock, Queue, Sweeper, Worker
from support.real_time import eventually, real_queue


def test_without_a_sweeper_function_the_worker_repairs_what_others_left_behind():  # [P6]
    queue = real_queue(visibility_timeout=1, rescue_after=1, retry_base=0)
    crashed = queue.enqueue(b"1")
    Queue(store=queue.store, name="orders", settings=queue.settings).claim(crashed)
    delayed = queue.enqueue(b"2", delay=1)
    ran: list[int] = []

    worker = Worker(queue, ran.append, concurrency=1, poll_interval=0.1)
    worker.start()
    eventually(lambda: sorted(ran) == [1, 2])
    worker.stop()

    assert queue.status(crashed).state == queue.status(delayed).state == "completed"
    assert [attempt.failure and attempt.failure.type for attempt in queue.status(crashed).record.attempts] == [
        "LeaseExpired",
        None,
    ]


def test_only_one_of_several_workers_sweeps():
    queue = real_queue(rescue_after=60)
    workers = [
        Worker(Queue(store=queue.store, name="orders", settings=queue.settings), lambda body: None, concurrency=1)
        for _ in range(3)
    ]
    queue.enqueue(b"1", delay=3600)
    for worker in workers:
        worker.start()
    eventually(lambda: queue.store.head("orders/stats.json"))
    holder = Lock(queue.store, queue.keys.lock("sweeper"), ttl=5)
    assert not holder.acquire()
    for worker in workers:
        worker.stop()

    swept = [1 for verb, key in queue.store.log if (verb, key) == ("put", "orders/stats.json")]
    assert len(swept) == 1


def test_a_worker_leaves_the_sweeping_to_a_sweeper_function_that_is_at_work():
    queue = real_queue(visibility_timeout=0.3)
    queue.enqueue(b"1", delay=3600)
    Sweeper(queue=queue, dispatch=lambda paths: None).sweep()
    queue.store.take()

    worker = Worker(queue, lambda body: None, concurrency=1, poll_interval=0.1)
    worker.start()
    time.sleep(0.5)
    worker.stop()

    assert not [key for verb, key in queue.store.log if verb == "put" and "/locks/" in key]
    assert ("put", "orders/stats.json") not in queue.store.log
