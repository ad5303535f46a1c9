"""What is completed is deleted beside the handlers, and nothing is lost by it."""

from __future__ import annotations

import threading
from typing import Any

from s3queue import AccessDenied, Worker
from support.threads import PATIENCE


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
