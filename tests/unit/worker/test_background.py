"""Outcomes are written beside the handlers, what is completed is deleted there, and nothing is lost by it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from s3queue import AccessDenied, Context, Definition, Worker
from s3queue.documents.sends import INLINE_SENDS
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.worker.background import PER_HANDLER, Background
from support.threads import PATIENCE


def test_a_handler_runs_while_the_outcome_of_the_last_one_is_written(bench):
    queue = bench.queue(concurrency=1)
    paths = [queue.enqueue(str(number)) for number in range(3)]
    seen: list[int] = []
    second = threading.Event()
    real_put = queue.store.put

    def handler(number: int) -> None:
        seen.append(number)
        if len(seen) == 2:
            second.set()

    def slow_put(key: str, body: bytes, **options: Any) -> Any:
        if "/records/" in key:
            assert second.wait(PATIENCE), "the next message waits for the first one's record"
        return real_put(key, body, **options)

    queue.store.put = slow_put
    worker = Worker(queue, handler, sweep=False)
    worker.run_until_empty()

    assert sorted(seen) == [0, 1, 2]
    assert worker.stats()["succeeded"] == 3
    assert all(queue.status(path).state == "completed" for path in paths)


def test_a_result_that_is_written_late_is_the_one_that_was_returned(bench):
    """The handler uses one object for all messages, and the first one's outcome waits for what it has sent."""
    queue = bench.queue(concurrency=1)
    paths = [queue.enqueue(str(number)) for number in range(2)]
    second = threading.Event()
    definition = Definition(queue.name, queue.settings, ["sink"])
    seen: list[int] = []
    last: dict[str, int] = {}

    @definition.handler
    def handler(number: int, context: Context) -> dict:
        seen.append(number)
        last["number"] = number
        if len(seen) == 2:
            second.set()
        context.send("sink", b"x" * 2 * INLINE_SENDS)
        return last

    real_put = queue.store.put

    def slow_put(key: str, body: bytes, **options: Any) -> Any:
        if "/outbox/" in key:
            assert second.wait(PATIENCE)
        return real_put(key, body, **options)

    queue.store.put = slow_put
    Worker(queue, definition, sweep=False).run_until_empty()

    assert [queue.status(path).record.result["number"] for path in paths] == [0, 1]


def test_no_more_outcomes_wait_than_there_are_threads_for_them(bench):
    """Else a slow store would let a worker hold any number of messages whose handlers have run."""
    queue = bench.queue(concurrency=1)
    claims = [queue.claim(queue.enqueue(str(number))) for number in range(PER_HANDLER + 1)]
    background = Background(queue, HeartbeatWriter(queue), 1, lambda claim: None)
    go_on = threading.Event()
    ended_by: list[int] = []

    for claim in claims[:-1]:
        assert background.hand_over(claim, lambda: go_on.wait(PATIENCE))
    assert not background.hand_over(claims[-1], lambda: ended_by.append(threading.get_ident()))
    assert ended_by == [threading.get_ident()]

    go_on.set()
    background.end()


def test_a_lease_is_kept_while_its_outcome_is_written(bench):
    queue = bench.queue(concurrency=1)
    queue.enqueue(b"1")
    held: list[int] = []
    real_put = queue.store.put

    def look(key: str, body: bytes, **options: Any) -> Any:
        if "/records/" in key:
            held.append(worker.stats()["running"])
        return real_put(key, body, **options)

    queue.store.put = look
    worker = Worker(queue, lambda message: None, sweep=False)
    worker.run_until_empty()

    assert held == [1]


def test_a_worker_that_stops_writes_the_outcomes_that_wait(bench):
    queue = bench.queue(concurrency=1)
    path = queue.enqueue(b"1")
    writing = threading.Event()
    go_on = threading.Event()
    real_put = queue.store.put

    def slow_put(key: str, body: bytes, **options: Any) -> Any:
        if "/records/" in key:
            writing.set()
            assert go_on.wait(PATIENCE)
        return real_put(key, body, **options)

    queue.store.put = slow_put
    worker = Worker(queue, lambda message: None, sweep=False)
    worker.start()
    assert writing.wait(PATIENCE)
    assert not worker.stop(0.05), "it stopped while an outcome was being written"
    go_on.set()
    assert worker.stop(PATIENCE)

    assert queue.status(path).state == "completed"
    assert worker.stats()["succeeded"] == 1


