"""Outcomes: completed, failed, buried, extended, released; the first one stands."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue import Conflict, LeaseLost, MessageNotFound, Record, Reject, Unavailable
from s3queue.documents.lease import Lease


def test_a_completed_message_leaves_a_record_and_nothing_else(bench, queue):  # [P1]
    path = queue.enqueue(b"x")
    bench.clock.advance(2)
    claim = queue.claim(path)
    bench.clock.advance(5)

    record = queue.complete(claim, {"rows": 7})

    assert bench.keys() == [f"orders/records/{path}"]
    status = queue.status(path)
    assert status.state == "completed"
    assert status.record == record
    assert (record.outcome, record.result, record.attempt, record.worker) == (
        "completed",
        {"rows": 7},
        1,
        queue.worker_id,
    )
    (attempt,) = record.attempts
    assert attempt.ended_at - attempt.started_at == timedelta(seconds=5)


def test_the_first_outcome_stands_and_a_zombie_gets_to_see_it(bench, queue):  # [P3]
    path = queue.enqueue(b"x")
    zombie = queue.claim(path)
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    bench.clock.advance(60)
    heir = bench.queue(worker_id="heir")
    record = heir.complete(heir.claim(path, read_first=True), "by the heir")

    assert queue.complete(zombie, "by the zombie") == record
    assert queue.status(path).record.result == "by the heir"


def test_a_zombie_cannot_fail_a_message_that_someone_else_holds(bench, queue):  # [P3] [P5]
    path = queue.enqueue(b"x")
    zombie = queue.claim(path)
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    bench.clock.advance(60)
    heir = bench.queue(worker_id="heir")
    claim = heir.claim(path, read_first=True)

    with pytest.raises(LeaseLost):
        queue.fail(zombie, "too late")
    with pytest.raises(LeaseLost):
        queue.fail(zombie, "too late", dead=True)
    with pytest.raises(LeaseLost):
        queue.extend(zombie)
    with pytest.raises(LeaseLost):
        queue.release(zombie)

    assert heir.status(path).lease.owner == "heir"
    heir.complete(claim)


def test_a_failed_message_waits_as_long_as_the_policy_says(bench, queue):
    path = queue.enqueue(b"x")

    lease = queue.fail(queue.claim(path), ValueError("no luck"))

    assert isinstance(lease, Lease)
    status = queue.status(path)
    assert (status.state, status.lease.failure.type, status.lease.failure.message) == (
        "waiting",
        "ValueError",
        "no luck",
    )
    assert bench.keys("orders/retries/") == [f"orders/retries/20261116T101501Z/{path}"]
    assert queue.claim(path, read_first=True) is None
    bench.clock.advance(1)
    claim = queue.claim(path, read_first=True)
    assert claim.attempt == 2


def test_backoff_doubles_and_is_capped(bench):
    queue = bench.queue(max_attempts=6, retry_base=2, retry_cap=9)
    path = queue.enqueue(b"x")
    waits = []
    for _ in range(5):
        claim = queue.claim(path, read_first=True)
        lease = queue.fail(claim, "again")
        waits.append((lease.retry_at - claim.now()).total_seconds())
        bench.clock.advance(waits[-1])

    assert waits == [2, 4, 8, 9, 9]


def test_the_last_failure_buries_the_message_with_its_payload_and_its_story(bench):  # [P1] [P5]
    queue = bench.queue(max_attempts=2)
    path = queue.enqueue(b"payload", metadata={"who": "Zoë"}, content_type="text/csv")
    queue.fail(queue.claim(path), KeyError("first"))
    bench.clock.advance(5)

    record = queue.fail(queue.claim(path, read_first=True), ValueError("second"))

    assert isinstance(record, Record)
    assert [(attempt.number, attempt.failure.type) for attempt in record.attempts] == [
        (1, "KeyError"),
        (2, "ValueError"),
    ]
    assert queue.status(path).state == "dead"
    dead = bench.memory.open(f"orders/dead/{path}")
    assert (dead.read(), dead.content_type) == (b"payload", "text/csv")
    assert dead.metadata["s3queue-error-type"] == "ValueError"
    assert not bench.keys("orders/messages/")
    assert not bench.keys("orders/leases/")


@pytest.mark.parametrize("how", [{"dead": True, "error": "told so"}, {"error": Reject("no good")}])
def test_a_message_may_be_buried_at_once(bench, queue, how):
    path = queue.enqueue(b"x")

    record = queue.fail(queue.claim(path), how.pop("error"), **how)

    assert record.outcome == "dead"
    assert bench.keys(f"orders/dead/{path}")


def test_a_failure_may_say_when_to_come_back(bench, queue):
    path = queue.enqueue(b"x")

    lease = queue.fail(queue.claim(path), "busy", retry_after=timedelta(minutes=10))

    assert lease.retry_at == bench.clock.now() + timedelta(minutes=10)


def test_an_extended_claim_outlives_its_first_timeout(bench, queue):  # [P2]
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    for _ in range(5):
        bench.clock.advance(25)
        queue.extend(claim)
        bench.sweeper(bench.queue(worker_id="sweeper")).sweep()

    assert claim.remaining() == timedelta(seconds=30)
    queue.extend(claim, 100)
    assert claim.remaining() == timedelta(seconds=100)
    assert queue.complete(claim).outcome == "completed"


def test_a_claim_that_is_extended_for_less_time_is_over_in_time(bench, queue):  # [P2]
    """The shorter lease is stored, and its answer comes late: by then another worker may have the message."""
    claim = queue.claim(queue.enqueue(b"x"), timeout=60)
    alive = []

    def late(operation, key, perform):
        answer = perform()
        if operation == "put" and "/leases/" in key:
            bench.clock.advance(7)
            alive.append(claim.is_alive())
        return answer

    bench.around = late
    queue.extend(claim, 5)

    assert alive == [False]
    assert not claim.is_alive()


def test_a_dead_letter_that_is_refused_although_nothing_is_there_is_left_for_later(bench):
    """A server that refuses each COPY must not keep a worker busy for ever."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"x")

    def refuse(operation, key, perform):
        if operation == "copy":
            raise Conflict("412")
        return perform()

    bench.around = refuse
    with pytest.raises(Unavailable, match="dead letter not written"):
        queue.fail(queue.claim(path), "broken")
    bench.around = None

    bench.clock.advance(60)
    bench.sweeper(bench.queue(worker_id="sweeper")).sweep()
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]
    assert bench.keys("orders/messages/") == []


