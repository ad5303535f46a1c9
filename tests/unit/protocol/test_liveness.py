"""Liveness: one heartbeat keeps all that its worker holds, and nothing that it forgot.  [P2]"""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from s3queue import Unavailable
from s3queue.documents.lease import GRAIN
from s3queue.documents.run_documents import Manifest
from s3queue.protocol.liveness import HeartbeatWriter, LiveOwners

TTL = timedelta(seconds=30)


@pytest.fixture
def heartbeat(queue):
    return HeartbeatWriter(queue, TTL)


def key_of(queue) -> str:
    return f"orders/workers/{queue.worker_id}"


def claimed(queue, name: str = "one"):
    queue.enqueue(b"x", name=name)
    return queue.claim(f"messages/{name}")


def test_a_claim_that_is_dropped_late_does_not_take_another_one_of_its_name_along(bench):
    queue = bench.queue()
    queue.enqueue(b"1", name="one")
    first = queue.claim("messages/one")
    heartbeat = HeartbeatWriter(queue, timedelta(seconds=30))
    heartbeat.hold(first)
    queue.complete(first)
    queue.enqueue(b"2", name="one")
    second = queue.claim("messages/one")
    heartbeat.hold(second)

    heartbeat.drop(first)

    assert heartbeat.held() == [second]


def test_a_beat_names_all_that_is_held_with_one_put(bench, queue, heartbeat):
    for number in range(100):
        heartbeat.hold(claimed(queue, f"m{number:02d}"))
    bench.store.take()

    assert heartbeat.beat({"succeeded": 3})

    assert bench.store.take() == {"put": 1}
    written = json.loads(bench.read(key_of(queue)))
    assert written["holds"] == [f"messages/m{number:02d}" for number in range(100)]
    assert (written["worker"], written["stats"], written["ttl_seconds"]) == (queue.worker_id, {"succeeded": 3}, 30)


def test_what_was_dropped_is_not_named_any_more(bench, queue, heartbeat):
    first, second = claimed(queue, "a"), claimed(queue, "b")
    heartbeat.hold(first)
    heartbeat.hold(second)
    heartbeat.beat({})
    heartbeat.drop(first)
    heartbeat.beat({})

    assert json.loads(bench.read(key_of(queue)))["holds"] == [second.path]
    assert len(heartbeat) == 1


def test_a_beat_moves_the_deadline_of_what_is_held(bench, queue, heartbeat):
    claim = claimed(queue)
    heartbeat.hold(claim)
    bench.clock.advance(29)
    assert heartbeat.beat({})

    assert claim.deadline == bench.clock.monotonic() + TTL.total_seconds()


def test_the_deadline_counts_from_before_the_beat_was_sent(bench, queue, heartbeat):
    claim = claimed(queue)
    heartbeat.hold(claim)
    sent_at = bench.clock.monotonic()

    def slow(operation, key, perform):
        bench.clock.advance(5)
        return perform()

    bench.around = slow
    assert heartbeat.beat({})

    assert claim.deadline == sent_at + TTL.total_seconds()


def test_a_beat_whose_answer_comes_after_the_deadline_revives_nothing(bench, queue, heartbeat):
    claim = claimed(queue)
    heartbeat.hold(claim)
    deadline = claim.deadline
    bench.clock.advance(29)

    def slow(operation, key, perform):
        bench.clock.advance(2)
        return perform()

    bench.around = slow
    assert heartbeat.beat({})

    assert claim.deadline == deadline
    assert not claim.is_alive()


def test_a_beat_never_takes_time_away_from_a_claim(bench, queue, heartbeat):
    queue.enqueue(b"x", name="one")
    claim = queue.claim("messages/one", timeout=3600)
    heartbeat.hold(claim)
    heartbeat.beat({})

    assert claim.deadline == bench.clock.monotonic() + 3600


def test_a_beat_that_could_not_be_written_says_so_and_keeps_nothing(bench, queue, heartbeat):
    claim = claimed(queue)
    heartbeat.hold(claim)
    deadline = claim.deadline
    bench.clock.advance(10)

    def fail(operation, key, perform):
        raise Unavailable("503 SlowDown")

    bench.around = fail
    assert not heartbeat.beat({})

    assert claim.deadline == deadline


def test_a_beat_whose_answer_was_lost_counts_as_written(bench, queue, heartbeat):
    claim = claimed(queue)
    heartbeat.hold(claim)
    bench.clock.advance(10)
    lost = []

    def lose_one(operation, key, perform):
        answer = perform()
        if operation == "put" and not lost:
            lost.append(key)
            raise Unavailable("time-out")
        return answer

    bench.around = lose_one
    assert heartbeat.beat({})
    bench.around = None

    assert lost == [key_of(queue)]
    assert claim.deadline == bench.clock.monotonic() + TTL.total_seconds()
    assert heartbeat.beat({})


def test_a_worker_whose_heartbeat_was_swept_away_goes_on_with_the_next_but_one(bench, queue, heartbeat):
    claim = claimed(queue)
    heartbeat.hold(claim)
    assert heartbeat.beat({})
    bench.memory.delete(key_of(queue))

    # It may have been judged dead meanwhile: this one promises nothing.
    assert not heartbeat.beat({})
    assert heartbeat.beat({})
    assert json.loads(bench.read(key_of(queue)))["holds"] == [claim.path]


