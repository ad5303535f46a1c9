"""What a worker was handed over and could not try gets its reminder back, if it has a lease that waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from s3queue import Definition, Unavailable, Worker
from s3queue.queue import Queue
from s3queue.worker import unserved
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification
from s3queue.worker.unserved import Unserved
from support.threads import PATIENCE, eventually
from support.workbench import Workbench


def _retries(queue: Queue, count: int, folder: str = "") -> list[str]:
    """Messages that wait, are due, and whose reminders the sweeper has deleted."""
    paths = [queue.enqueue({"n": number}, name=f"{folder}w{number}") for number in range(count)]
    for path in paths:
        queue.fail(queue.claim(path), "once", retry_after=0)
    _forget_reminders(queue)
    return paths


def _forget_reminders(queue: Queue) -> None:
    for entry in queue.store.list(queue.keys.prefix("retries")).objects:
        queue.store.delete(entry.key)


def _reminded(bench: Workbench) -> list[str]:
    keys = bench.queue().keys
    return sorted(found[1] for key in bench.keys("orders/retries/") if (found := keys.reminded(key)))


class Function:
    """A worker function that the sweeper invokes."""

    def __init__(self, bench: Workbench, handler: Callable[..., Any], **settings: Any) -> None:
        self.bench = bench
        self.queue = bench.queue(**settings)
        definition = Definition("orders", self.queue.settings)
        definition.handler(handler)
        self.runner = InvocationRunner(self.queue, definition)

    def dispatched(self, *paths: str, limit: float = 60.0) -> dict[str, int]:
        end = self.bench.clock.monotonic() + limit
        return self.runner.run([Notification(path=path) for path in paths], lambda: end - self.bench.clock.monotonic())


def test_a_function_that_is_out_of_time_reminds_of_what_waits_and_of_nothing_else(bench: Workbench) -> None:  # [P6]
    function = Function(bench, lambda message: bench.clock.advance(15), handler_timeout=15)
    waiting = _retries(function.queue, 4)
    fresh = [function.queue.enqueue({}) for _ in range(3)]

    assert function.dispatched(*waiting, *fresh, limit=40)["completed"] == 2

    assert _reminded(bench) == sorted(waiting[2:])
    bench.clock.advance(2)
    dispatched: list[str] = []
    bench.sweeper(bench.queue(worker_id="sweeper"), dispatched).sweep()
    assert sorted(dispatched) == sorted(waiting[2:])


def test_a_function_that_gets_nothing_done_is_not_called_again_at_once(bench: Workbench) -> None:
    function = Function(bench, lambda message: None, handler_timeout=30, rescue_after=20)
    (path,) = _retries(function.queue, 1)

    assert function.dispatched(path, limit=10) == {}

    assert _reminded(bench) == [path]
    bench.clock.advance(18)
    assert function.queue.claim_next() == []
    bench.clock.advance(2)
    assert function.queue.claim_next()


@pytest.mark.parametrize("why", ["no answer", "paused"])
def test_a_function_that_may_not_or_cannot_claim_reminds(bench: Workbench, why: str) -> None:  # [P6]
    function = Function(bench, lambda message: None)
    (path,) = _retries(function.queue, 1)

    def fail(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if key.startswith("orders/leases/messages") and operation != "list":
            raise Unavailable("503")
        return perform()

    if why == "paused":
        bench.queue().pause()
        bench.clock.advance(11)
    else:
        bench.around = fail
    function.dispatched(path)

    assert _reminded(bench) == [path]


def test_a_function_reminds_of_each_message_that_the_rate_held_back_and_that_waits(bench: Workbench) -> None:
    function = Function(bench, lambda message: None, rate="2/hour", visibility_timeout=900)
    waiting = _retries(bench.queue(), 5)

    assert function.dispatched(*waiting) == {"completed": 2, "held back": 3}

    assert _reminded(bench) == sorted(waiting[2:])
    first = min(bench.keys("orders/retries/"))
    due_at, _ = function.queue.keys.reminded(first) or (None, "")
    assert due_at
    assert 3600 <= (due_at - bench.clock.now()).total_seconds() <= 3900, "when there are tokens again"


def test_nothing_that_was_tried_costs_a_request_more(bench: Workbench) -> None:
    function = Function(bench, lambda message: None)
    waiting = _retries(function.queue, 3)
    function.queue.refresh()
    bench.store.take()

    assert function.dispatched(*waiting) == {"completed": 3}

    # Each: the lease, message and record read; lease and record written; two deletes. One LIST begins the drain.
    assert bench.store.take() == {"get": 9, "put": 6, "delete": 6, "list": 1}


def test_a_reminder_that_a_rate_moves_is_there_before_the_old_one_goes(bench: Workbench) -> None:  # [P6]
    function = Function(bench, lambda message: None, rate="1/hour", rate_key="folder")
    (first,) = _retries(bench.queue(), 1, "a/")
    second = bench.queue().enqueue({}, name="a/second")
    bench.queue().fail(bench.queue().claim(second), "once", retry_after=0)
    bench.clock.advance(6)
    seen: list[list[str]] = []

    def watch(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        done = perform()
        if operation == "delete" and key.startswith("orders/retries/"):
            seen.append(_reminded(bench))
        return done

    bench.around = watch
    assert function.dispatched(first)["completed"] == 1
    bench.around = None

    assert _reminded(bench) == [second]
    assert seen == [[second]]


def test_a_pull_worker_reminds_of_what_the_rate_of_a_folder_held_back(bench: Workbench) -> None:  # [P6]
    queue = bench.queue(rate="1/hour", rate_key="folder", visibility_timeout=900)
    waiting = _retries(bench.queue(), 3, "a/")
    worker = Worker(queue, lambda message: None, concurrency=1, sweep=False)
    worker._accept(waiting)

    for _ in waiting:
        candidate = worker._next()
        assert candidate
        worker._work(candidate)
    worker._unserved.remind(after=unserved.AGAIN)

    assert _reminded(bench) == sorted(waiting[1:])


def test_a_pull_worker_that_stops_leaves_reminders_of_its_inbox(bench: Workbench) -> None:  # [P6]
    queue = bench.queue(visibility_timeout=900)
    waiting, fresh = _retries(queue, 3), queue.enqueue({})
    begun: list[int] = []

    def handler(message: Any) -> None:
        begun.append(1)
        assert worker._stopping.wait(PATIENCE)

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    worker._accept([*waiting, fresh])
    worker.start()
    eventually(lambda: bool(begun))
    assert worker.stop(PATIENCE)

    assert _reminded(bench) == sorted(waiting[1:])
    bench.clock.advance(1)
    assert len(bench.queue(worker_id="other").claim_next(9)) == 3


def test_a_store_without_an_answer_stops_nobody_and_costs_no_loop(bench: Workbench) -> None:
    queue = bench.queue()
    (path,) = _retries(queue, 1)
    left = Unserved(queue)
    left.add(path)

    def fail(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        raise Unavailable("503")

    bench.around = fail
    left.remind(after=unserved.AGAIN)
    bench.around = None

    assert len(left) == 0


def test_what_lies_behind_the_leases_that_were_listed_is_reminded_of(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unserved, "PAGES", 1)
    queue = bench.queue()
    waiting, fresh = _retries(queue, 5), queue.enqueue({}, name="w0-fresh")
    for number in range(1000):
        bench.put(f"orders/leases/messages/w1-{number:04d}", b"of another message")
    left = Unserved(queue)
    for path in (*waiting, fresh):
        left.add(path)

    left.remind(after=unserved.AGAIN)

    assert _reminded(bench) == waiting
