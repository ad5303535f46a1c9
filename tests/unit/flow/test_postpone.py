"""Postpone: a message is put back without using an attempt, for as often as the queue allows."""

from __future__ import annotations

import pytest

from s3queue import InvalidRequest, Postpone, define
from s3queue.documents.lease import Lease


def _lease(bench, path: str) -> Lease:
    return Lease.from_bytes(bench.read(f"orders/leases/{path}"), path)


def test_a_postponed_message_runs_again_with_the_same_attempt(bench):
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"{}")
    attempts = []

    def later(_body, context):
        attempts.append(context.attempt)
        if len(attempts) < 4:
            raise Postpone(after=30)

    processor = bench.processor(queue, later)
    assert processor.run(path) == "postponed"
    assert processor.run(path, read_first=True) is None, "not before its time"
    for _ in range(3):
        bench.clock.advance(31)
        processor.run(path, read_first=True)
    assert attempts == [1, 1, 1, 1]
    assert queue.status(path).state == "completed"


def test_the_sweeper_hands_a_postponed_message_over_when_it_is_due(bench, dispatched):
    queue = bench.queue()
    path = queue.enqueue(b"{}")

    def later(_body):
        raise Postpone("not yet", after=30)

    bench.processor(queue, later).run(path)
    sweeper = bench.sweeper(queue, dispatched)
    sweeper.sweep()
    assert dispatched == []
    bench.clock.advance(31)
    sweeper.sweep()
    assert dispatched == [path]


def test_after_max_postpones_each_is_a_failed_attempt(bench):
    queue = bench.queue(max_attempts=2, max_postpones=3)
    path = queue.enqueue(b"{}")
    starts = []

    def never(_body):
        starts.append(bench.clock.now())
        raise Postpone(after=1)

    processor = bench.processor(queue, never)
    endings = []
    for _ in range(8):
        if ending := processor.run(path, read_first=True):
            endings.append(ending)
        bench.clock.advance(3)
    assert endings == ["postponed"] * 3 + ["retried", "dead"]
    assert len(starts) == queue.settings.max_attempts + queue.settings.max_postpones
    assert "max_postpones" in str(queue.status(path).record.failure.message)


def test_a_name_that_is_put_anew_may_be_postponed_as_often_as_any(bench):
    queue = bench.queue(max_postpones=3)
    path = queue.enqueue(b"1", name="a")

    def later(_body):
        raise Postpone(after=1)

    processor = bench.processor(queue, later)
    processor.run(path)
    assert _lease(bench, path).postponed == 1
    bench.put(f"orders/{path}", b"2")
    bench.clock.advance(3)
    processor.run(path, read_first=True)
    assert _lease(bench, path).postponed == 1


def test_lines_are_postponed_alone_and_the_others_go_on(bench):
    queue = bench.queue(max_attempts=2)
    seen: list[int] = []
    (path,) = queue.enqueue_many([{"n": number} for number in range(4)])

    def some(body):
        seen.append(body["n"])
        if body["n"] == 1 and seen.count(1) < 3:
            raise Postpone(after=30)
        if body["n"] == 2:
            raise ValueError("broken")

    processor = bench.processor(queue, some)
    assert processor.run(path) == "postponed"
    assert (seen, _lease(bench, path).attempt) == ([0, 1, 2, 3], 0)
    bench.settle(queue, some)
    # The broken line has its two attempts, and the postponed one as many starts as it asked for.
    assert sorted(seen) == [0, 1, 1, 1, 2, 2, 3]
    assert queue.status(path).record.dead_lines == 1


@pytest.mark.parametrize("most", [0, -1, "many"])
def test_max_postpones_must_be_a_number(most):
    with pytest.raises(InvalidRequest, match="max_postpones"):
        define("orders", max_postpones=most)


def test_a_zombie_cannot_postpone_what_someone_else_holds(bench):
    queue, rival = (bench.queue(visibility_timeout=10, worker_id=name) for name in ("zombie", "rival"))
    path = queue.enqueue(b"{}")

    def slow(_body):
        bench.clock.advance(20)
        bench.sweeper(rival).sweep()
        assert rival.claim(path, read_first=True)
        raise Postpone(after=5)

    assert bench.processor(queue, slow).run(path) == "lost"
    assert _lease(bench, path).owner == "rival"


def test_a_release_does_not_forget_how_often_a_message_was_postponed(bench):
    """[P5]"""
    queue = bench.queue(max_postpones=1, max_attempts=1)
    path = queue.enqueue(b"x")
    queue.postpone(queue.claim(path), 1)
    bench.clock.advance(5)
    queue.release(queue.claim(path, read_first=True))
    bench.clock.advance(5)

    ended = queue.postpone(queue.claim(path, read_first=True), 1)

    assert ended.outcome == "dead"
