"""What waits for its next attempt: how it stands, and how it is tried now."""

from __future__ import annotations

import pytest

from s3queue import Conflict, InvalidRequest, MessageNotFound
from s3queue.errors import Unreadable


def failed(bench, queue, **options) -> str:
    path = queue.enqueue({"n": 1})
    worker = bench.queue(worker_id="worker", **options)
    worker.fail(worker.claim(path), "the mail server is away", retry_after=3600)
    return path


def test_a_waiting_message_tells_how_it_stands(bench):
    queue = bench.queue(max_attempts=3)
    path = failed(bench, queue, max_attempts=3)

    info = queue.retry_info(path)

    assert (info.state, info.attempt, info.max_attempts, info.attempts_left) == ("waiting", 1, 3, 2)
    assert (info.retry_at - bench.clock.now()).total_seconds() == 3600
    assert info.failure.message == "the mail server is away"
    assert [one.number for one in info.attempts] == [1]
    assert info.to_json()["attempts_left"] == 2


def test_what_was_not_tried_yet_has_all_its_attempts(bench):
    queue = bench.queue(max_attempts=3)
    pending, delayed, running = queue.enqueue({}), queue.enqueue({}, delay=60), queue.enqueue({})
    queue.claim(running)
    stands = [
        (info.state, info.attempts_left, info.retry_at is not None)
        for info in map(queue.retry_info, (pending, delayed, running))
    ]
    assert stands == [("pending", 3, False), ("delayed", 3, True), ("processing", 2, False)]


def test_what_is_not_in_the_queue_is_not_found(bench):
    queue = bench.queue()
    path = queue.enqueue({})
    queue.complete(queue.claim(path))
    for ask in (queue.retry_info, queue.retry):
        with pytest.raises(MessageNotFound, match=path):
            ask(path)


def test_a_retry_runs_at_once_as_its_next_attempt(bench):
    """[P5]"""
    queue = bench.queue(max_attempts=3)
    path = failed(bench, queue, max_attempts=3)

    info = queue.retry(path)

    assert info.retry_at == bench.clock.now()
    (claim,) = queue.claim_next()
    assert (claim.path, claim.attempt) == (path, 2)


def test_a_sweeper_hands_a_retried_message_over(bench):
    queue = bench.queue()
    path = failed(bench, queue)
    queue.retry(path)
    dispatched: list[str] = []

    bench.sweeper(queue, dispatched).sweep()

    assert dispatched == [path]


def test_a_retry_of_what_is_due_already_writes_nothing(bench):
    queue = bench.queue()
    path = failed(bench, queue)
    bench.clock.advance(3601)
    bench.store.take()

    queue.retry(path)

    assert bench.store.take() == {"head": 1, "get": 1}


def test_what_a_retry_costs(bench):
    queue = bench.queue()
    path = failed(bench, queue)
    bench.store.take()

    queue.retry(path)

    assert bench.store.take() == {"head": 1, "get": 1, "put": 2}


@pytest.mark.parametrize("state", ["pending", "processing"])
def test_what_does_not_wait_cannot_be_retried(bench, state):
    queue = bench.queue()
    path = queue.enqueue({})
    if state == "processing":
        queue.claim(path)
    with pytest.raises(InvalidRequest, match=state):
        queue.retry(path)


def test_a_message_that_is_claimed_meanwhile_is_its_workers(bench):
    """[P2]"""
    queue = bench.queue()
    path = failed(bench, queue)
    bench.clock.advance(3590)
    worker = bench.queue(worker_id="worker")

    def claim_first(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            bench.around = None
            bench.clock.advance(20)
            assert worker.claim(path, read_first=True)
        return perform()

    bench.around = claim_first
    with pytest.raises(Conflict):
        queue.retry(path)


def test_a_dead_message_that_nobody_can_read_is_refused(bench):
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue({})

    def refuse(operation, key, perform):
        if operation == "copy" or (operation == "get" and key == f"orders/{path}"):
            raise Unreadable("archived")
        return perform()

    bench.around = refuse
    assert queue.claim(path) is None
    with pytest.raises(InvalidRequest, match="dead letter"):
        queue.retry(path)
