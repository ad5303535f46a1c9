"""The sweeper: what is due or was forgotten is dispatched; a pause, a failure or a wrong clock does no harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from s3queue import Sweeper, Unavailable
from s3queue.documents.lease import Lease
from s3queue.errors import AccessDenied
from support.workbench import next_tick


def test_due_retries_are_dispatched_once_and_their_reminders_removed(bench, queue, dispatched):
    paths = [queue.enqueue(b"x") for _ in range(3)]
    for path in paths:
        queue.fail(queue.claim(path), "once", retry_after=10)
    sweeper = bench.sweeper(queue, dispatched)
    assert sweeper.sweep().due == 0

    bench.clock.advance(10)
    assert sweeper.sweep().due == 3
    assert sorted(dispatched) == sorted(paths)
    assert not bench.keys("orders/retries/")
    assert sweeper.sweep().due == 0


def test_a_retry_that_is_due_in_two_seconds_waits_two_seconds_and_not_a_minute(bench, queue, dispatched):
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "once", retry_after=2)
    sweeper = bench.sweeper(queue, dispatched)

    waited = 0.0
    while not dispatched:
        pause = next_tick(sweeper)
        if not dispatched:
            assert pause is not None
            bench.clock.advance(pause)
            waited += pause
        assert waited < 10

    assert dispatched == [path]
    assert waited <= 2


def test_a_delayed_message_is_dispatched_when_it_is_due_and_runs_from_where_it_lies(bench, queue, dispatched):
    path = queue.enqueue(b"x", delay=30)
    later = queue.enqueue(b"x", delay=4000)
    sweeper = bench.sweeper(queue, dispatched)

    sweeper.sweep()
    assert dispatched == []
    bench.clock.advance(30)
    assert sweeper.sweep().due == 1
    assert dispatched == [path]
    assert path.startswith("delayed/")

    queue.complete(queue.claim(path, read_first=True))
    assert queue.status(path).state == "completed"
    assert bench.keys("orders/delayed/") == [f"orders/{later}"]


def test_a_delay_of_anyones_making_needs_no_library(bench, queue, dispatched):
    due = (bench.clock.now() + timedelta(seconds=5)).strftime("%Y%m%dT%H%M%SZ")
    bench.memory.put(f"orders/delayed/{due}/by hand", b"x")
    bench.clock.advance(5)

    bench.sweeper(queue, dispatched).sweep()

    assert dispatched == [f"delayed/{due}/by hand"]


def test_what_is_dispatched_and_not_taken_is_dispatched_again_but_not_at_every_look(bench, queue, dispatched):
    queue.enqueue(b"x", delay=1)
    sweeper = bench.sweeper(queue, dispatched)
    bench.clock.advance(1)
    for _ in range(10):
        sweeper.sweep_due()
        bench.clock.advance(2)
    assert len(dispatched) == 1

    bench.clock.advance(60)
    sweeper.sweep_due()
    assert len(dispatched) == 2


def test_a_thousand_retries_due_at_once_are_all_dispatched_without_waiting_for_their_leases_to_age(bench, dispatched):
    queue = bench.queue(concurrency=3)
    paths = [queue.enqueue(b"x") for _ in range(1000)]
    for path in paths:
        queue.fail(queue.claim(path), "the database was down", retry_after=5)
    sweeper = bench.sweeper(queue, dispatched)
    bench.clock.advance(5)

    for _ in range(6):
        sweeper.tick()
        bench.clock.advance(2)

    assert sorted(dispatched) == sorted(paths)


def test_the_most_urgent_is_dispatched_first(bench, queue, dispatched):
    paths = [queue.enqueue(b"x", priority=priority, delay=1) for priority in (0, 200, 9)]
    bench.clock.advance(1)

    bench.sweeper(queue, dispatched).sweep()

    assert dispatched == [paths[1], paths[2], paths[0]]


def test_a_dispatch_that_fails_keeps_the_reminder(bench, queue):
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "once")
    bench.clock.advance(5)
    sweeper = bench.sweeper(queue)

    def refuse(paths: Any) -> None:
        raise Unavailable("throttled")

    sweeper.dispatch = refuse
    with pytest.raises(Unavailable):
        sweeper.sweep()

    assert len(bench.keys("orders/retries/")) == 1


def test_reminders_that_make_no_sense_are_removed(bench, queue):
    bench.memory.put("orders/retries/whenever/messages/x", b"")
    bench.memory.put("orders/retries/20260101T000000Z/nonsense", b"")

    assert bench.sweeper(queue).sweep().removed == 2


def test_a_message_whose_event_was_lost_is_rescued_after_a_minute(bench, queue, dispatched):
    path = queue.enqueue(b"x")
    taken = queue.enqueue(b"x")
    queue.claim(taken, timeout=600)
    sweeper = bench.sweeper(queue, dispatched)
    bench.clock.advance(59)
    assert sweeper.sweep().orphans == 0

    bench.clock.advance(1)
    assert sweeper.sweep().orphans == 1
    assert dispatched == [path]


def test_rescue_after_may_be_shorter(bench, dispatched):
    queue = bench.queue(rescue_after=5)
    queue.enqueue(b"x")
    bench.clock.advance(5)

    assert bench.sweeper(queue, dispatched).sweep().orphans == 1


@pytest.mark.parametrize("cursor", ["", "orders/messages/"], ids=["at once", "where another sweeper ended"])
def test_a_message_whose_key_is_the_prefix_itself_is_rescued(bench, queue, dispatched, cursor):
    bench.put("orders/messages/", b"not empty")
    other = queue.enqueue(b"x")
    if cursor:
        bench.put("orders/sweep.json", json.dumps({"messages": cursor}).encode())
    bench.clock.advance(60)

    assert bench.sweeper(queue, dispatched).sweep().orphans == 2

    assert sorted(dispatched) == ["messages/", other]
    claim = queue.claim("messages/", read_first=True)
    assert claim.message.body == b"not empty"


def test_a_folder_placeholder_is_no_orphan(bench, queue, dispatched):
    bench.memory.put("orders/messages/", b"")
    bench.memory.put("orders/messages/2026/", b"")
    bench.clock.advance(600)

    assert bench.sweeper(queue, dispatched).sweep().orphans == 0
    assert dispatched == []


def test_a_paused_queue_dispatches_nothing_and_still_frees_what_crashed(bench, queue, dispatched):
    crashed, orphan = queue.enqueue(b"x"), queue.enqueue(b"x")
    retried = queue.enqueue(b"x")
    queue.fail(queue.claim(retried), "once")
    queue.claim(crashed)
    queue.enqueue(b"x", delay=1)
    queue.pause()
    bench.clock.advance(300)
    sweeper = bench.sweeper(queue, dispatched)

    report = sweeper.sweep()
    assert dispatched == []
    assert report.endings == {"retried": 1}
    assert len(bench.keys("orders/retries/")) == 2

    queue.resume()
    bench.clock.advance(20)
    sweeper.sweep()
    assert {crashed, orphan, retried} < set(dispatched)
    assert len(dispatched) == 4


def test_time_is_the_stores_and_not_this_machines(bench, queue):  # [P2]
    path = queue.enqueue(b"x")
    queue.claim(path)

    class Ahead:
        """A sweeper's machine whose clock is a day fast."""

        def now(self) -> datetime:
            return bench.clock.now() + timedelta(days=1)

        def monotonic(self) -> float:
            return bench.clock.monotonic() + 86_400

        def sleep(self, seconds: float) -> None:
            bench.clock.sleep(seconds)

    sweeper = bench.queue(worker_id="sweeper")
    sweeper.clock = Ahead()
    bench.clock.advance(20)

    assert bench.sweeper(sweeper).sweep().endings == {}
    assert Lease.from_bytes(bench.read(f"orders/leases/{path}"), "").state == "processing"