def test_a_released_message_is_free_at_once_and_has_had_no_attempt(bench, queue):  # [P5]
    path = queue.enqueue(b"x")

    queue.release(queue.claim(path))

    assert bench.keys() == [f"orders/{path}"]
    assert queue.claim(path).attempt == 1


def test_a_release_after_a_failure_keeps_the_count_of_attempts(bench, queue):  # [P5]
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "first")
    bench.clock.advance(5)

    for _ in range(10):
        claim = queue.claim(path, read_first=True)
        assert claim.attempt == 2
        queue.release(claim)
        bench.clock.advance(1)

    claim = queue.claim(path, read_first=True)
    assert [attempt.failure.message for attempt in claim.lease.attempts] == ["first"]


def test_without_history_a_completion_leaves_nothing_but_a_death_still_does(bench):  # [P1]
    queue = bench.queue(history=False, max_attempts=1)
    done, dead = queue.enqueue(b"x"), queue.enqueue(b"y")

    queue.complete(queue.claim(done))
    assert not bench.keys("orders/records/")
    with pytest.raises(MessageNotFound):
        queue.status(done)

    queue.fail(queue.claim(dead), "no")
    assert bench.keys("orders/records/") == [f"orders/records/{dead}"]
    assert bench.keys("orders/dead/") == [f"orders/dead/{dead}"]


def test_a_completion_asked_for_again_spares_equal_bytes_that_were_put_since(bench, queue):  # [P1]
    path = queue.enqueue(b"the same", name="x")
    claim = queue.claim(path)
    queue.complete(claim)
    bench.clock.sleep(2)
    bench.put(f"{queue.name}/{path}", b"the same")
    queue.complete(claim)
    assert queue.status(path).state == "pending"
