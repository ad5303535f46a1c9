"""A worker that is paused or has nothing to do: it asks little, and is quick again once there is work."""

from __future__ import annotations

from s3queue import Context, Reject, Worker
from support.threads import eventually, hurry


def learn(bench, queue):
    """Ten seconds pass, and the worker's own look at `queue.json` need not be waited for."""
    bench.clock.advance(10)
    queue.refresh()


def test_a_pause_stops_a_worker_that_has_found_a_large_backlog(bench):
    queue, operator = bench.queue(), bench.queue()
    for number in range(50):
        queue.enqueue(str(number))
    seen: list[int] = []

    def handler(number: int) -> None:
        seen.append(number)
        if len(seen) == 10:
            operator.pause()
            learn(bench, queue)

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    pauses = hurry(worker)
    worker.start()
    try:
        # Paused is what a thread does that has nothing more to do.
        pauses.wait_for_all(2)
        assert len(seen) == 10
        eventually(lambda: worker.stats()["succeeded"] == 10)  # what had begun ends, beside the threads
        operator.resume()
        bench.clock.advance(10)
        eventually(lambda: len(seen) == 50)
    finally:
        worker.stop()


def test_own_retries_and_what_the_sweep_found_wait_for_the_end_of_a_pause(bench):
    queue, operator = bench.queue(retry_base=1, retry_cap=1), bench.queue()
    queue.enqueue("1")
    found = queue.enqueue("2", name="found")
    seen: list[int] = []

    def handler(number: int, context: Context) -> None:
        seen.append(number)
        if context.attempt == 1 and number == 1:
            operator.pause()
            learn(bench, queue)
            worker._accept([found])
            raise ValueError("again")

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    pauses = hurry(worker)
    worker.start()
    try:
        eventually(lambda: worker.stats()["retried"] == 1)
        for _ in range(5):
            bench.clock.advance(5)
            pauses.wait_for_all(2)
        assert seen == [1]
        operator.resume()
        bench.clock.advance(10)
        eventually(lambda: sorted(seen) == [1, 1, 2])
    finally:
        worker.stop()


def test_a_name_that_is_put_anew_in_a_pause_runs_after_it(bench):
    queue, operator = bench.queue(), bench.queue()
    queue.enqueue("1", name="x")
    seen: list[int] = []

    def handler(number: int) -> None:
        seen.append(number)
        if number == 1:
            queue.enqueue("2", name="x")
            operator.pause()
            learn(bench, queue)
            raise Reject("so that this thread itself clears it away")

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    pauses = hurry(worker)
    worker.start()
    try:
        eventually(lambda: worker.stats()["dead"] == 1)
        pauses.wait_for_all(2)
        assert seen == [1]
        operator.resume()
        bench.clock.advance(10)
        eventually(lambda: seen == [1, 2])
    finally:
        worker.stop()


def test_a_worker_that_runs_until_nothing_can_run_does_not_wait_for_the_end_of_a_pause(bench):
    queue = bench.queue()
    queue.enqueue("1")
    bench.queue().pause()
    ran: list[int] = []
    worker = Worker(queue, ran.append, concurrency=1, sweep=False)
    hurry(worker)

    worker.run_until_empty()

    assert ran == []
    assert queue.stats().pending == 1


def test_a_paused_queue_is_left_alone_until_it_is_resumed(bench):
    queue = bench.queue()
    path = queue.enqueue(b"1")
    queue.pause()
    ran: list[int] = []
    worker = Worker(queue, ran.append, concurrency=1, sweep=False)
    pauses = hurry(worker)
    worker.start()
    for _ in range(5):
        bench.clock.advance(5)
        pauses.wait_for_all(2)
    assert ran == []
    queue.resume()
    for _ in range(5):
        bench.clock.advance(5)
        pauses.wait_for_all(2)
    worker.stop()

    assert ran == [1]
    assert queue.status(path).state == "completed"


def test_an_idle_worker_looks_ever_less_often(bench):
    queue = bench.queue()
    worker = Worker(queue, lambda body: None, concurrency=4, poll_interval=1, sweep=False)
    pauses = hurry(worker)
    worker.start()
    for _ in range(100):
        pauses.wait_for_all(5)
        bench.clock.advance(1)
    worker.stop()

    # One look among four threads, after 1.5 s at first, then every 5 s; not four every second.
    assert 20 <= bench.store.requests["list"] <= 24


def test_a_worker_that_was_idle_is_quick_again_once_there_is_work(bench):
    queue = bench.queue()
    ran: list[int] = []
    worker = Worker(queue, ran.append, concurrency=1, poll_interval=1, sweep=False)
    pauses = hurry(worker)
    worker.start()
    for _ in range(20):
        pauses.wait_for_all(2)
        bench.clock.advance(5)
    for number in range(1100):
        queue.enqueue(str(number))
    # One look is waited for; the one behind a full window is not.
    bench.clock.advance(5)
    eventually(lambda: len(ran) == 1100)
    worker.stop()


def test_a_delayed_message_runs_when_it_is_due_however_slowly_an_idle_worker_polls(bench):
    queue = bench.queue()
    seen: list[int] = []
    worker = Worker(queue, seen.append, concurrency=1, sweep=False)
    pauses = hurry(worker)
    worker.start()
    try:
        for _ in range(10):
            bench.clock.advance(5)
            pauses.wait_for_all(2)
        queue.enqueue("1", delay=7)
        bench.clock.advance(5)
        pauses.wait_for_all(2)
        assert seen == []
        # Without a look at the due time, its next poll would be in five seconds.
        bench.clock.advance(2)
        eventually(lambda: seen == [1])
    finally:
        worker.stop()