def test_a_beat_never_overwrites_what_it_does_not_know(bench, queue, heartbeat):
    assert heartbeat.beat({})
    bench.put(key_of(queue), b"someone else's")

    assert not heartbeat.beat({})
    assert bench.read(key_of(queue)) == b"someone else's"


def test_two_beats_of_equal_content_are_two_different_objects(bench, queue, heartbeat):
    heartbeat.beat({})
    before = bench.read(key_of(queue))
    heartbeat.beat({})

    assert bench.read(key_of(queue)) != before


def test_a_heartbeat_of_a_run_names_the_run_and_no_list(bench, queue):
    heartbeat = HeartbeatWriter(queue, TTL, run="r1")
    heartbeat.hold(claimed(queue))
    heartbeat.beat({})

    written = json.loads(bench.read(key_of(queue)))
    assert (written["run"], written.get("holds", [])) == ("r1", [])


def test_a_worker_that_leaves_takes_its_heartbeat_along(bench, queue, heartbeat):
    heartbeat.beat({})
    heartbeat.end()
    assert bench.keys("orders/workers/") == []

    # It may come back.
    assert heartbeat.beat({})


def test_a_worker_leaves_also_while_the_store_is_silent(bench, queue, heartbeat):
    heartbeat.beat({})

    def fail(operation, key, perform):
        raise Unavailable("503 SlowDown")

    bench.around = fail
    heartbeat.end()


def test_an_owner_keeps_what_its_fresh_heartbeat_names_and_nothing_else(bench, queue, heartbeat):
    heartbeat.hold(claimed(queue))
    heartbeat.beat({})
    owners = LiveOwners(queue)

    assert owners.keep(queue.worker_id, "messages/one")
    assert not owners.keep(queue.worker_id, "messages/other")
    assert not owners.keep("nobody", "messages/one")


def test_a_heartbeat_is_fresh_for_its_own_ttl_and_s3s_grain(bench, queue, heartbeat):
    heartbeat.hold(claimed(queue))
    heartbeat.beat({})

    bench.clock.advance(TTL + GRAIN)
    assert LiveOwners(queue).keep(queue.worker_id, "messages/one")
    bench.clock.advance(1)
    assert not LiveOwners(queue).keep(queue.worker_id, "messages/one")


def test_an_owner_is_read_once_however_much_it_holds(bench, queue, heartbeat):
    for number in range(50):
        heartbeat.hold(claimed(queue, f"m{number}"))
    heartbeat.beat({})
    bench.store.take()
    owners = LiveOwners(queue)

    assert all(owners.keep(queue.worker_id, f"messages/m{number}") for number in range(50))
    assert bench.store.take() == {"get": 1}


def test_a_silent_owner_is_read_once_too(bench, queue):
    owners = LiveOwners(queue)

    assert not any(owners.keep("gone", f"messages/m{number}") for number in range(50))
    assert bench.store.take() == {"get": 1}


def test_a_reading_from_before_the_lease_was_over_is_not_believed(bench, queue, heartbeat):
    owners = LiveOwners(queue)
    early = bench.clock.now()
    assert not owners.keep(queue.worker_id, "messages/one", over_at=early, now=early)
    heartbeat.hold(claimed(queue))
    heartbeat.beat({})
    bench.clock.advance(10)
    over_at = bench.clock.now()
    bench.store.take()

    # The owner has claimed it since the first reading, and named it.
    assert owners.keep(queue.worker_id, "messages/one", over_at=over_at, now=over_at)
    assert bench.store.take() == {"get": 1}
    # This reading was late enough, for this lease and for every earlier one.
    assert owners.keep(queue.worker_id, "messages/one", over_at=early, now=over_at)
    assert owners.keep(queue.worker_id, "messages/one", over_at=over_at, now=over_at)
    assert bench.store.take() == {}


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"[]", b'{"v":1}', b'{"v":1,"worker":"w","ttl_seconds":"x"}'])
def test_a_heartbeat_of_garbage_keeps_nothing(bench, queue, garbage):
    bench.put("orders/workers/w", garbage)

    assert not LiveOwners(queue).keep("w", "messages/one")


def test_a_run_keeps_what_its_manifest_names(bench, queue):
    heartbeat = HeartbeatWriter(queue, TTL, run="r1")
    heartbeat.beat({})
    assert not LiveOwners(queue).keep(queue.worker_id, "messages/one")

    manifest = Manifest(
        run="r1", slot=0, state="running", opened_at=bench.clock.now(), paths=("messages/one",), started=0
    )
    bench.put(queue.keys.manifest("r1"), manifest.to_bytes())
    assert LiveOwners(queue).keep(queue.worker_id, "messages/one")
    assert not LiveOwners(queue).keep(queue.worker_id, "messages/other")


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"[]", b'{"v":1,"paths":7}'])
def test_a_manifest_of_garbage_keeps_nothing(bench, queue, garbage):
    HeartbeatWriter(queue, TTL, run="r1").beat({})
    bench.put(queue.keys.manifest("r1"), garbage)

    assert not LiveOwners(queue).keep(queue.worker_id, "messages/one")