def test_a_queue_that_only_pull_workers_serve_is_swept_without_a_dispatch_and_keeps_nobody_awake(bench):
    queue = bench.queue(engine="pull")
    queue.enqueue({})
    waiting = queue.enqueue({})
    queue.fail(queue.claim(waiting), "again", retry_after=0)
    crashed = queue.enqueue({})
    queue.claim(crashed)
    sweeper = Sweeper(queue=queue, dispatch=None)
    bench.clock.advance(queue.settings.visibility_timeout.total_seconds() + 5)

    report = sweeper.sweep()

    assert report.endings == {"retried": 1}
    assert (report.due, report.orphans) == (0, 0)
    assert len(bench.keys("orders/retries/")) == 2, "the reminders are the pull workers' to follow"
    assert {claim.path for claim in queue.claim_next(5)} >= {waiting, crashed}


def test_pending_messages_of_a_pulled_queue_are_no_reason_to_stay_awake(bench):
    queue = bench.queue(engine="pull")
    queue.enqueue({})
    queue.enqueue({}, delay=5)

    report = Sweeper(queue=queue, dispatch=None).tick()

    assert report is not None
    assert report.next_tick is None


def test_the_count_of_an_idle_queue_is_published_again_if_it_was_not_stored(bench):
    queue = bench.queue(max_depth=3)
    sweeper = bench.sweeper(queue)
    paths = [queue.enqueue(b"x") for _ in range(3)]
    sweeper.sweep()
    for path in paths:
        queue.complete(queue.claim(path))

    def lose(operation: str, key: str, perform: Any) -> Any:
        if operation == "put" and key == queue.keys.stats:
            raise Unavailable("503 SlowDown")
        return perform()

    bench.around = lose
    sweeper.sweep()
    bench.around = None
    bench.clock.advance(60)
    sweeper.sweep()

    queue.enqueue(b"there is room")


def test_an_idle_queue_is_not_full_because_another_sweeper_counted_it_last(bench):
    queue = bench.queue(max_depth=3, history=False)
    first, second = bench.sweeper(queue), bench.sweeper(queue)
    first.sweep()
    paths = [queue.enqueue(b"x") for _ in range(3)]
    second.sweep()
    for path in paths:
        queue.complete(queue.claim(path))
    bench.clock.advance(60)
    first.sweep()

    queue.enqueue(b"there is room")


def test_sweepers_in_turn_do_not_publish_an_idle_queue_again_and_again(bench, queue):
    sweepers = [bench.sweeper(queue), bench.sweeper(queue)]
    for sweeper in sweepers:
        bench.clock.advance(60)
        sweeper.sweep()
    bench.store.take()

    for sweeper in sweepers * 5:
        bench.clock.advance(60)
        sweeper.sweep()

    # The first one reads once what the second one has published.
    assert bench.store.take() == {"list": 10, "get": 1}


def test_settings_that_cannot_be_read_now_keep_no_sweep_from_its_work(bench, queue, dispatched):  # [P6]
    """A permission that is missing, or an S3 that does not answer: the settings stay as they are."""

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "get" and key == "orders/queue.json":
            raise AccessDenied("GET orders/queue.json: AccessDenied; allow s3:GetObject")
        return perform()

    bench.around = refuse
    lost, late = queue.enqueue(b"1"), queue.enqueue(b"2", delay=60)
    sweeper = bench.sweeper(queue, dispatched)
    bench.clock.advance(90)

    assert sweeper.tick_delayed().error is None
    assert dispatched == [late]
    assert sweeper.tick().error is None
    assert lost in dispatched