def test_without_a_thread_to_be_had_the_outcome_is_written_all_the_same(bench, monkeypatch):
    queue = bench.queue(concurrency=1)
    path = queue.enqueue(b"1")

    def refuse(*args: Any, **options: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    Worker(queue, lambda message: None, sweep=False).run_until_empty()

    assert queue.status(path).state == "completed"


def test_an_attempt_that_fails_is_ended_there_too(bench):
    queue = bench.queue(concurrency=1, max_attempts=1)
    path = queue.enqueue(b"1")

    def handler(number: int) -> None:
        raise ValueError("no")

    worker = Worker(queue, handler, sweep=False)
    worker.run_until_empty()

    assert worker.stats()["dead"] == 1
    assert queue.status(path).state == "dead"


def test_a_thread_goes_on_while_what_it_completed_is_cleared_away(bench):
    queue = bench.queue(concurrency=1)
    paths = [queue.enqueue(str(number)) for number in range(3)]
    seen: list[int] = []
    second = threading.Event()
    real_delete = queue.store.delete

    def handler(number: int) -> None:
        seen.append(number)
        if len(seen) == 2:
            second.set()

    def slow_delete(key: str, **options: Any) -> Any:
        assert second.wait(PATIENCE), "the next message waits for the first one's DELETE"
        return real_delete(key, **options)

    queue.store.delete = slow_delete
    Worker(queue, handler, sweep=False).run_until_empty()

    assert sorted(seen) == [0, 1, 2]
    assert all(queue.status(path).state == "completed" for path in paths)
    assert not list(queue.store.list("orders/leases/").objects)


def test_a_name_put_anew_while_it_is_cleared_away_runs_too(bench):
    queue = bench.queue(concurrency=1)
    (path,) = [queue.enqueue(b"1", name="one")]
    seen: list[int] = []
    real_delete = queue.store.delete

    def delete_late(key: str, **options: Any) -> Any:
        if key == f"orders/{path}" and len(seen) == 1:
            queue.store.put(key, b"2")
        return real_delete(key, **options)

    queue.store.delete = delete_late
    Worker(queue, seen.append, sweep=False, poll_interval=0.05).run_until_empty()

    assert seen == [1, 2]


def test_what_cannot_be_cleared_away_is_left_to_the_sweeper(bench, caplog):
    queue = bench.queue(concurrency=1)
    path = queue.enqueue(b"1")

    def refuse(key: str, **options: Any) -> Any:
        raise AccessDenied("s3:DeleteObject")

    queue.store.delete = refuse
    worker = Worker(queue, lambda message: None, sweep=False)
    worker.run_until_empty()

    assert worker.stats()["succeeded"] == 1
    assert queue.outcomes.read(path).outcome == "completed"
    assert "delete failed, left to the sweeper" in caplog.text


def test_what_waits_for_a_thread_that_cannot_be_started_is_written_once(bench, monkeypatch):
    """A pool queues its work before it starts a thread for it: a thread that it had did the same work once more."""
    queue = bench.queue(concurrency=2)
    claims = [queue.claim(queue.enqueue(str(number))) for number in range(2)]
    ended: list[str] = []
    background = Background(queue, HeartbeatWriter(queue), 2, lambda claim: ended.append(claim.path))
    is_busy, go_on, steps = threading.Event(), threading.Event(), []

    def first() -> None:
        is_busy.set()
        assert go_on.wait(PATIENCE)

    assert background.hand_over(claims[0], first)
    assert is_busy.wait(PATIENCE)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert not background.hand_over(claims[1], lambda: steps.append(1))
    go_on.set()
    background.end()

    assert steps == [1]
    assert ended == [claims[0].path]  # the other one is the caller's
    assert background._under_way == 0
