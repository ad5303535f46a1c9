"""How often a heartbeat is written, for how long it counts, and that its thread goes on whatever happens."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue import Unavailable
from s3queue.documents.heartbeat import Heartbeat
from s3queue.protocol.liveness import HeartbeatWriter, keep_beating


def _held(bench, **settings):
    queue = bench.queue(**settings)
    path = queue.enqueue(b"1")
    heartbeat = HeartbeatWriter(queue)
    heartbeat.beat({})
    return queue, path, heartbeat


def test_a_heartbeat_counts_for_as_long_as_the_settings_say_at_that_time(bench):
    queue, _, heartbeat = _held(bench, visibility_timeout=30, engine="pull")
    queue.configure(visibility_timeout=3)
    heartbeat.beat({})
    stored = Heartbeat.from_bytes(bench.read(f"orders/workers/{queue.worker_id}"), "")
    assert stored.ttl == timedelta(seconds=3)
    assert heartbeat.seconds_to_beat() == pytest.approx(1)


def test_a_lease_that_ends_before_the_next_heartbeat_is_named_in_time(bench):
    queue, path, heartbeat = _held(bench, visibility_timeout=30)
    assert heartbeat.seconds_to_beat() == pytest.approx(10)
    heartbeat.changed.clear()

    heartbeat.hold(queue.claim(path, timeout=3))

    assert heartbeat.changed.is_set()  # whoever waits for ten seconds is told
    assert heartbeat.seconds_to_beat() == pytest.approx(1)
    bench.clock.advance(1)
    assert heartbeat.beat({})
    assert heartbeat.seconds_to_beat() == pytest.approx(10)


def test_leases_as_long_as_the_heartbeat_cost_no_further_heartbeats(bench):
    queue, path, heartbeat = _held(bench, visibility_timeout=30)
    assert heartbeat.seconds_to_beat() == pytest.approx(10)
    bench.clock.advance(5)
    heartbeat.changed.clear()
    heartbeat.hold(queue.claim(path))
    assert not heartbeat.changed.is_set()
    assert heartbeat.seconds_to_beat() == pytest.approx(5)


def test_a_shorter_heartbeat_shortens_deadlines_before_it_is_sent(bench):  # [P2]
    queue, path, heartbeat = _held(bench, visibility_timeout=30, engine="pull")
    claim = queue.claim(path)
    heartbeat.hold(claim)
    bench.clock.advance(25)
    heartbeat.beat({})
    assert claim.remaining() == timedelta(seconds=30)
    bench.clock.advance(4)
    queue.configure(visibility_timeout=3)

    def answer_lost(operation, key, perform):
        perform()
        raise Unavailable("the answer was lost")

    bench.around = answer_lost
    assert not heartbeat.beat({})
    # Others read three seconds there, or the lease itself, which has one second left.
    assert claim.remaining() == timedelta(seconds=3)


def test_a_lease_that_was_written_for_longer_is_kept_for_longer_than_its_heartbeat(bench):
    queue, path, heartbeat = _held(bench, visibility_timeout=3)
    claim = queue.claim(path)
    heartbeat.hold(claim)
    heartbeat.beat({})
    queue.extend(claim, 100)
    heartbeat.beat({})
    assert claim.remaining() == timedelta(seconds=100)


def test_after_a_heartbeat_that_failed_the_next_one_comes_soon_but_not_at_once(bench):
    queue, path, heartbeat = _held(bench, visibility_timeout=30)
    heartbeat.hold(queue.claim(path))
    bench.clock.advance(10)

    def refuse(operation, key, perform):
        raise Unavailable("503")

    bench.around = refuse
    assert not heartbeat.beat({})
    assert heartbeat.seconds_to_beat() == pytest.approx(3)


def test_a_get_that_fails_after_a_conflict_is_a_heartbeat_that_was_not_written(bench):
    queue, _, heartbeat = _held(bench)
    bench.put(f"orders/workers/{queue.worker_id}", b"someone else's")

    def no_get(operation, key, perform):
        if operation == "get":
            raise Unavailable("503")
        return perform()

    bench.around = no_get
    assert not heartbeat.beat({})
    bench.around = None
    assert [heartbeat.beat({}), heartbeat.beat({})] == [False, True]


def test_the_thread_that_beats_survives_an_error_that_nobody_foresaw(bench, caplog):
    queue = bench.queue()
    heartbeat = HeartbeatWriter(queue)
    beats = []

    def beat():
        beats.append(1)
        if len(beats) == 1:
            raise ZeroDivisionError("a bug")
        heartbeat.beat({})

    keep_beating(heartbeat, beat, lambda: len(beats) == 2, bench.clock.sleep)

    assert "unexpected error in the heartbeat thread, continuing" in caplog.text
    assert bench.keys("orders/workers/") == [f"orders/workers/{queue.worker_id}"]


def test_what_another_thread_took_over_is_over_for_the_first(bench):  # [P2]
    queue, path, heartbeat = _held(bench)
    claim = queue.claim(path)
    heartbeat.hold(claim)

    other = heartbeat.take_over(claim)
    heartbeat.drop(claim)
    heartbeat.beat({})

    assert heartbeat.held() == [other]
    assert other.is_alive()
    assert not claim.is_alive()


def test_a_short_lease_that_is_written_anew_takes_nothing_from_what_the_heartbeat_gave(bench):  # [P2]
    """The timeout was raised since the claim: its lease is short, and the next heartbeat is far away."""
    queue, path, heartbeat = _held(bench, visibility_timeout=30)
    claim = queue.claim(path, timeout=2)
    heartbeat.hold(claim)
    assert heartbeat.beat({})
    bench.clock.advance(1)

    queue.extend(claim)

    assert claim.remaining() == timedelta(seconds=29)
    assert heartbeat.seconds_to_beat() == pytest.approx(9)


def test_a_lease_that_is_written_for_less_long_ends_sooner_where_no_heartbeat_names_it(bench):  # [P2]
    queue = bench.queue()
    claim = queue.claim(queue.enqueue(b"x"), timeout=100)
    queue.extend(claim, 3)
    assert claim.remaining() == timedelta(seconds=3)
