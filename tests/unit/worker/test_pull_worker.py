"""The pull worker: every message runs once, by as many threads as asked, and what it holds is kept."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest

import s3queue
from s3queue import Context, Unavailable, Worker
from s3queue.errors import Unreadable
from s3queue.protocol.backlog import Backlog
from s3queue.store import Page
from support.threads import PATIENCE, eventually, hurry


def test_every_message_is_run_once_by_several_threads(bench):
    queue = bench.queue(concurrency=4)
    paths = [queue.enqueue(json.dumps(number)) for number in range(100)]
    seen: list[int] = []

    worker = Worker(queue, seen.append, sweep=False)
    worker.run_until_empty()

    assert sorted(seen) == list(range(100))
    assert all(queue.status(path).state == "completed" for path in paths)


def test_a_look_that_failed_does_not_make_the_queue_empty(bench):
    queue = bench.queue(concurrency=1)
    queue.enqueue(b"1")
    looks = iter([Unavailable("503 SlowDown")])

    def failing_once(prefix: str, **options: Any) -> Page:
        if fault := next(looks, None):
            raise fault
        return real_list(prefix, **options)

    real_list, queue.store.list = queue.store.list, failing_once
    worker = Worker(queue, lambda message: None, sweep=False)
    hurry(worker)
    worker.run_until_empty()

    assert worker.stats()["succeeded"] == 1


def test_the_others_go_on_while_one_thread_looks_for_more(bench):
    queue = bench.queue(concurrency=2)
    for number in range(1100):
        queue.enqueue(str(number))
    is_looking, went_on = threading.Event(), threading.Event()
    seen: list[int] = []
    real_list = queue.store.list

    def handler(number: int) -> None:
        seen.append(number)
        if is_looking.is_set():
            went_on.set()

    def slow_list(prefix: str, **options: Any) -> Page:
        if seen and not went_on.is_set():
            is_looking.set()
            assert went_on.wait(PATIENCE), "nothing runs while one thread looks"
        return real_list(prefix, **options)

    queue.store.list = slow_list
    Worker(queue, handler, sweep=False).run_until_empty()

    assert went_on.is_set()
    assert sorted(seen) == list(range(1100))


def test_what_is_found_again_while_it_is_in_hand_is_not_asked_for_again(bench):
    # One thread, which looks ahead with a message in hand, and another that clears away what it completed.
    queue = bench.queue(concurrency=1)
    for number in range(2500):
        queue.enqueue(str(number))
    bench.store.take()

    Worker(queue, lambda number: None, sweep=False).run_until_empty()

    leases = [key for verb, key in bench.store.log if verb == "put" and key.startswith("orders/leases/")]
    assert len(leases) == len(set(leases)) == 2500
    # Three windows of a thousand and a look that finds nothing, at four LISTs each.
    assert bench.store.requests["list"] <= 16


def test_as_many_run_at_once_as_concurrency_says(bench):
    queue = bench.queue(concurrency=3)
    together, most = threading.Barrier(3), []
    running = []

    def handler(body: int) -> None:
        running.append(body)
        most.append(len(running))
        together.wait(PATIENCE)  # passes only if three are at it
        running.remove(body)

    for number in range(6):
        queue.enqueue(str(number))
    Worker(queue, handler, sweep=False).run_until_empty()

    assert max(most) == 3


def test_a_batch_is_not_given_up_when_the_rest_of_the_queue_is_empty(bench):
    queue = bench.queue()
    (path,) = queue.enqueue_many(range(50))
    seen = []
    was_asked = threading.Event()

    def handler(body: int) -> None:
        assert was_asked.wait(PATIENCE)
        seen.append(body)

    def is_idle() -> bool:
        found = real_is_idle()
        if worker.stats()["running"]:
            was_asked.set()
        return found

    worker = Worker(queue, handler, sweep=False)
    real_is_idle, worker._is_idle = worker._is_idle, is_idle
    worker.run_until_empty()

    assert sorted(seen) == list(range(50))
    assert queue.status(path).state == "completed"


def test_statistics_count_every_outcome(bench):
    queue = bench.queue(max_attempts=2)
    for body in ("fine", "retry", "dead", "fine"):
        queue.enqueue(body)

    def handler(body: str) -> None:
        if body == "retry":
            raise ValueError(body)
        if body == "dead":
            raise s3queue.Reject(body)

    worker = Worker(queue, handler, sweep=False)
    worker.run_until_empty()

    assert worker.stats() == {
        "processed": 4,
        "succeeded": 2,
        "failed": 2,
        "retried": 1,
        "dead": 1,
        "cancelled": 0,
        "released": 0,
        "lost": 0,
        "running": 0,
    }


def test_its_heartbeat_shows_its_statistics_and_what_it_holds_and_goes_when_it_stops(bench):
    queue = bench.queue()
    path = queue.enqueue(b"1")
    half_way, finish = threading.Event(), threading.Event()

    def handler(body: int, context: Context) -> None:
        context.progress(0.5, "half way")
        half_way.set()
        finish.wait(PATIENCE)

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    hurry(worker)
    worker.start()
    key = f"orders/workers/{queue.worker_id}"

    def heartbeat() -> dict[str, Any]:
        found = queue.store.open(key)
        return json.loads(found.read()) if found else {}

    eventually(lambda: worker.stats()["running"] == 1 and half_way.is_set())
    bench.clock.advance(10)
    eventually(lambda: heartbeat().get("holds") == [path])
    assert heartbeat()["progress"] == {path: [0.5, "half way"]}
    finish.set()
    eventually(lambda: worker.stats()["succeeded"] == 1)
    bench.clock.advance(10)
    eventually(lambda: heartbeat().get("stats", {}).get("succeeded") == 1)
    assert worker.stop(PATIENCE)
    assert queue.store.head(key) is None


def test_a_message_is_kept_for_longer_than_its_visibility_timeout(bench):  # [P2]
    queue = bench.queue(visibility_timeout=30, handler_timeout=200)
    path = queue.enqueue(b"1")
    runs = []
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))
    heartbeat = ("put", f"orders/workers/{queue.worker_id}")

    def handler(body: int) -> None:
        runs.append(body)
        for _ in range(10):
            beats = bench.store.log.count(heartbeat)
            bench.clock.advance(10)
            eventually(lambda beats=beats: bench.store.log.count(heartbeat) > beats)
            assert sweeper.sweep().endings == {}

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    hurry(worker)
    worker.run_until_empty()

    assert runs == [1]
    assert len(queue.status(path).record.attempts) == 1
    # It was alive to the end: a zombie would have left the clearing up to the sweeper.
    assert (queue.stats().pending, queue.stats().processing) == (0, 0)


def test_own_retries_need_no_sweeper(bench):
    queue = bench.queue(max_attempts=3)
    path = queue.enqueue(b"1")
    attempts = []

    def handler(body: int, context: Context) -> None:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise ValueError("again")

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    hurry(worker)
    worker.start()
    for failed in (1, 2):
        eventually(lambda failed=failed: len(attempts) == failed and worker._retries.wait())
        bench.clock.advance(worker._retries.wait() + 1)
    eventually(lambda: queue.store.head(f"orders/records/{path}"))
    worker.stop()

    assert attempts == [1, 2, 3]
    assert worker.stats()["succeeded"] == 1
    assert bench.keys("orders/retries/") == []


def test_a_worker_can_be_started_once_at_a_time_and_again_after_a_stop(bench):
    queue = bench.queue()
    worker = Worker(queue, lambda body: None, sweep=False)
    worker.start()
    with pytest.raises(RuntimeError, match="already running"):
        worker.start()
    assert worker.stop()
    queue.enqueue(b"1")
    worker.run_until_empty()
    assert worker.stats()["succeeded"] == 1


def test_a_message_put_anew_while_it_is_at_work_runs_again_in_the_same_worker(bench):
    queue = bench.queue()
    queue.enqueue(b"1", name="report")
    ran = []

    def handler(body: int) -> None:
        ran.append(body)
        if body == 1:
            queue.enqueue(b"2", name="report")

    Worker(queue, handler, concurrency=1, sweep=False).run_until_empty()

    assert ran == [1, 2]


def test_an_error_that_nobody_foresaw_does_not_cost_the_worker_a_thread(bench, caplog):
    queue = bench.queue()
    good = queue.enqueue(b"1")
    broken = []
    original = queue.store.inner.list

    def breaks_once(*args: Any, **options: Any) -> Any:
        if not broken:
            broken.append(True)
            raise ZeroDivisionError("a bug")
        return original(*args, **options)

    queue.store.inner.list = breaks_once
    worker = Worker(queue, lambda body: None, concurrency=1, sweep=False)
    hurry(worker)
    worker.start()
    eventually(lambda: worker.stats()["succeeded"] == 1)
    worker.stop()

    assert queue.status(good).state == "completed"
    assert "a bug" in caplog.text


def test_timeouts_are_the_queues_own(bench):
    queue = bench.queue(visibility_timeout=77)
    left: list[timedelta] = []

    def handler(body: int, context: Context) -> None:
        left.append(context.remaining())

    queue.enqueue(b"1")
    Worker(queue, handler, concurrency=1, sweep=False).run_until_empty()

    assert left == [timedelta(seconds=77)]


@pytest.mark.parametrize("key", ["messages/p255/{}" + "x" * 995, "delayed/tomorrow/{}"])
def test_messages_that_can_be_neither_claimed_nor_buried_starve_nobody(bench, key):
    """Names that no lease can have, and archived as well: each cost a thread its pause, again and again."""
    queue = bench.queue()
    hostile = [f"orders/{key.format(f'{number:03d}')}" for number in range(100)]
    for one in hostile:
        bench.put(one, b"{}")
    queue.enqueue({"n": 1})

    def archived(operation: str, key: str, perform: Any) -> Any:
        if operation in ("get", "copy") and key.startswith(
            ("orders/messages/p255/", "orders/delayed/", "orders/dead/")
        ):
            raise Unreadable(f"GET s3://bench/{key}: InvalidObjectState: archived")
        return perform()

    bench.around = archived
    ran: list[Any] = []
    worker = Worker(queue, ran.append, concurrency=1, sweep=False)
    worker.run_until_empty()

    assert ran == [{"n": 1}]
    assert set(hostile) <= set(bench.keys("orders/")), "they stay, for whoever can make them readable"
    assert queue.status(hostile[0].removeprefix("orders/")).state in ("pending", "delayed")
    bench.around = None
    assert queue.claim(hostile[0].removeprefix("orders/")) is None
    assert hostile[0] not in bench.keys("orders/"), "once it can be read, it is buried"


@pytest.mark.parametrize("threads", [1, 4])
def test_messages_that_nobody_can_read_starve_nobody(bench, threads):
    """The attack: 200 archived objects at the highest priority. Three of them cost a pause, and nothing else ran."""
    queue = bench.queue(max_attempts=3)
    hostile = [f"messages/p255/{number:03d}" for number in range(200)]
    for path in hostile:
        bench.put(f"orders/{path}", b"{}")
    ordinary = queue.enqueue({"n": 1})

    def archived(operation: str, key: str, perform: Any) -> Any:
        if operation in ("get", "copy") and key.startswith("orders/messages/p255/"):
            raise Unreadable(f"GET s3://bench/{key}: InvalidObjectState: archived")
        return perform()

    bench.around = archived
    ran: list[Any] = []
    # Virtual time stands still: whoever pauses before the ordinary message has had its turn pauses for ever.
    Worker(queue, ran.append, concurrency=threads, sweep=False).run_until_empty()

    assert ran == [{"n": 1}]
    assert queue.status(ordinary).state == "completed"
    assert {queue.status(path).state for path in hostile} == {"waiting"}, "each used an attempt, and has its own pause"


def test_a_candidate_is_not_lost_if_the_refill_beside_it_fails_as_nobody_foresaw(bench, monkeypatch):
    """Its path was in hand for ever: no LIST of this worker showed it again, and the worker was never idle."""
    queue = bench.queue(concurrency=1)
    path = queue.enqueue(b"1")
    worker = Worker(queue, lambda message: None, sweep=False)
    hurry(worker)
    refill, refusals = Backlog.refill, ["a bug"]

    def fail_the_second_time(backlog: Backlog, in_hand: Any) -> int:
        if backlog._refills and refusals:
            raise KeyError(refusals.pop())
        return refill(backlog, in_hand)

    monkeypatch.setattr(Backlog, "is_running_low", lambda backlog, left: bool(refusals))
    monkeypatch.setattr(Backlog, "refill", fail_the_second_time)
    worker.start()
    try:
        eventually(lambda: queue.status(path).state == "completed")
        eventually(lambda: not worker._busy)
    finally:
        assert worker.stop(PATIENCE)

    assert not refusals
