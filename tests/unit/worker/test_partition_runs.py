"""Partitions in a pull worker, in a function, and in the hands of the sweeper.  [P9]"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from s3queue import Definition, Worker
from s3queue.documents.partition import PartitionLease
from s3queue.errors import Unavailable
from s3queue.flow.partitions import hold_partition
from s3queue.paths import partition_of
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification
from s3queue.worker.partition_run import PartitionRun, run_partition
from s3queue.worker.partition_runs import PartitionRuns
from support.threads import PATIENCE, eventually, hurry


def test_every_message_of_every_partition_is_run_once_by_several_threads(bench):
    queue = bench.queue(concurrency=4, partitions=3)
    for number in range(300):
        queue.enqueue(json.dumps(number))
    seen: list[int] = []

    Worker(queue, seen.append, sweep=False).run_until_empty()

    assert sorted(seen) == list(range(300))
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_groups_run_in_parallel_and_each_in_its_order(bench):
    queue = bench.queue(concurrency=4)
    for number in range(120):
        queue.enqueue({"group": number % 6, "number": number}, group=f"customer-{number % 6}")
    seen, running, mutex = defaultdict(list), set(), threading.Lock()

    def handler(body):
        with mutex:
            assert body["group"] not in running, "two messages of one group at the same time"
            running.add(body["group"])
        seen[body["group"]].append(body["number"])
        with mutex:
            running.remove(body["group"])

    worker = Worker(queue, handler, sweep=False)
    worker.run_until_empty()

    assert worker.stats()["succeeded"] == 120
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_the_threads_of_a_worker_share_a_partition_without_order(bench):
    queue = bench.queue(concurrency=4, partitions=1)
    for number in range(40):
        queue.enqueue(json.dumps(number))
    together = threading.Barrier(4)

    def handler(number):
        if number < 4:
            together.wait(PATIENCE)  # passes only if four messages run at the same time

    numbers = iter(range(40))
    worker = Worker(queue, lambda _: handler(next(numbers)), sweep=False)
    hurry(worker)
    worker.run_until_empty()

    assert worker.stats()["succeeded"] == 40


@pytest.mark.parametrize(
    ("last_value", "stored"),
    [(2, 2), (datetime(2026, 11, 18, tzinfo=UTC), "2026-11-18T00:00:00Z")],
    ids=["JSON", "a date"],
)
def test_each_message_has_its_own_result_although_the_handler_uses_one_object_for_all(bench, last_value, stored):
    queue = bench.queue(concurrency=1, partitions=1)
    paths = [queue.enqueue(json.dumps(number)) for number in range(3)]
    values, seen = [0, 1, last_value], list[int]()
    last: dict[str, Any] = {}

    def handler(number: int) -> dict:
        last["value"] = values[len(seen)]
        seen.append(number)
        return last

    Worker(queue, handler, sweep=False).run_until_empty()

    assert [queue.outcome_of(paths[number]).result["value"] for number in seen] == [0, 1, stored]


def test_more_groups_than_a_page_shows_and_one_long_group(bench):
    queue = bench.queue(concurrency=2)
    for number in range(1500):
        queue.enqueue(json.dumps(number), group=f"customer-{number}")
    for number in range(1500, 4000):
        queue.enqueue(json.dumps(number), group="all")
    seen: list[int] = []

    Worker(queue, seen.append, sweep=False).run_until_empty()

    assert sorted(seen) == list(range(4000))
    assert [number for number in seen if number >= 1500] == list(range(1500, 4000))


def test_a_hung_handler_of_a_partition_is_given_up_and_the_partition_goes_on(bench):
    queue = bench.queue(concurrency=1, handler_timeout=25, retry_base=200)
    for number in (1, 2):
        queue.enqueue(json.dumps(number), group="b" if number == 1 else "c")
    hangs, let_go, ran = threading.Event(), threading.Event(), []

    def handler(number):
        ran.append(number)
        if number == 1:
            hangs.set()
            let_go.wait(PATIENCE)

    worker = Worker(queue, handler, sweep=False)
    hurry(worker)
    worker.start()
    try:
        assert hangs.wait(PATIENCE)
        bench.clock.advance(26)
        eventually(lambda: worker.stats()["retried"] == 1)
        eventually(lambda: worker.stats()["succeeded"] == 1)
        eventually(lambda: worker.stats()["running"] == 0)
    finally:
        let_go.set()
        assert worker.stop(PATIENCE)

    assert sorted(ran) == [1, 2]
    lease = PartitionLease.read(bench.memory.open("orders/leases/@b"))
    assert [one.lease.failure.type for one in lease.waiting.values()] == ["HandlerTimeout"]


@pytest.mark.parametrize("no_thread", [False, True], ids=["the lease was lost", "no thread can be started"])
def test_a_partition_whose_hung_handler_cannot_be_recorded_runs_again(bench, monkeypatch, no_thread):
    """[P5] [P6] The message was among those that run for ever, and this worker never took the partition again."""
    queue = bench.queue(concurrency=1, handler_timeout=25, visibility_timeout=30, retry_base=1)
    path = queue.enqueue(b"1", group="b")
    hangs, let_go = threading.Event(), threading.Event()

    def handler(number):
        if not hangs.is_set():
            hangs.set()
            let_go.wait(PATIENCE)

    worker = Worker(queue, handler, sweep=False)
    hurry(worker)
    worker.start()
    start, refusals = threading.Thread.start, ["can't start new thread"] if no_thread else []

    def refuse_once(thread: threading.Thread) -> None:
        if refusals and thread.name.startswith(queue.worker_id):
            raise RuntimeError(refusals.pop())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    try:
        assert hangs.wait(PATIENCE)
        if not no_thread:
            (run,) = worker._partitions._runs.values()
            run.hold.claim.end()
        bench.clock.advance(26)
        eventually(lambda: worker.stats()["lost"] == 1)
        eventually(lambda: len(worker._partitions) == 0)
        bench.clock.advance(60)
        eventually(lambda: worker.stats()["succeeded"] == 1)
    finally:
        let_go.set()
        assert worker.stop(PATIENCE)

    record = queue.outcome_of(path)
    assert [attempt.failure and attempt.failure.type for attempt in record.attempts] == ["LeaseExpired", None]
    assert worker._busy == 0


def test_a_worker_that_stops_gives_its_partition_back(bench):
    queue = bench.queue(concurrency=1)
    for number in range(50):
        queue.enqueue(json.dumps(number), group="a")
    started, told, ran = threading.Event(), threading.Event(), []

    def handler(number):
        ran.append(number)
        started.set()
        told.wait(PATIENCE)

    worker = Worker(queue, handler, sweep=False)
    hurry(worker)
    worker.start()
    assert started.wait(PATIENCE)
    worker._stopping.set()
    told.set()
    assert worker.stop(PATIENCE)

    assert ran == [0]
    assert bench.keys("orders/leases/") == []
    assert len(bench.keys("orders/messages/")) == 49


def test_a_heartbeat_keeps_a_partition_whose_lease_is_old(bench):
    queue, other = bench.queue(), bench.queue(worker_id="other")
    queue.enqueue(b"1", group="a")
    hold = hold_partition(queue.leases, "@a")
    heartbeat = HeartbeatWriter(queue)
    heartbeat.hold(hold.claim)
    for _ in range(5):
        bench.clock.advance(10)
        assert heartbeat.beat({})

    assert hold_partition(other.leases, "@a") is None
    assert hold.claim.is_alive()


def _runner(bench, queue, handler):
    definition = Definition("orders", queue.settings)
    definition.handler(handler)
    return InvocationRunner(queue, definition)


def _invoke(bench, runner, *paths, limit=60.0):
    end = bench.clock.monotonic() + limit
    told = [Notification(path=path, notified_at=bench.clock.now()) for path in paths]
    return runner.run(told, lambda: end - bench.clock.monotonic())


def test_a_function_runs_the_whole_partition_that_one_event_names(bench):
    queue, seen = bench.queue(), []
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(5)]
    runner = _runner(bench, queue, seen.append)

    assert _invoke(bench, runner, paths[3]) == {"completed": 5}
    assert _invoke(bench, runner, paths[4]) == {"not claimed": 1}
    assert seen == list(range(5))


def test_a_function_that_runs_out_of_time_asks_for_someone_to_go_on(bench):
    queue, seen = bench.queue(handler_timeout=5, visibility_timeout=30), []
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(30)]

    def handler(number):
        seen.append(number)
        bench.clock.advance(2)

    counts = _invoke(bench, _runner(bench, queue, handler), paths[0], limit=20)

    assert 0 < counts["completed"] < 30
    assert bench.keys("orders/leases/") == []
    dispatched: list[str] = []
    bench.clock.advance(2)
    bench.sweeper(queue, dispatched).sweep()
    assert [path.startswith("messages/@a/") for path in dispatched] == [True]
    assert _invoke(bench, _runner(bench, queue, seen.append), dispatched[0])["completed"] == 30 - counts["completed"]
    assert seen == list(range(30))


def test_the_lease_of_a_function_never_runs_out_between_two_messages(bench):
    queue = bench.queue(handler_timeout=10, visibility_timeout=12)
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(8)]

    def handler(number):
        bench.clock.advance(9)

    assert _invoke(bench, _runner(bench, queue, handler), paths[0], limit=1000) == {"completed": 8}


def test_the_sweeper_hands_over_a_partition_whose_holder_died(bench):
    queue = bench.queue()
    path = queue.enqueue(b"1", group="a")
    assert hold_partition(queue.leases, "@a")
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    sweeper.sweep()
    assert dispatched == []

    bench.clock.advance(40)
    sweeper.sweep()
    assert dispatched == ["messages/@a/"]
    seen: list[int] = []
    bench.processor(bench.queue(), seen.append).run(dispatched[0])
    assert seen == [1]
    assert queue.outcome_of(path).outcome == "completed"


def test_the_sweeper_hands_over_each_partition_once_whose_events_were_lost(bench):
    queue = bench.queue()
    for number in range(20):
        queue.enqueue(json.dumps(number), group="ab"[number % 2])
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    sweeper.sweep()
    assert dispatched == []

    bench.clock.advance(61)
    sweeper.sweep()
    assert sorted(dispatched) == ["messages/@a/", "messages/@b/"]


def test_the_sweeper_hands_over_a_retry_whose_reminder_was_lost(bench):
    queue = bench.queue(retry_base=100)
    path = queue.enqueue(b"1", group="a")

    def fails(body):
        raise ValueError("not yet")

    bench.processor(queue, fails).run(path)
    for key in bench.keys("orders/retries/"):
        bench.memory.delete(key)
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    for _ in range(5):
        bench.clock.advance(50)
        sweeper.sweep()
    assert "messages/@a/" in dispatched


def test_a_queue_without_partitions_asks_nothing_more(bench):
    queue = bench.queue(concurrency=1)
    queue.enqueue(b"1")
    Worker(queue, lambda body: None, sweep=False).run_until_empty()
    assert not [key for verb, key in bench.store.log if "@" in key]


def test_a_heartbeat_keeps_no_partition_whose_lease_ran_out_while_a_message_was_read(bench):
    """Else nobody would ever take it over.  [P6]"""
    queue = bench.queue()
    path = queue.enqueue(json.dumps("x"), group="a")
    heartbeat = HeartbeatWriter(queue)
    processor = bench.processor(queue, lambda body: None)
    runs = PartitionRuns(processor, heartbeat, count=lambda ending: None, is_wanted=lambda: True)

    def around(operation, key, perform):
        if operation == "get" and key == f"orders/{path}":
            bench.clock.advance(40)
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    runs.work(path)

    assert len(heartbeat) == len(runs) == 0


def test_partitions_can_be_changed_while_messages_lie_there(bench):
    enqueued: set[int] = set()
    for number, partitions in enumerate((0, 8, 3, 0, 1)):
        queue = bench.queue(partitions=partitions)
        for one in range(20):
            queue.enqueue(json.dumps(100 * number + one))
            enqueued.add(100 * number + one)
    seen: list[int] = []

    Worker(bench.queue(concurrency=3, partitions=2), seen.append, sweep=False).run_until_empty()

    assert sorted(seen) == sorted(enqueued)
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_ordinary_messages_have_their_turn_beside_a_partition_that_is_never_empty(bench):
    # Longer than all handlers take: whether the heartbeat's thread gets its turn is not the question here.
    queue, seen = bench.queue(concurrency=1, visibility_timeout=900), []
    for number in range(3):
        queue.enqueue({"number": number}, group="busy")
    queue.enqueue({"number": "plain"})

    def handler(body):
        seen.append(body["number"])
        bench.clock.advance(12)
        if body["number"] != "plain" and len(seen) < 40:
            queue.enqueue({"number": len(seen)}, group="busy")

    worker = Worker(queue, handler, sweep=False)
    hurry(worker)
    worker.run_until_empty()

    assert seen.index("plain") < 12


def test_a_thread_that_was_replaced_takes_no_partition_again(bench):
    """[P6] Its handler returns just when another thread has given the partition up, and is about to forget it."""
    queue, called = bench.queue(), []
    path = queue.enqueue(b"1", group="a")

    def handler(body):
        called.append(body)
        if len(called) > 1:
            return
        (run,) = runs._runs.values()
        run.hold.claim.end()
        run.is_over = True
        bench.memory.delete("orders/leases/@a")

    runs = PartitionRuns(
        bench.processor(queue, handler),
        HeartbeatWriter(queue),
        count=lambda ending: None,
        is_wanted=lambda: not called,
    )
    runs.work(path)

    assert called == [1]
    assert bench.keys("orders/leases/") == []


def test_what_no_handler_may_raise_does_not_keep_a_partition_for_ever(bench):
    """A thread that dies of it leaves nobody behind who would end the messages that its heartbeat names."""
    queue = bench.queue()
    path = queue.enqueue(b"1", group="a")

    def interrupts(body):
        raise KeyboardInterrupt

    heartbeat = HeartbeatWriter(queue)
    runs = PartitionRuns(
        bench.processor(queue, interrupts), heartbeat, count=lambda ending: None, is_wanted=lambda: True
    )
    with pytest.raises(KeyboardInterrupt):
        runs.work(path)

    assert len(runs) == len(heartbeat) == 0


@pytest.mark.parametrize("options", [{}, {"breaker": {"failures": 1, "pause_seconds": 30}}])
def test_a_payload_that_cannot_be_parsed_dies_and_its_group_goes_on(bench, options):
    queue, seen, counts = bench.queue(**options), [], []

    def handler(body: dict) -> None:
        seen.append(body)

    bench.put("orders/messages/@a/1", b"not json")
    bench.put("orders/messages/@a/2", b'{"n": 2}')
    rounds = iter(range(100))  # it was tried again and again, at once, and no attempt counted
    stop = lambda: next(rounds, None) is None  # noqa: E731

    run_partition(bench.processor(queue, handler), "@a", should_stop=stop, count=counts.append)

    assert seen == [{"n": 2}]
    assert counts == ["dead", "completed"]
    assert queue.outcome_of("messages/@a/1").failure.type == "Reject"


@pytest.mark.parametrize("group", ["a", None], ids=["of a group", "of a share"])
def test_no_thread_takes_a_message_of_a_partition_that_is_about_to_be_given_up(bench, group):
    """[P2] [P9] A commit was due because little time was left, and when it began, there was enough for one more."""
    queue = bench.queue(concurrency=2, partitions=0 if group else 1)
    for number in (1, 2):
        path = queue.enqueue(json.dumps(number), group=group)
    partition = partition_of(path)
    heartbeat = HeartbeatWriter(queue)
    hold = hold_partition(queue.leases, partition)
    heartbeat.hold(hold.claim)
    ran, endings, begun, go_on = [], [], threading.Event(), threading.Event()

    def handler(number):
        ran.append(number)
        if len(ran) == 1:
            bench.clock.advance(7)
        else:
            begun.set()
            assert go_on.wait(PATIENCE)

    helper = threading.Thread(target=lambda: run.work(), daemon=True)

    def should_stop():
        if run._is_advancing and not helper.ident:
            assert heartbeat.beat({})
            helper.start()
            if not begun.wait(0.2):
                go_on.set()
        return False

    run = PartitionRun(bench.processor(queue, handler), hold, should_stop=should_stop, count=endings.append)
    run.work()
    if begun.is_set():
        assert hold_partition(bench.queue(worker_id="other").leases, partition) is None, "its handler runs"
    go_on.set()
    helper.join(PATIENCE)

    assert len(ran) == 2
    assert endings == ["completed", "completed"]
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_partition_whose_retry_hung_is_found_again_as_any_other(bench):
    """The worker had noted the path of the retry, and forgot that of the partition: it seemed to be at work on it."""
    queue = bench.queue(concurrency=1, handler_timeout=25, retry_base=1, max_attempts=2)
    queue.enqueue(b"1", group="a")
    hangs, let_go, ran = threading.Event(), threading.Event(), []

    def handler(number):
        ran.append(number)
        if ran == [1]:
            raise ValueError("once more")
        if ran == [1, 1]:
            hangs.set()
            let_go.wait(PATIENCE)

    worker = Worker(queue, handler, sweep=False)
    pauses = hurry(worker)
    worker.start()
    try:
        eventually(worker._retries.wait)
        # Until then, no LIST: the worker's own note of the retry has to lead to it.
        refill, worker._backlog.refill = worker._backlog.refill, lambda in_hand: 0
        pauses.wait_for_all(2)
        bench.clock.advance(worker._retries.wait() + 1)
        assert hangs.wait(PATIENCE)
        worker._backlog.refill = refill
        bench.clock.advance(26)
        eventually(lambda: worker.stats()["dead"] == 1 and worker.stats()["running"] == 0)
        queue.enqueue(b"2", group="a")
        eventually(lambda: bench.clock.advance(1) or ran == [1, 1, 2])
        eventually(lambda: not worker._busy)
        assert not worker._in_hand
    finally:
        let_go.set()
        assert worker.stop(PATIENCE)
