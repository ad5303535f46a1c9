"""Settings of a worker: the definition's, what `queue.json` says at the start, and what it says later."""

from __future__ import annotations

import re
import threading
from datetime import timedelta

import pytest

from s3queue import InvalidRequest, Worker, define
from support.threads import PATIENCE, eventually, hurry


class Gate:
    """A handler that waits, and knows how many wait with it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.open = threading.Event()
        self._mutex = threading.Lock()

    def handle(self, body: int) -> None:
        with self._mutex:
            self.waiting += 1
        self.open.wait(PATIENCE)
        with self._mutex:
            self.waiting -= 1


def test_running_workers_follow_the_concurrency_within_ten_seconds(bench):
    queue = bench.queue(concurrency=1, handler_timeout=1000)
    for number in range(20):
        queue.enqueue(str(number))
    gate = Gate()
    worker = Worker(queue, gate.handle, sweep=False)
    hurry(worker)
    worker.start()
    try:
        eventually(lambda: gate.waiting == 1)
        bench.queue().configure(concurrency=4)
        bench.clock.advance(10)
        eventually(lambda: gate.waiting == 4)

        bench.queue().configure(concurrency=2)
        bench.clock.advance(10)
        eventually(lambda: queue.settings.concurrency == 2)
        assert gate.waiting == 4  # surplus threads finish what they have
        gate.open.set()
        eventually(lambda: worker.stats()["succeeded"] == 20)
        eventually(lambda: len(worker._crew) == 2)
    finally:
        gate.open.set()
        assert worker.stop(PATIENCE)


def test_a_worker_with_a_concurrency_of_its_own_keeps_it(bench):
    queue = bench.queue(concurrency=1)
    bench.queue().configure(concurrency=4)
    worker = Worker(queue, Gate().handle, concurrency=2, sweep=False)
    worker.start()
    try:
        assert queue.settings.concurrency == 4
        assert len(worker._crew) == 2
    finally:
        assert worker.stop(PATIENCE)


def test_a_worker_starts_with_what_queue_json_says(bench):
    bench.queue().configure(concurrency=5)
    worker = Worker(bench.queue(), lambda body: None, sweep=False)
    worker.start()
    try:
        assert len(worker._crew) == 5
    finally:
        assert worker.stop(PATIENCE)


def test_a_worker_takes_no_more_threads_than_a_process_can_have(bench):
    # The function of a queue may run more at one time.
    assert Worker(bench.queue(concurrency=5000), lambda body: None)._concurrency == 1000


def test_a_definition_brings_its_settings_along(bench):
    definition = define("orders", visibility_timeout=77, concurrency=2)
    definition.handler(lambda body: None)
    queue = bench.queue(retry_jitter=True)  # as `connect` makes it: with default settings
    bench.queue().configure(concurrency=6)
    queue.refresh()

    Worker(queue, definition, sweep=False)

    assert queue.settings.visibility_timeout == timedelta(seconds=77)
    assert queue.settings.concurrency == 6  # queue.json wins over both


def test_a_queues_own_settings_win_over_the_definitions(bench):
    definition = define("orders", visibility_timeout=77)
    definition.handler(lambda body: None)
    queue = bench.queue(visibility_timeout=11)
    Worker(queue, definition, sweep=False)
    assert queue.settings.visibility_timeout == timedelta(seconds=11)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"concurrency": -1}, "concurrency must be at least 1, not -1"),
        ({"concurrency": 1001}, "concurrency must be at most 1000 in one worker, not 1001; start more processes"),
        ({"concurrency": "2"}, "concurrency must be a whole number or None, not '2'"),
        ({"concurrency": 2.5}, "concurrency must be a whole number or None, not 2.5"),
        ({"concurrency": True}, "concurrency must be a whole number or None, not True"),
        ({"poll_interval": 0}, "poll_interval must be more than 0 seconds, not 0"),
        ({"poll_interval": "1"}, "poll_interval must be a number of seconds or a timedelta, not '1'"),
        ({"poll_interval": None}, "poll_interval must be a number of seconds or a timedelta, not None"),
        ({"poll_interval": float("nan")}, "poll_interval must be a number of seconds or a timedelta, not nan"),
        ({"poll_interval": 1e10}, "poll_interval must be at most"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_numbers_that_no_worker_can_have_are_refused(bench, options, said):
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        Worker(bench.queue(), lambda body: None, **options)


def test_a_poll_interval_may_be_a_timedelta(bench):
    queue = bench.queue()
    queue.enqueue(b"1")
    worker = Worker(queue, lambda body: None, poll_interval=timedelta(milliseconds=5), sweep=False)
    worker.run_until_empty()

    assert worker.stats()["succeeded"] == 1


def test_another_queues_definition_is_refused(bench):
    definition = define("emails")
    definition.handler(lambda body: None)
    with pytest.raises(InvalidRequest, match=r"'emails'.*'orders'"):
        Worker(bench.queue("orders"), definition)


@pytest.mark.parametrize("role", ["heartbeat", "sweeping", "supervising"])
def test_no_thread_of_a_worker_dies_alone(bench, caplog, role):
    queue = bench.queue()
    worker = Worker(queue, lambda body: None, concurrency=1)
    hurry(worker)
    #: What the thread calls, and the first of these calls that is its own.
    broken = {
        "heartbeat": (worker._heartbeat, "seconds_to_beat", 1),
        "sweeping": (worker, "_sweep_regularly", 1),
        "supervising": (worker._supervisor, "refresh", 2),
    }
    target, name, first = broken[role]
    real, calls = getattr(target, name), []

    def breaks_once(*args, **options):
        calls.append(1)
        if len(calls) == first:
            raise ZeroDivisionError("a bug")
        return real(*args, **options)

    queue.enqueue(b"1", delay=3600)
    setattr(target, name, breaks_once)
    worker.start()
    try:

        def went_on() -> bool:
            bench.clock.advance(1)
            return len(calls) > first

        eventually(went_on)
    finally:
        assert worker.stop(PATIENCE)
    assert "continuing" in caplog.text
    assert "ZeroDivisionError" in caplog.text
