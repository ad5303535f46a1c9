"""A worker that is paused or has nothing to do: it asks little, and is quick again once there is work."""

from __future__ import annotations

from s3queue import Worker
from support.threads import eventually, hurry


def test_a_look_ahead_heeds_a_pause_so_that_a_large_backlog_stops_too(bench, monkeypatch):
    # Every look asks for the settings, however soon after the last: what is tested is that a look ahead asks at all.
    monkeypatch.setattr("s3queue.protocol.overrides.REFRESH_SECONDS", 0.0)
    queue = bench.queue(concurrency=1)
    for number in range(2500):
        queue.enqueue(str(number))
    operator = bench.queue()
    seen: list[int] = []

    def handler(number: int) -> None:
        seen.append(number)
        if len(seen) == 10:
            operator.configure(paused=True)

    worker = Worker(queue, handler, sweep=False)
    pauses = hurry(worker)
    worker.start()
    try:
        # Paused is what a thread does that has nothing more to do.
        pauses.wait_for_all(2)
        assert queue.settings.paused
    finally:
        worker.stop()

    assert len(seen) == 1000


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
