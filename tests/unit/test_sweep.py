"""The sweeper: whatever was forgotten is found, within a budget, and twice at once does no harm."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from s3queue import Unavailable
from s3queue.documents.lease import Lease
from s3queue.protocol.liveness import HeartbeatWriter
from support.workbench import Workbench, next_tick


@pytest.fixture
def bench():
    return Workbench()


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def dispatched():
    return []


class PowerCut(BaseException):
    """The process is gone: nothing that would clean up after an exception may run."""


def cut_at(bench: Workbench, operation: str, part: str) -> Callable[..., Any]:
    """The power fails before the first such request."""

    def around(verb: str, key: str, perform: Callable[[], Any]) -> Any:
        if verb == operation and part in key:
            raise PowerCut
        return perform()

    bench.around = around
    return around


# Expired leases


def test_a_message_whose_worker_fell_silent_is_tried_again(bench, queue, dispatched):  # [P6]
    path = queue.enqueue(b"x")
    queue.claim(path)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"), dispatched)
    bench.clock.advance(32)
    assert sweeper.sweep().endings == {}

    bench.clock.advance(1)
    assert sweeper.sweep().endings == {"retried": 1}

    lease = queue.status(path).lease
    assert (lease.state, lease.attempt, lease.failure.type) == ("waiting", 1, "LeaseExpired")
    assert queue.worker_id in lease.failure.message
    bench.clock.advance(2)
    assert sweeper.sweep().due == 1
    assert dispatched == [path]
    assert queue.claim(path, read_first=True).attempt == 2


def test_a_message_whose_workers_always_fall_silent_is_dead_after_its_last_attempt(bench, dispatched):  # [P1] [P5]
    queue = bench.queue(max_attempts=2)
    path = queue.enqueue(b"poison")
    sweeper = bench.sweeper(queue, dispatched)
    for read_first in (False, True):
        assert queue.claim(path, read_first=read_first)
        bench.clock.advance(60)
        sweeper.sweep()
        bench.clock.advance(10)

    record = queue.status(path).record
    assert record.outcome == "dead"
    assert [attempt.failure.type for attempt in record.attempts] == ["LeaseExpired", "LeaseExpired"]
    assert bench.read(f"orders/dead/{path}") == b"poison"
    assert not bench.keys("orders/messages/")
    assert not bench.keys("orders/leases/")


@pytest.mark.parametrize(
    ("operation", "part"),
    [("delete", "orders/messages/"), ("delete", "orders/leases/")],
)
def test_a_crash_after_the_record_is_finished_and_never_run_again(bench, queue, operation, part):  # [P4] [P6]
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    cut_at(bench, operation, part)
    with pytest.raises(PowerCut):
        queue.complete(claim, "done")
    bench.around = None
    bench.clock.advance(60)

    report = bench.sweeper(queue).sweep()

    assert sum(report.endings.values()) == 1
    assert set(report.endings) <= {"finished", "gone"}
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    assert queue.status(path).record.result == "done"


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ("put", "orders/records/"),
        ("copy", "orders/dead/"),
        ("delete", "orders/messages/"),
        ("delete", "orders/leases/"),
    ],
)
def test_a_crash_in_a_burial_is_buried_on_with_its_own_error(bench, operation, part):  # [P1] [P6]
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"payload")
    claim = queue.claim(path)
    cut_at(bench, operation, part)
    with pytest.raises(PowerCut):
        queue.fail(claim, ValueError("the real reason"))
    bench.around = None
    bench.clock.advance(60)

    bench.sweeper(bench.queue(worker_id="sweeper", max_attempts=1)).sweep()

    assert queue.status(path).record.failure.message == "the real reason"
    assert bench.read(f"orders/dead/{path}") == b"payload"
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_crash_between_a_failure_and_its_reminder_only_makes_it_late(bench, queue, dispatched):  # [P6]
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    cut_at(bench, "put", "orders/retries/")
    with pytest.raises(PowerCut):
        queue.fail(claim, "once")
    bench.around = None
    assert not bench.keys("orders/retries/")
    bench.clock.advance(60)

    assert bench.sweeper(queue, dispatched).sweep().due == 1
    assert dispatched == [path]


def test_a_lease_with_a_longer_timeout_of_its_own_is_left_alone(bench, queue):  # [P2]
    path = queue.enqueue(b"x")
    claim = queue.claim(path, timeout=600)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))
    for _ in range(9):
        bench.clock.advance(60)
        assert sweeper.sweep().endings == {}
    bench.clock.advance(70)
    assert sweeper.sweep().endings == {"retried": 1}
    assert not claim.is_alive()


def test_a_message_that_was_put_anew_under_an_expired_lease_starts_again_at_one(bench, queue, dispatched):  # [P5]
    path = queue.enqueue(b"old", name="report")
    queue.fail(queue.claim(path), "once")
    bench.clock.advance(2)
    queue.claim(path, read_first=True)
    bench.memory.put(f"orders/{path}", b"new")
    bench.clock.advance(60)

    assert bench.sweeper(queue, dispatched).sweep().endings == {"restarted": 1}
    bench.clock.advance(2)
    claim = queue.claim(path, read_first=True)
    assert (claim.attempt, claim.message.body) == (1, b"new")


def test_a_lease_whose_message_is_gone_is_removed_and_the_loss_is_recorded(bench, queue):  # [P1]
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "once")
    bench.clock.advance(2)
    queue.claim(path, read_first=True)
    bench.memory.delete(f"orders/{path}")
    bench.clock.advance(60)

    assert bench.sweeper(queue).sweep().endings == {"gone": 1}
    assert not bench.keys("orders/leases/")
    assert queue.status(path).record.failure.type == "MessageVanished"


# Heartbeats


def test_a_lease_lives_as_long_as_its_owners_heartbeat_names_it(bench, queue):  # [P2]
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    heartbeat = HeartbeatWriter(queue, queue.settings.visibility_timeout)
    heartbeat.hold(claim)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))
    for _ in range(30):
        bench.clock.advance(10)
        assert heartbeat.beat({})
        assert sweeper.sweep().endings == {}

    bench.clock.advance(33)
    assert sweeper.sweep().endings == {"retried": 1}


def test_a_lease_that_its_living_owner_forgot_runs_out(bench, queue):
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    heartbeat = HeartbeatWriter(queue, queue.settings.visibility_timeout)
    heartbeat.hold(claim)
    heartbeat.beat({})
    heartbeat.drop(claim)
    for _ in range(4):
        bench.clock.advance(10)
        heartbeat.beat({})

    assert bench.sweeper(bench.queue(worker_id="sweeper")).sweep().endings == {"retried": 1}


def test_a_thousand_leases_of_one_living_worker_cost_a_sweep_one_read(bench, queue):
    heartbeat = HeartbeatWriter(queue, queue.settings.visibility_timeout)
    for _ in range(1000):
        heartbeat.hold(queue.claim(queue.enqueue(b"x")))
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))
    for _ in range(4):
        bench.clock.advance(15)
        heartbeat.beat({})
    sweeper.sweep()  # reads each of them once
    bench.store.take()

    bench.clock.advance(15)
    heartbeat.beat({})
    assert sweeper.sweep().endings == {}

    assert bench.store.take().get("get", 0) <= 2


def test_silent_workers_are_forgotten_and_living_ones_are_not(bench, queue):
    silent, living = (
        HeartbeatWriter(bench.queue(worker_id="silent"), timedelta(seconds=30)),
        HeartbeatWriter(queue, timedelta(seconds=30)),
    )
    silent.beat({})
    bench.clock.advance(601)
    living.beat({})

    report = bench.sweeper(queue).sweep()

    assert report.removed == 1
    assert bench.keys("orders/workers/") == [f"orders/workers/{queue.worker_id}"]


# What is due


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


# Lost events


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


def test_a_folder_placeholder_is_no_orphan(bench, queue, dispatched):
    bench.memory.put("orders/messages/", b"")
    bench.memory.put("orders/messages/2026/", b"")
    bench.clock.advance(600)

    assert bench.sweeper(queue, dispatched).sweep().orphans == 0
    assert dispatched == []


# Pause


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


# What is left behind


def test_dead_letters_past_their_retention_go_even_from_an_idle_queue(bench, dispatched):
    queue = bench.queue(dead_retention=1000, max_attempts=1)
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "no")
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    bench.clock.advance(900)
    sweeper.sweep()
    assert bench.keys("orders/dead/")

    bench.clock.advance(3600)
    sweeper.sweep()
    assert not bench.keys("orders/dead/")


def test_stale_locks_go_and_fresh_ones_stay(bench, queue):
    bench.memory.put("orders/locks/old", b"{}")
    bench.clock.advance(timedelta(days=1, seconds=1))
    bench.memory.put("orders/locks/fresh", b"{}")

    assert bench.sweeper(queue).sweep().removed == 1
    assert bench.keys("orders/locks/") == ["orders/locks/fresh"]


# Budget, report, twice at once


def test_an_idle_sweeper_that_is_asked_every_few_seconds_costs_nothing_between_sweeps(bench, queue):
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    bench.store.take()

    for _ in range(12):
        bench.clock.advance(5)
        assert next_tick(sweeper) is None

    assert bench.store.take() == {"list": 2}


def test_a_sweep_keeps_within_its_budget_of_requests_and_the_next_one_goes_on(bench, queue):
    for _ in range(60):
        queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(60)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))
    freed = []
    for _ in range(20):
        bench.store.take()
        report = sweeper.sweep(requests=50)
        # Settings and the published count come on top.
        assert sum(bench.store.take().values()) <= 52
        freed.append(report.endings.get("retried", 0))
        if report.complete:
            break

    assert sum(freed) == 60
    assert report.complete
    assert max(freed) < 12


def test_leases_that_cannot_be_decided_do_not_use_up_every_budget(bench, queue):
    for number in range(40):
        bench.memory.put(f"orders/messages/{number:03d}", b"x")
        bench.memory.put(f"orders/leases/messages/{number:03d}", b'{"v":99}')
    path = queue.enqueue(b"x", name="last")
    queue.claim(path)
    bench.clock.advance(60)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))

    freed = sum(sweeper.sweep(requests=60).endings.get("retried", 0) for _ in range(8))

    assert freed == 1


def test_a_sweep_keeps_within_its_budget_of_time(bench, queue):
    for _ in range(60):
        queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(60)

    def slow(operation, key, perform):
        bench.clock.advance(0.5)
        return perform()

    bench.around = slow
    began = bench.clock.monotonic()
    report = bench.sweeper(bench.queue(worker_id="sweeper")).sweep(seconds=20)

    assert not report.complete
    assert bench.clock.monotonic() - began < 25
    assert 0 < report.endings["retried"] < 60


def test_leases_that_need_reading_do_not_keep_due_messages_waiting(bench, dispatched):
    queue = bench.queue()
    for _ in range(100):
        queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(40)
    due = queue.enqueue(b"x", delay=1)
    bench.clock.advance(60)
    orphan = queue.enqueue(b"x")
    bench.clock.advance(60)

    report = bench.sweeper(bench.queue(worker_id="sweeper"), dispatched).sweep(requests=20)

    assert not report.complete
    assert {due, orphan} <= set(dispatched)


def test_a_sweep_out_of_its_budget_among_the_messages_goes_on_from_there(bench, dispatched):
    queue = bench.queue(concurrency=100)
    paths = {queue.enqueue(b"x") for _ in range(3500)} | {queue.enqueue(b"x", delay=1) for _ in range(1500)}
    bench.clock.advance(61)
    sweeper = bench.sweeper(queue, dispatched)
    reports = [sweeper.sweep(requests=5) for _ in range(6)]

    assert set(dispatched) == paths
    assert not reports[0].complete
    assert not reports[0].stats.exact
    assert any(report.complete for report in reports)


def test_a_count_that_began_in_the_middle_does_not_claim_to_be_exact(bench, queue):
    for _ in range(2500):
        queue.enqueue(b"x")
    sweeper = bench.sweeper(queue)
    first, second = sweeper.sweep(requests=3), sweeper.sweep(requests=100)

    assert (first.complete, first.stats.exact) == (False, False)
    assert (second.complete, second.stats.exact) == (True, False)
    third = sweeper.sweep(requests=100)
    assert (third.stats.pending, third.stats.exact) == (2500, True)


@pytest.mark.parametrize("budget", [{"requests": 0}, {"seconds": 0}, {"requests": 1}])
def test_a_budget_of_nothing_is_no_error(bench, queue, budget):
    queue.claim(queue.enqueue(b"x"))

    assert not bench.sweeper(queue).sweep(**budget).complete


def test_two_sweepers_at_once_count_an_expired_lease_as_one_attempt(bench):  # [P5]
    queue = bench.queue(max_attempts=3)
    paths = [queue.enqueue(b"x") for _ in range(5)]
    for path in paths:
        queue.claim(path)
    bench.clock.advance(60)
    second = bench.sweeper(bench.queue(worker_id="second"))
    depth = []

    def interleaved(operation, key, perform):
        # Before each of its writes the first sweeper is overtaken by a whole sweep of the second.
        if operation == "put" and "/leases/" in key and not depth:
            depth.append(1)
            second.sweep()
            depth.clear()
        return perform()

    bench.around = interleaved
    report = bench.sweeper(bench.queue(worker_id="first")).sweep()
    bench.around = None

    assert (report.races, report.endings) == (1, {})
    for path in paths:
        lease = queue.status(path).lease
        assert (lease.attempt, len(lease.attempts)) == (1, 1)


def test_two_sweepers_at_once_bury_once(bench):  # [P3]
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"x")
    queue.claim(path)
    bench.clock.advance(60)
    second = bench.sweeper(bench.queue(worker_id="second", max_attempts=1))
    depth = []

    def interleaved(operation, key, perform):
        if not depth:
            depth.append(1)
            second.sweep()
            depth.clear()
        return perform()

    bench.around = interleaved
    bench.sweeper(bench.queue(worker_id="first", max_attempts=1)).sweep()
    bench.around = None

    assert bench.keys("orders/") == [f"orders/dead/{path}", f"orders/records/{path}", "orders/stats.json"]


def test_one_message_that_cannot_be_repaired_does_not_stop_the_others(bench, queue):
    paths = [queue.enqueue(b"x") for _ in range(3)]
    for path in paths:
        queue.claim(path)
    bench.clock.advance(60)

    def refuse(operation, key, perform):
        if operation == "head" and paths[1] in key:
            raise Unavailable("no answer")
        return perform()

    bench.around = refuse
    report = bench.sweeper(queue).sweep()

    assert report.endings == {"retried": 2}
    assert not report.complete


def test_a_sweep_publishes_what_it_counted_for_everyone(bench, queue):
    queue.enqueue(b"x")
    queue.enqueue(b"x", delay=600)
    queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(7)

    report = bench.sweeper(queue).sweep()

    stats = bench.queue(worker_id="another process").published_stats()
    assert stats == report.stats
    assert (stats.pending, stats.delayed, stats.processing, stats.oldest_seconds) == (1, 1, 1, 7.0)


def test_a_sweep_publishes_how_many_it_rescued_within_the_hour(bench, queue):
    sweeper = bench.sweeper(queue)
    reader = bench.queue(worker_id="another process")
    for _ in range(2):
        queue.enqueue(b"x")
    sweeper.sweep()
    assert reader.published_stats().rescued == 0

    bench.clock.advance(60)
    sweeper.sweep()
    assert reader.published_stats().rescued == 2

    queue.purge()
    bench.clock.advance(60)
    sweeper.sweep()
    assert reader.published_stats().rescued == 2, "it is idle by now, and has not forgotten"

    bench.clock.advance(3600)
    queue.enqueue(b"x")
    sweeper.sweep()
    assert reader.published_stats().rescued == 0


def test_a_report_can_be_read_by_machines(bench, queue):
    queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(60)

    report = bench.sweeper(queue).sweep().to_json()

    assert report["queue"] == "orders"
    assert report["endings"] == {"retried": 1}
    assert report["complete"] is True
    assert report["requests"] > 0


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
