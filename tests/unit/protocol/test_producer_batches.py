"""enqueue_many: many bodies in few objects, and what cannot be a line is refused by its number."""

from __future__ import annotations

import json
import threading

import pytest

from s3queue import (
    InvalidRequest,
    MessageTooLarge,
    Unavailable,
)
from support.threads import PATIENCE


def test_enqueue_many_writes_one_object_per_batch(bench, queue):
    paths = queue.enqueue_many(({"n": number} for number in range(250)), per_object=100, priority=3)

    assert len(paths) == 3
    assert all(path.startswith("messages/p003/") and path.endswith(".ndjson") for path in paths)
    lines = [json.loads(line) for path in paths for line in bench.read(f"orders/{path}").splitlines()]
    assert lines == [{"n": number} for number in range(250)]


def test_enqueue_many_does_not_wait_for_one_answer_before_it_sends_the_next_batch(bench, queue):
    both_under_way = threading.Barrier(2, timeout=PATIENCE)

    def answer_together(operation, key, perform):
        both_under_way.wait()
        return perform()

    bench.around = answer_together

    assert len(queue.enqueue_many(range(4), per_object=1, concurrency=2)) == 4


def test_enqueue_many_says_so_when_it_stays_unknown_whether_a_batch_was_written(bench, queue):
    written = []

    def lose_the_fourth(operation, key, perform):
        if operation == "put" and len(written) >= 3:
            raise Unavailable("time-out")
        written.append(key)
        return perform()

    bench.around = lose_the_fourth

    with pytest.raises(Unavailable):
        queue.enqueue_many(range(8), per_object=1, concurrency=1)

    bench.around = None
    assert sorted(bench.read(key) for key in bench.keys("orders/messages/")) == [b"0\n", b"1\n", b"2\n"]


@pytest.mark.parametrize("options", [{}, {"dedup_id": "order-17"}, {"name": "order-17"}], ids=str)
def test_a_message_whose_put_had_no_answer_and_that_ran_meanwhile_is_not_put_again(bench, queue, options):
    """[P1] The PUT lands, its answer is lost, the message runs and is deleted: a repetition would run it twice."""

    def lose_the_answer(operation, key, perform):
        answer = perform()
        if operation == "put" and key.startswith("orders/messages/"):
            bench.around = None
            worker = bench.queue(worker_id="worker")
            worker.complete(worker.claim(key.removeprefix("orders/")))
            raise Unavailable("time-out")
        return answer

    bench.around = lose_the_answer

    path = queue.enqueue(b"x", **options)

    assert queue.status(path).state == "completed"
    assert bench.keys("orders/messages/") == []


def test_a_message_whose_put_was_lost_is_put_again(bench, queue):
    tries = []

    def lose(operation, key, perform):
        if operation == "put" and not tries:
            tries.append(key)
            raise Unavailable("time-out")
        return perform()

    bench.around = lose

    path = queue.enqueue(b"x")

    assert bench.read(f"orders/{path}") == b"x"


def _lose_the_next_put(bench):
    def lose(operation, key, perform):
        if operation == "put":
            bench.around = None
            raise Unavailable("time-out")
        return perform()

    bench.around = lose


@pytest.mark.parametrize("state", ["pending", "completed", "dead"])
def test_a_lost_put_is_not_taken_for_what_lay_under_its_name_a_moment_before(bench, queue, state):
    """[P1] Other bytes of the same name, PUT or finished within S3's grain of time, do not prove that these arrived."""
    path = queue.enqueue(b"first", name="order-17")
    worker = bench.queue(worker_id="worker")
    if state == "completed":
        worker.complete(worker.claim(path))
    elif state == "dead":
        worker.fail(worker.claim(path), "broken", dead=True)
    _lose_the_next_put(bench)

    queue.enqueue(b"second", name="order-17")

    assert bench.read(f"orders/{path}") == b"second"


def test_a_put_without_an_answer_is_not_repeated_while_nobody_can_tell_whether_it_arrived(bench, queue):
    """[P1] The message ran; its record is there, but the question for it had no answer."""
    asked = []

    def lose(operation, key, perform):
        asked.append((operation, key))
        if len(asked) == 1:
            perform()
            bench.around = None
            worker = bench.queue(worker_id="worker")
            worker.complete(worker.claim(key.removeprefix("orders/")))
            bench.around = lose
            raise Unavailable("time-out")
        if operation == "head" and len(asked) <= 4:
            raise Unavailable("time-out")
        return perform()

    bench.around = lose

    path = queue.enqueue(b"x", name="order-17")

    bench.around = None
    assert [operation for operation, _ in asked].count("put") == 1
    assert queue.status(path).state == "completed"
    assert bench.keys("orders/messages/") == []


def test_enqueue_many_of_nothing_writes_nothing(bench, queue):
    assert queue.enqueue_many([]) == []
    assert bench.keys() == []


def test_enqueue_many_starts_a_new_batch_before_one_becomes_too_large(bench):
    queue = bench.queue(max_message_size=20)

    paths = queue.enqueue_many(["x" * 8] * 5)

    assert [len(bench.read(f"orders/{path}")) for path in paths] == [18, 18, 9]


def test_enqueue_many_may_be_delayed(bench, queue):
    (path,) = queue.enqueue_many([1, 2], delay=60)

    assert path.startswith("delayed/")
    assert path.endswith(".ndjson")


@pytest.mark.parametrize("body", ["two\nlines", b"a\rb", "", b"  ", {1, 2}])
def test_a_body_that_is_no_single_line_is_refused_by_its_number(bench, queue, body):
    with pytest.raises(InvalidRequest, match="body 1 "):
        queue.enqueue_many([{"fine": True}, body])


def test_a_batch_with_a_line_that_is_too_large_says_which(bench):
    with pytest.raises(MessageTooLarge, match="body 1 "):
        bench.queue(max_message_size=10).enqueue_many(["x", "x" * 20])


def test_concurrency_must_be_at_least_one(queue):
    with pytest.raises(InvalidRequest, match="concurrency must be at least 1"):
        queue.enqueue_many([1], concurrency=0)


def test_per_object_must_be_at_least_one(queue):
    with pytest.raises(InvalidRequest):
        queue.enqueue_many([1], per_object=0)
