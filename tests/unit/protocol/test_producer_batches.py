"""enqueue_many: many bodies in few objects, and what cannot be a line is refused by its number."""

from __future__ import annotations

import json
import threading

import pytest

from s3queue import InvalidRequest, MessageTooLarge, Unavailable
from s3queue.errors import AccessDenied
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


def test_a_batch_that_is_full_is_enqueued_whatever_body_comes_after_it(bench, queue):
    """It waited for the next body, and was dropped with that."""
    with pytest.raises(InvalidRequest, match="body 2 "):
        queue.enqueue_many([1, 2, b"two\nlines"], per_object=1)

    assert sorted(bench.read(key) for key in bench.keys("orders/messages/")) == [b"1\n", b"2\n"]


def refuse(*bodies):
    """A PUT of these bodies fails, and says which one it was."""

    def put(key, body, **options):
        if body in bodies:
            raise AccessDenied(f"not stored: {body!r}")

    return put


def test_a_refused_body_does_not_hide_that_a_batch_before_it_was_not_stored(bench, queue, monkeypatch):
    """Its PUT was under way, and nobody asked what had become of it."""
    monkeypatch.setattr(bench.store, "put", refuse(b"1\n"))

    with pytest.raises(AccessDenied, match="1") as raised:
        queue.enqueue_many([1, 2, b"two\nlines"], per_object=1)

    assert "body 2 " in str(raised.value.__context__)


def test_of_batches_that_were_not_stored_the_first_one_is_named(bench, queue, monkeypatch):
    monkeypatch.setattr(bench.store, "put", refuse(b"2\n", b"3\n"))

    with pytest.raises(AccessDenied, match="2"):
        queue.enqueue_many([1, 2, 3, 4], per_object=1, concurrency=2)


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


def _nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize("body", ["two\nlines", b"a\rb", "", b"  ", object(), _nested(100_000)], ids=lambda body: None)
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
