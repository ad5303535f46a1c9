"""What a worker holds that is known to be dead, and an operator gives back."""

from __future__ import annotations

import pytest

from s3queue import Conflict, InvalidRequest, LeaseLost, MessageNotFound
from s3queue.documents.lease import Lease


@pytest.fixture
def worker(bench):
    return bench.queue(worker_id="lost", max_attempts=2)


@pytest.fixture
def queue(bench):
    return bench.queue(worker_id="operator", max_attempts=2)


def test_a_released_message_runs_again_and_has_used_no_attempt(bench, queue, worker):
    """[P5]"""
    path = queue.enqueue({"n": 1})
    worker.claim(path)
    claimed_at = bench.clock.now()
    bench.clock.advance(3)

    released = queue.release_held(path)

    assert (released.path, released.worker, released.attempt, released.claimed_at) == (path, "lost", 1, claimed_at)
    assert released.to_json()["worker"] == "lost"
    (again,) = queue.claim_next()
    assert (again.path, again.attempt) == (path, 1)
    assert [one.number for one in queue.complete(again).attempts] == [1]


def test_the_attempts_before_it_still_count(bench, queue, worker):
    """[P5]"""
    path = queue.enqueue({})
    worker.fail(worker.claim(path), "away", retry_after=0)
    bench.clock.advance(2)
    worker.claim(path, read_first=True)
    assert queue.release_held(path).attempt == 2
    assert queue.retry_info(path).attempt == 1
    again = queue.claim(path, read_first=True)
    assert again.attempt == 2
    assert queue.fail(again, "away").outcome == "dead"


def test_a_batch_keeps_the_lines_that_are_done(bench, queue, worker):
    (path,) = queue.enqueue_many([1, 2, 3])
    claim = worker.claim(path)
    claim.lines.complete(1)
    worker.extend(claim)
    queue.release_held(path)
    seen = []
    bench.processor(queue, lambda body: seen.append(body)).run(path, read_first=True)
    assert seen == [2, 3]


def test_a_sweeper_hands_it_over_at_once(bench, queue, worker):
    path = queue.enqueue({})
    worker.claim(path)
    queue.release_held(path)
    dispatched: list[str] = []
    bench.sweeper(queue, dispatched).sweep()
    assert dispatched == [path]


def test_what_a_release_costs(bench, queue, worker):
    path = queue.enqueue({})
    worker.claim(path)
    bench.store.take()
    assert queue.holder(path).worker == "lost"
    assert bench.store.take() == {"head": 1, "get": 1}
    queue.release_held(path)
    assert bench.store.take() == {"head": 1, "get": 1, "put": 2}


def test_those_who_listen_are_told_who_held_it(queue, worker):
    told = []
    queue.events.on("message.released", told.append)
    path = queue.enqueue({})
    worker.claim(path)
    queue.release_held(path)
    assert [(one["path"], one["worker"], one["attempt"]) for one in told] == [(path, "lost", 1)]


@pytest.mark.parametrize("ask", ["release_held", "holder"])
def test_what_nobody_holds_is_refused(bench, queue, worker, ask):
    pending, waiting, done = (queue.enqueue({}) for _ in range(3))
    worker.fail(worker.claim(waiting), "away", retry_after=60)
    worker.complete(worker.claim(done))
    for path, said in ((pending, "waits for a worker"), (waiting, "s3queue retry")):
        with pytest.raises(InvalidRequest, match=said):
            getattr(queue, ask)(path)
    with pytest.raises(MessageNotFound, match=done):
        getattr(queue, ask)(done)
    with pytest.raises(MessageNotFound):
        getattr(queue, ask)("messages/never")


@pytest.mark.parametrize(
    ("state", "is_cancelling", "said"),
    [("burying", False, "is being buried by lost"), ("processing", True, "is being cancelled by lost")],
)
def test_what_is_buried_or_cancelled_is_left_alone(bench, queue, state, is_cancelling, said):
    path = queue.enqueue({})
    timeout = queue.settings.visibility_timeout
    lease = Lease(state=state, attempt=1, owner="lost", nonce="n", timeout=timeout, is_cancelling=is_cancelling)
    bench.memory.put(queue.keys.lease(path), lease.to_bytes())
    with pytest.raises(InvalidRequest, match=said):
        queue.release_held(path)
    assert queue.read_lease(path).lease == lease


def test_a_holder_that_writes_its_lease_meanwhile_keeps_the_message(bench, queue, worker):
    """[P2]"""
    path = queue.enqueue({})
    claim = worker.claim(path)

    def extend_first(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            bench.around = None
            worker.extend(claim)
        return perform()

    bench.around = extend_first
    with pytest.raises(Conflict, match="lost, has just written its lease"):
        queue.release_held(path)
    assert worker.complete(claim).worker == "lost"


def test_a_holder_that_lives_can_neither_fail_nor_extend_nor_release_it(bench, queue, worker):
    """[P2] [P5]"""
    path = queue.enqueue({})
    for act in (lambda claim: worker.fail(claim, "x"), worker.extend, worker.release):
        claim = worker.claim(path, read_first=True)
        queue.release_held(path)
        with pytest.raises(LeaseLost):
            act(claim)
        assert queue.retry_info(path).attempt == 0
        bench.clock.advance(2)


def test_the_completion_of_a_holder_that_lives_counts_if_it_is_the_first(bench, queue, worker):
    """[P3] [P4]"""
    path = queue.enqueue({})
    claim = worker.claim(path)
    queue.release_held(path)
    again = queue.claim(path, read_first=True)

    worker.complete(claim, "first")

    assert queue.complete(again, "second").result == "first"
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    assert queue.status(path).record.result == "first"


def test_what_a_released_holder_records_is_not_run_again(bench, queue, worker):
    """[P4] Its lease was not deleted, so whoever takes it over looks for a record."""
    path = queue.enqueue({})
    claim = worker.claim(path)

    def record_first(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            bench.around = None
            worker.complete(claim, "done", clear=False)
        return perform()

    bench.around = record_first
    queue.release_held(path)
    assert queue.claim(path, read_first=True) is None
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_released_holder_does_not_delete_equal_bytes_that_came_since(bench, queue, worker):
    """[P1] By its own clock it still holds the message, and S3's ETag cannot tell the two apart."""
    path = queue.enqueue("x", name="daily")
    claim = worker.claim(path)
    queue.release_held(path)
    queue.complete(queue.claim(path, read_first=True), "theirs")
    bench.clock.advance(1)
    queue.enqueue("x", name="daily")

    worker.complete(claim, "mine")

    assert bench.keys("orders/messages/") == [f"orders/{path}"]
    assert queue.complete(queue.claim(path), "next").result == "next"


def test_a_released_holder_does_not_replace_a_later_outcome(bench, queue, worker):
    """[P3]"""
    path = queue.enqueue("x", name="daily")
    claim = worker.claim(path)
    queue.release_held(path)
    queue.complete(queue.claim(path, read_first=True), "theirs")
    bench.clock.advance(1)
    queue.enqueue("y", name="daily")
    queue.complete(queue.claim(path), "next")

    assert worker.complete(claim, "mine").result == "next"

    assert queue.status(path).record.result == "next"


def test_a_completion_looks_at_its_lease_only_if_something_was_recorded_since(bench, queue, worker):
    path = queue.enqueue("x", name="daily")
    worker.complete(worker.claim(path))
    bench.clock.advance(10)
    queue.enqueue("x", name="daily")
    claim = worker.claim(path)
    bench.store.take()
    worker.complete(claim)
    assert bench.store.take() == {"put": 2, "get": 1, "delete": 2}
