"""Expired leases: what a silent worker left is tried again, buried, or finished, once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from s3queue import Unavailable
from s3queue.documents.lease import NEVER, Lease
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.liveness import HeartbeatWriter
from support.killed_store import Killed
from support.workbench import Workbench


def cut_at(bench: Workbench, operation: str, part: str) -> Callable[..., Any]:
    """The power fails before the first such request."""

    def around(verb: str, key: str, perform: Callable[[], Any]) -> Any:
        if verb == operation and part in key:
            raise Killed
        return perform()

    bench.around = around
    return around


def test_a_message_whose_worker_fell_silent_is_tried_again(bench, queue, dispatched):  # [P6]
    path = queue.enqueue(b"x")
    queue.claim(path)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"), dispatched)
    bench.clock.advance(32)
    assert sweeper.sweep().endings == {}

    bench.clock.advance(1)
    report = sweeper.sweep()
    assert (report.endings, report.due) == ({"retried": 1}, 1)

    lease = queue.status(path).lease
    assert (lease.state, lease.attempt, lease.failure.type) == ("waiting", 1, "LeaseExpired")
    assert queue.worker_id in lease.failure.message
    # At once: the visibility timeout was the wait.
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
    with pytest.raises(Killed):
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
    with pytest.raises(Killed):
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
    with pytest.raises(Killed):
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


def test_the_loss_of_a_replayed_message_is_recorded_although_equal_bytes_had_died(bench, queue):  # [P1]
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "once", dead=True)
    bench.clock.advance(5)
    DeadLetters(queue).replay(path)
    queue.fail(queue.claim(path), "again")
    bench.memory.delete(f"orders/{path}")
    bench.clock.advance(60)

    assert queue.claim(path, read_first=True) is None
    assert not bench.keys("orders/leases/")
    assert queue.status(path).record.failure.type == "MessageVanished"


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


def test_a_heartbeat_counts_by_its_own_time_however_low_the_timeout_is_by_now(bench):  # [P2]
    queue = bench.queue(worker_id="beats", visibility_timeout=30)
    path = queue.enqueue(b"x")
    claim = queue.claim(path, timeout=5)
    heartbeat = HeartbeatWriter(queue)
    heartbeat.hold(claim)
    assert heartbeat.beat({})
    bench.clock.advance(9)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper", visibility_timeout=1))

    assert not sweeper.sweep().endings
    assert claim.is_alive()

    bench.clock.advance(25)
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


def wait_for_ever(bench, path):
    lease = Lease(state="waiting", attempt=1, owner="w", nonce="1", timeout=timedelta(seconds=30), retry_at=NEVER)
    bench.put(f"orders/leases/{path}", lease.to_bytes())


def test_a_lease_that_waits_for_ever_stops_nobody_however_long_the_visibility_timeout_is(bench, dispatched):  # [P6]
    queue = bench.queue(visibility_timeout=2 * 86400)
    for name in ("a", "b"):
        queue.enqueue(b"x", name=name)
    wait_for_ever(bench, "messages/a")
    assert queue.claim("messages/b")
    sweeper = bench.sweeper(queue, dispatched)
    for _ in range(3):
        bench.clock.advance(86400)
        report = sweeper.tick()
        assert report.error is None

    assert report.endings == {"retried": 1}
    assert dispatched == ["messages/b"]


def test_an_unexpected_error_about_one_lease_is_reported_and_keeps_no_other_from_its_check(bench, queue, dispatched):
    for name in ("a", "b"):
        assert queue.claim(queue.enqueue(b"x", name=name))
    sweeper = bench.sweeper(queue, dispatched)
    bench.clock.advance(60)

    def break_down(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "get" and key == "orders/leases/messages/a":
            raise ZeroDivisionError("a bug")
        return perform()

    bench.around = break_down
    report = sweeper.tick()

    assert report.endings == {"retried": 1}
    assert isinstance(report.error, ZeroDivisionError)
    assert dispatched == ["messages/b"]


@pytest.mark.parametrize("max_attempts", [2, 3])
def test_what_had_an_outcome_is_not_called_dead_because_its_record_is_gone(bench, dispatched, max_attempts):
    """[P3] A lease that was taken over to clear a completed message does not say that it died: it runs again."""
    queue = bench.queue(max_attempts=max_attempts)
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "once")
    bench.clock.advance(60)
    cut_at(bench, "delete", "orders/messages/")
    with pytest.raises(Killed):
        queue.complete(queue.claim(path, read_first=True), "done")
    bench.clock.advance(60)
    sweeper = bench.sweeper(queue, dispatched)
    with pytest.raises(Killed):
        sweeper.sweep()
    bench.around = None
    assert queue.status(path).lease.state == "burying"
    bench.memory.delete(f"orders/records/{path}")
    bench.clock.advance(60)

    assert sweeper.sweep().endings == {"retried": 1}

    assert path in dispatched
    claim = queue.claim(path, read_first=True)
    assert claim.attempt == 2
    assert queue.complete(claim, "again").outcome == "completed"
    assert bench.keys("orders/dead/") == bench.keys("orders/messages/") == []


def test_what_died_stays_dead_for_its_reason_also_if_its_record_is_gone(bench):
    """[P3] Whoever takes a burial over keeps the reason."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"x")
    cut_at(bench, "copy", "orders/dead/")
    with pytest.raises(Killed):
        queue.fail(queue.claim(path), ValueError("broken"))
    bench.clock.advance(60)
    sweeper = bench.sweeper(queue)
    with pytest.raises(Killed):
        sweeper.sweep()
    bench.around = None
    bench.memory.delete(f"orders/records/{path}")
    bench.clock.advance(60)

    assert sweeper.sweep().endings == {"dead": 1}

    assert queue.status(path).record.failure.type == "ValueError"
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]
