"""Handlers that misbehave: the outcome is clear, nothing is lost, and nothing spins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from s3queue import (
    Context,
    DeadLetters,
    Lock,
    Worker,
)
from support.workbench import CALM


def test_a_handler_that_calls_exit_kills_neither_worker_nor_message(bench):  # [P1]
    queue = bench.queue(max_attempts=1)
    path, other = queue.enqueue(b"1"), queue.enqueue(b"2")

    def handler(body: int) -> None:
        if body == 1:
            raise SystemExit("enough")

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    worker.run_until_empty()

    assert queue.status(path).record.failure.type == "SystemExit"
    assert queue.status(other).state == "completed"
    assert worker.stats()["dead"] == 1


def test_a_handler_that_outlives_its_lease_is_finished_by_the_sweeper_and_not_run_again(bench, queue):  # [P4] [P6]
    path = queue.enqueue(b"1")
    runs = []

    def slow(body: int) -> str:
        runs.append(body)
        bench.clock.advance(100)
        return "late but done"

    assert bench.processor(queue, slow).run(path) == "completed"
    assert bench.keys("orders/messages/")  # a zombie clears nothing

    bench.settle(queue, slow)
    assert runs == [1]
    assert queue.status(path).record.result == "late but done"
    assert not bench.keys("orders/leases/")


def test_a_handler_that_always_outlives_its_lease_and_then_fails_ends_as_a_dead_letter(bench):  # [P1] [P5]
    queue = bench.queue(max_attempts=3)
    path = queue.enqueue(b"1")
    runs = []

    def slow(body: int, context: Context) -> None:
        runs.append(context.attempt)
        bench.clock.advance(100)
        raise ValueError("too late")

    bench.settle(queue, slow)

    assert runs == [1, 2, 3]
    assert queue.status(path).state == "dead"
    assert bench.read(f"orders/dead/{path}") == b"1"


@pytest.mark.parametrize(
    "result",
    [object(), [object()], float("nan"), {"a": float("inf")}, {(1, 2): 3}],
    ids=lambda value: repr(value)[:9],
)
def test_a_result_that_json_cannot_hold_is_noted_and_the_work_counts_as_done(bench, queue, result):
    path = queue.enqueue(b"1")
    runs = []

    def handler(body: int) -> Any:
        runs.append(body)
        return result

    assert bench.processor(queue, handler).run(path) == "completed"

    record = queue.status(path).record
    assert record.outcome == "completed"
    assert record.result is None
    assert "which is not JSON" in record.result_error
    assert runs == [1]


def test_a_result_that_contains_itself_or_is_huge_is_noted_too(bench, queue):
    loop: list[Any] = []
    loop.append(loop)
    for result in (loop, "x" * 300_000):
        path = queue.enqueue(b"1")
        assert bench.processor(queue, lambda body, result=result: result).run(path) == "completed"
        assert queue.status(path).record.result_error


@pytest.mark.parametrize("result", [object(), float("nan"), {(1, 2): 3}])
def test_a_line_whose_result_json_cannot_hold_does_not_spoil_its_batch(bench, queue, result):
    (path,) = queue.enqueue_many([1, 2])

    def handler(body: Any) -> Any:
        return result if body == 1 else "fine"

    assert bench.processor(queue, handler).run(path) == "completed"
    record = queue.status(path).record
    assert (record.lines["completed"], record.lines["results"]) == (2, [[2, "fine"]])


@pytest.mark.parametrize("ending", ["returns", "raises"])
@pytest.mark.parametrize("history", [True, False])
def test_a_handler_that_deletes_its_own_message_leaves_a_clear_story(bench, ending, history):  # [P1]
    queue = bench.queue(max_attempts=2, history=history)
    path = queue.enqueue(b"1")
    runs = []

    def handler(body: int) -> None:
        runs.append(body)
        bench.memory.delete(f"orders/{path}")
        if ending == "raises":
            raise ValueError("and now?")

    bench.store.take()
    processor = bench.processor(queue, handler)
    processor.run(path)
    bench.clock.advance(10)
    processor.run(path, read_first=True)
    bench.clock.advance(100)
    bench.sweeper(queue).sweep()

    assert runs == [1]
    assert sum(bench.store.take().values()) < CALM
    assert not bench.keys("orders/leases/")
    if history:
        record = queue.status(path).record
        assert (record.outcome, record.failure and record.failure.type) == (
            ("completed", None) if ending == "returns" else ("dead", "MessageVanished")
        )


def test_a_handler_that_deletes_its_message_and_dies_of_it_says_why(bench):  # [P1]
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"1")

    def handler(body: int) -> None:
        bench.memory.delete(f"orders/{path}")
        raise ValueError("and now?")

    assert bench.processor(queue, handler).run(path) == "dead"
    assert queue.status(path).record.failure.message == "and now?"
    assert not bench.keys("orders/leases/")


def test_a_handler_that_enqueues_its_own_name_again_runs_once_more_and_not_for_ever(bench, queue):
    path = queue.enqueue(b"1", name="self")
    runs = []

    def handler(body: int) -> None:
        runs.append(body)
        if body == 1:
            queue.enqueue(b"2", name="self")

    bench.processor(queue, handler).run(path)

    assert runs == [1, 2]
    assert not bench.keys("orders/messages/")


@pytest.mark.parametrize("error", [ValueError("x" * 1_000_000), ValueError("ü\n\x00 \ud800"), KeyError()])
def test_an_error_of_any_size_and_script_can_be_kept_and_read(bench, queue, error):
    path = queue.enqueue(b"1", metadata={"note": "y" * 1500})

    def handler(body: int) -> None:
        raise error

    for _ in range(3):
        bench.processor(queue, handler).run(path, read_first=True)
        bench.clock.advance(60)

    (letter,) = DeadLetters(queue).list()
    assert letter.error_type == type(error).__name__
    stored = bench.memory.head(f"orders/dead/{path}").metadata
    assert sum(len(name) + len(value) for name, value in stored.items()) <= 2048
    assert stored["note"] == "y" * 1500


async def cancelled(body: Any) -> None:
    task = asyncio.ensure_future(asyncio.sleep(10))
    await asyncio.sleep(0)
    task.cancel()
    await task


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def speechless(body: Any) -> None:
    raise Speechless


@pytest.mark.parametrize(("handler", "error_type"), [(cancelled, "CancelledError"), (speechless, "Speechless")])
@pytest.mark.parametrize("is_stopping", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
def test_whatever_a_handler_raises_is_a_failure_of_its_attempt(bench, handler, error_type, is_stopping, is_batch):
    queue = bench.queue()
    path = queue.enqueue_many([1, 2])[0] if is_batch else queue.enqueue(1)

    ending = bench.processor(queue, handler, should_stop=lambda: is_stopping).run(path)

    # A batch that is told to stop gives back the lines that it has not started.
    assert ending == ("released" if is_batch and is_stopping else "retried")
    lease = queue.status(path).lease
    failure = lease.lines.failed[1][1] if lease.lines else lease.failure
    assert (lease.state, failure.type) == ("waiting", error_type)


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_lock_that_the_handler_lost_is_a_failure_and_not_the_loss_of_its_message(bench, is_batch):
    queue = bench.queue()
    path = queue.enqueue_many([1, 2])[0] if is_batch else queue.enqueue(1)

    def handler(body: int) -> None:
        lock = Lock(queue.store, queue.keys.lock("report"), ttl=5, clock=bench.clock)
        assert lock.acquire()
        bench.clock.advance(6)
        lock.check()

    assert bench.processor(queue, handler).run(path) == "retried"
    assert queue.status(path).lease.state == "waiting"


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_handler_that_learns_that_its_message_is_lost_fails_nothing_and_starts_nothing_more(bench, is_batch):
    """[P4] Also if its own clock says that there is time left: someone else wrote the lease."""
    queue = bench.queue()
    path = queue.enqueue_many([1, 2])[0] if is_batch else queue.enqueue(1)
    started: list[int] = []

    def handler(body: int, context: Context) -> None:
        started.append(body)
        bench.put(f"orders/leases/{path}", bench.read(f"orders/leases/{path}").replace(b"nonce", b"nonCe"))
        context.extend()

    assert bench.processor(queue, handler).run(path) == "lost"
    assert started == [1]
    assert b"nonCe" in bench.read(f"orders/leases/{path}")
