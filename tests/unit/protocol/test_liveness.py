"""Liveness: one heartbeat keeps all that its worker holds, and nothing that it forgot.  [P2]"""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from s3queue import Unavailable
from s3queue.documents.heartbeat import Heartbeat
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


def test_the_heartbeat_of_another_worker_with_the_same_id_is_not_replaced_while_it_counts(bench):  # [P2]
    """Each would leave out what the other one holds, and the sweeper would give that away."""
    queue, elsewhere = (bench.queue(worker_id="worker-7", visibility_timeout=TTL) for _ in range(2))
    first, second = HeartbeatWriter(queue), HeartbeatWriter(elsewhere)
    kept, other = claimed(queue, "kept"), claimed(elsewhere, "other")
    first.hold(kept)
    second.hold(other)
    for _ in range(6):
        assert first.beat({})
        assert not second.beat({})
        bench.clock.advance(10)

    assert (kept.is_alive(), other.is_alive()) == (True, False)
    assert LiveOwners(queue).keep("worker-7", kept.path)
    # The first one falls silent: once nothing counts that it wrote, the other one has the id to itself.
    bench.clock.advance(TTL + GRAIN)
    assert [second.beat({}), second.beat({})] == [False, True]
    assert not kept.is_alive()


def test_what_the_heartbeat_gave_is_over_when_another_worker_has_replaced_it(bench, queue, heartbeat, caplog):  # [P2]
    claim = claimed(queue)
    heartbeat.hold(claim)
    bench.clock.advance(20)
    assert heartbeat.beat({})
    bench.clock.advance(9)
    # An older version does that.
    bench.put(key_of(queue), Heartbeat(worker="x", started_at=bench.clock.now(), ttl=TTL, nonce="another").to_bytes())
    bench.clock.advance(2)
    assert claim.is_alive()

    assert not heartbeat.beat({})

    assert not claim.is_alive(), "neither its own lease nor what is stored keeps it"
    assert "another worker has this id" in caplog.text


def test_a_beat_that_was_stored_without_an_answer_is_this_workers_own(bench, queue, heartbeat):
    claim = claimed(queue)
    heartbeat.hold(claim)
    assert heartbeat.beat({})
    bench.clock.advance(10)

    def silent(operation, key, perform):
        if operation == "put":
            perform()
        raise Unavailable("time-out")

    bench.around = silent
    assert not heartbeat.beat({})
    bench.around = None

    assert [heartbeat.beat({}), heartbeat.beat({})] == [False, True]
    assert claim.deadline == bench.clock.monotonic() + TTL.total_seconds()


def test_a_worker_that_comes_back_knows_its_own_heartbeat(bench, queue, heartbeat):
    assert heartbeat.beat({})

    def fail(operation, key, perform):
        raise Unavailable("503 SlowDown")

    bench.around = fail
    heartbeat.end()
    bench.around = None

    assert [heartbeat.beat({}), heartbeat.beat({})] == [False, True]


def test_a_worker_that_leaves_does_not_take_the_heartbeat_of_another_one_along(bench):
    first, second = (HeartbeatWriter(bench.queue(worker_id="worker-7")) for _ in range(2))
    assert [first.beat({}), second.beat({})] == [True, False]

    second.end()

    assert bench.keys("orders/workers/") == ["orders/workers/worker-7"]
    first.end()
    assert bench.keys("orders/workers/") == []


def test_the_writers_of_a_run_take_turns(bench, queue):
    """The launcher's heartbeat counts for ten minutes, and the driver goes on with it."""
    launcher, driver = (HeartbeatWriter(queue, TTL, run="r1") for _ in range(2))
    assert launcher.beat({})

    assert [driver.beat({}), driver.beat({})] == [False, True]


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
