"""A handler that does not return: its message is let go, its attempt counts, and another thread takes its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from s3queue import Context, Queue, Worker
from s3queue.errors import LeaseLost
from s3queue.worker.watchdog import Call, Watchdog
from support.threads import PATIENCE, eventually, hurry


class Hanging:
    """A handler that hangs on one body until it is let go."""

    def __init__(self, body: int = 1) -> None:
        self.body = body
        self.hangs, self.let_go, self.returned = threading.Event(), threading.Event(), threading.Event()
        self.ran: list[int] = []

    def handle(self, body: int) -> str:
        self.ran.append(body)
        if body == self.body and not self.hangs.is_set():
            self.hangs.set()
            self.let_go.wait(PATIENCE)
            self.returned.set()
            return "too late"
        return "in time"


@contextmanager
def until_it_hangs(queue: Queue, handler: Hanging) -> Iterator[Worker]:
    """A worker of one thread, from when its handler hangs; it is stopped at the end."""
    worker = Worker(queue, handler.handle, concurrency=1, sweep=False)
    hurry(worker)
    worker.start()
    try:
        assert handler.hangs.wait(PATIENCE)
        yield worker
    finally:
        handler.let_go.set()
        assert worker.stop(PATIENCE)


def test_a_message_whose_handler_hangs_is_retried_and_its_thread_replaced(bench, caplog):
    queue = bench.queue(handler_timeout=25, max_attempts=2)
    path = queue.enqueue(b"1")
    handler = Hanging()
    with until_it_hangs(queue, handler) as worker:
        bench.clock.advance(26)
        eventually(lambda: worker.stats()["retried"] == 1)
        assert worker.stats()["running"] == 0  # its heartbeat keeps nothing for it
        assert queue.status(path).lease.failure.type == "HandlerTimeout"
        eventually(worker._retries.wait)
        bench.clock.advance(worker._retries.wait() + 1)
        eventually(lambda: worker.stats()["succeeded"] == 1)

    assert handler.ran == [1, 1]
    record = queue.status(path).record
    assert (record.result, [attempt.failure and attempt.failure.type for attempt in record.attempts]) == (
        "in time",
        ["HandlerTimeout", None],
    )
    assert "Hanging.handle: orders/messages/" in caplog.text  # which handler hangs
    assert "let_go.wait" in caplog.text  # where it hangs


def test_a_message_whose_handler_always_hangs_is_buried(bench):
    queue = bench.queue(handler_timeout=25, max_attempts=1)
    path = queue.enqueue(b"1")
    handler = Hanging()
    with until_it_hangs(queue, handler) as worker:
        bench.clock.advance(26)
        eventually(lambda: worker.stats()["dead"] == 1)
        # What the hung thread returns at last is nobody's: neither a second outcome nor a deletion.
        handler.let_go.set()
        assert handler.returned.wait(PATIENCE)
        other = queue.enqueue(b"2")
        bench.clock.advance(10)
        eventually(lambda: worker.stats()["succeeded"] == 1)

    record = queue.status(path).record
    assert (record.outcome, record.failure.type) == ("dead", "HandlerTimeout")
    assert queue.status(other).state == "completed"
    assert worker.stats()["processed"] == 2


def test_the_other_lines_of_a_batch_go_on_without_the_one_that_hangs(bench):  # [P5]
    queue = bench.queue(handler_timeout=25, max_attempts=1)
    (path,) = queue.enqueue_many([1, 2, 3], per_object=3)
    handler = Hanging(body=2)
    with until_it_hangs(queue, handler):
        bench.clock.advance(26)

        def is_finished() -> bool:
            bench.clock.advance(1)
            return bool(queue.store.head(f"orders/records/{path}"))

        eventually(is_finished)

    assert handler.ran == [1, 2, 3]
    record = queue.status(path).record
    assert (record.lines["completed"], record.lines["dead"]) == (2, 1)
    assert record.lines["dead_lines"][0][:2] == [2, "HandlerTimeout"]


def test_stop_does_not_wait_for_a_handler_that_hangs(bench):
    queue = bench.queue(handler_timeout=25)
    path = queue.enqueue(b"1")
    handler = Hanging()
    with until_it_hangs(queue, handler) as worker:
        assert not worker.stop(timeout=0.05)
        bench.clock.advance(26)
        assert worker.stop(PATIENCE)
        assert not handler.returned.is_set()
        assert queue.status(path).lease.failure.type == "HandlerTimeout"


def test_a_message_whose_handler_hangs_is_let_go_even_if_no_thread_can_be_started(bench, monkeypatch):
    queue = bench.queue(handler_timeout=25, visibility_timeout=30)
    path = queue.enqueue(b"1")
    handler = Hanging()
    with until_it_hangs(queue, handler) as worker:
        start, refusals = threading.Thread.start, ["can't start new thread"]

        def refuse_once(thread: threading.Thread) -> None:
            if refusals and thread.name.startswith(queue.worker_id):
                raise RuntimeError(refusals.pop())
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse_once)
        bench.clock.advance(26)
        eventually(lambda: worker.stats()["lost"] == 1)
        assert worker.stats()["running"] == 0  # its heartbeat keeps nothing for it
        bench.clock.advance(60)
        dispatched: list[str] = []
        bench.sweeper(bench.queue(), dispatched).sweep()
        # A thread that was started a little later tries it again.
        worker._accept(dispatched)
        eventually(lambda: worker.stats()["succeeded"] == 1)
    failures = [attempt.failure and attempt.failure.type for attempt in queue.status(path).record.attempts]
    assert failures == ["LeaseExpired", None]
    assert worker._busy == 0


def test_a_handler_that_says_that_it_is_alive_has_its_time_anew(bench):
    # Longer than the handler takes in all: whether the heartbeat's thread gets its turn is not the question here.
    queue = bench.queue(handler_timeout=25, visibility_timeout=60)
    queue.enqueue(b"1")
    looked = threading.Event()

    def handler(body: int, context: Context) -> None:
        for _ in range(5):
            bench.clock.advance(9)
            context.extend()
            looked.clear()
            assert looked.wait(PATIENCE)  # the watchdog has had its look

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    hurry(worker)
    real, worker._supervisor.look = worker._supervisor.look, lambda follow=None: (real(follow), looked.set())
    worker.run_until_empty()

    assert worker.stats()["succeeded"] == 1


@pytest.mark.parametrize("ending", ["retried", "lost"])
def test_every_message_of_a_call_that_hangs_is_counted(bench, monkeypatch, ending):
    queue = bench.queue(handler_timeout=25, retry_base=200, partitions=1, collect=4, within=0)
    for number in range(4):
        queue.enqueue(str(number))
    hangs, let_go, told = threading.Event(), threading.Event(), []
    queue.events.on("message.retry", lambda fields: told.append(fields["path"]))

    def handler(numbers: list[int]) -> None:
        hangs.set()
        let_go.wait(PATIENCE)

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    hurry(worker)
    worker.start()
    try:
        assert hangs.wait(PATIENCE)
        if ending == "lost":
            monkeypatch.setattr(threading.Thread, "start", _no_thread)
        bench.clock.advance(26)
        eventually(lambda: worker.stats()[ending] == 4)
    finally:
        monkeypatch.undo()
        let_go.set()
        assert worker.stop(PATIENCE)
    assert len(told) == (4 if ending == "retried" else 0)


def _no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_the_watchdog_gives_a_handler_up_once_and_tells_it(bench):
    queue = bench.queue(handler_timeout=25)
    queue.enqueue(b"1", name="one")
    claim = queue.claim("messages/one")
    watchdog = Watchdog(queue)
    given_up: list[Call] = []
    try:
        with watchdog.watch(claim, [7]):
            watchdog.check(bench.clock.monotonic() + 25, given_up.append)
            assert given_up == []
            watchdog.check(bench.clock.monotonic() + 26, given_up.append)
            watchdog.check(bench.clock.monotonic() + 27, given_up.append)
        raise AssertionError("its late result was taken")
    except LeaseLost:
        pass
    (call,) = given_up
    assert (call.claim, call.lines) == (claim, (7,))
    assert "test_the_watchdog" in "".join(call.stack().format())
