"""A replay puts back exactly what its letter stands for: no twin, no other generation, and over nobody's message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from s3queue import Conflict, DeadLetters, InvalidRequest, MessageNotFound
from s3queue.errors import Unavailable, Unreadable
from s3queue.protocol import letter_writes

LARGE = 9 * 1024 * 1024


@pytest.fixture
def queue(bench):
    return bench.queue(max_attempts=1)


@pytest.fixture
def letters(queue):
    return DeadLetters(queue)


def die(queue, path: str) -> None:
    queue.fail(queue.claim(path, read_first=True), "backend down", dead=True)


def run(bench, queue, path: str) -> bool:
    """Whether there was something to run."""
    bench.clock.advance(5)
    claim = queue.claim(path, read_first=True)
    if claim:
        queue.complete(claim)
    return claim is not None


@pytest.mark.parametrize("options", [{}, {"delay": 5}], ids=["two generations", "two delayed messages"])
def test_two_deaths_of_equal_bytes_are_two_replays(bench, queue, letters, options):
    """[P1] The first one's replay has completed: its record is not the outcome of the second."""
    for _ in range(2):
        path = queue.enqueue(b"tick", name="tick", **options)
        bench.clock.advance(100)
        die(queue, path)
    found = [letter.path for letter in letters.list()]
    assert len(found) == 2
    bench.clock.advance(10)

    assert [run(bench, queue, letters.replay(path)) for path in found] == [True, True]

    assert list(letters.list()) == []


def test_a_replay_that_is_repeated_runs_once_and_its_twin_runs_too(bench, queue, letters):
    """[P1] The deletion of the first letter is lost: only the record tells that it was replayed."""
    for _ in range(2):
        die(queue, queue.enqueue(b"tick", name="tick"))
        bench.clock.advance(100)
    first, second = [letter.path for letter in letters.list()]

    def lose(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "delete" and key.startswith("orders/dead/"):
            raise Unavailable("no answer")
        return perform()

    bench.around = lose
    with pytest.raises(Unavailable):
        letters.replay(first)
    bench.around = None

    assert run(bench, queue, "messages/tick")
    assert not run(bench, queue, letters.replay(first))
    assert run(bench, queue, letters.replay(second))
    assert list(letters.list()) == []


def test_the_lines_of_a_batch_that_is_put_and_dies_again_are_replayed_again(bench, queue, letters):
    """[P1] Equal letters of two days; the name of the first replay has a record."""
    ran: list[int] = []

    def handler(body: int) -> None:
        ran.append(body)
        if body == 2 or (body == 1 and is_down):
            raise ConnectionError("down") if body == 1 else KeyError("two")

    processor = bench.processor(queue, handler)
    for _ in range(2):
        is_down = True
        bench.memory.put("orders/messages/day.ndjson", b"1\n2\n3\n")
        processor.run("messages/day.ndjson", read_first=True)
        bench.clock.advance(86400)
        is_down = False
        ran.clear()
        again = letters.replay("messages/day.ndjson.lines", error_type="ConnectionError")

        assert processor.run(again, read_first=True) == "completed"
        assert ran == [1]
        assert letters.by_error_type() == {"KeyError": 1}
        letters.purge()


@pytest.mark.parametrize("size", [10, LARGE])
def test_what_a_producer_puts_while_a_letter_is_replayed_is_not_overwritten(bench, queue, letters, size):
    """[P1]"""
    path = queue.enqueue(b"x" * size, name="order")
    die(queue, path)
    bench.clock.advance(60)

    def put_first(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation in ("put", "copy") and key == f"orders/{path}":
            bench.around = None
            bench.memory.put(key, b"new")
        return perform()

    bench.around = put_first
    with pytest.raises(Conflict, match="let it finish, or delete one of the two"):
        letters.replay(path)

    assert bench.read(f"orders/{path}") == b"new"
    assert len(bench.read(f"orders/dead/{path}")) == size


def test_a_large_letter_is_replayed_as_it_was(bench, queue, letters):
    body = b"x" * LARGE
    path = queue.enqueue(body, name="large", metadata={"who": "Zoë"}, content_type="text/csv")
    die(queue, path)
    bench.clock.advance(60)

    assert letters.replay(path) == path

    message = queue.claim(path).message
    assert (message.body, message.metadata, message.content_type) == (body, {"who": "Zoë"}, "text/csv")


def test_a_letter_larger_than_one_put_is_refused_with_the_way_out(bench, queue, letters, monkeypatch):
    path = queue.enqueue(b"large", name="large")
    die(queue, path)
    monkeypatch.setattr(letter_writes, "PUT_BYTES", 4)

    with pytest.raises(InvalidRequest, match="aws s3 mv"):
        letters.replay(path)

    assert bench.read(f"orders/dead/{path}") == b"large"


def test_a_name_that_ends_like_a_mark_is_replayed_under_its_own_name(bench, queue, letters):
    path = queue.enqueue(b"this", name="build~1a2b3c4d5e6f")
    die(queue, path)
    bench.clock.advance(60)
    die(queue, queue.enqueue(b"other", name="build~1a2b3c4d5e6f"))
    bench.clock.advance(60)
    plain, marked = [letter.path for letter in letters.list()]

    assert letters.get(path)[2].path == path
    assert run(bench, queue, letters.replay(plain))
    assert letters.replay(marked) == path
    assert bench.read(f"orders/{path}") == b"other"


# A message that nobody can read lies where it was PUT; its letter stands for it.


def die_unreadable(bench, queue, name: str) -> str:
    path = queue.enqueue(b"archived", name=name)

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation in ("get", "copy") and key in (f"orders/{path}", f"orders/dead/{path}"):
            raise Unreadable(f"GET {key}: InvalidObjectState")
        return perform()

    bench.around = refuse
    assert queue.claim(path) is None
    bench.around = None
    bench.clock.advance(60)
    return path


def test_deleting_the_letter_of_an_unreadable_message_deletes_nothing_that_was_put_since(bench, queue, letters):
    """[P1] [P2]"""
    path = die_unreadable(bench, queue, "a")
    bench.memory.put(f"orders/{path}", b"new")

    letters.delete(path)

    assert bench.read(f"orders/{path}") == b"new"
    assert bench.keys("orders/dead/") == []
    assert queue.claim(path, read_first=True).message.body == b"new"


def test_deleting_the_letter_keeps_the_lease_of_what_was_put_since(bench, letters):
    patient = bench.queue(max_attempts=5)
    path = die_unreadable(bench, bench.queue(max_attempts=1), "a")
    held = patient.read_lease(path)
    bench.memory.delete(held.key)
    bench.memory.put(f"orders/{path}", b"new")
    patient.fail(patient.claim(path), "once")

    letters.delete(path)

    assert patient.read_lease(path).lease.attempt == 1
    assert bench.read(f"orders/{path}") == b"new"


def test_replaying_the_letter_of_an_unreadable_message_leaves_what_was_put_since_as_it_is(bench, queue, letters):
    path = die_unreadable(bench, queue, "a")
    bench.memory.put(f"orders/{path}", b"new")
    put_at = bench.memory.head(f"orders/{path}").modified_at
    bench.clock.advance(60)

    assert letters.replay(path) == path

    assert bench.memory.head(f"orders/{path}").modified_at == put_at
    assert queue.claim(path, read_first=True).message.body == b"new"
    assert bench.keys("orders/dead/") == []


def test_what_is_put_while_an_unreadable_message_is_replayed_is_not_overwritten(bench, queue, letters):
    """[P1]"""
    path = die_unreadable(bench, queue, "a")

    def put_first(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation in ("put", "copy") and key == f"orders/{path}":
            bench.around = None
            bench.memory.put(key, b"new")
        return perform()

    bench.around = put_first
    with pytest.raises(Conflict):
        letters.replay(path)

    assert bench.read(f"orders/{path}") == b"new"


def test_a_replay_in_place_that_was_cut_short_is_finished_by_the_next(bench, queue, letters):
    """[P6] The message was PUT once more, and its lease is still there."""
    path = die_unreadable(bench, queue, "a")

    def lose(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "delete":
            raise Unavailable("no answer")
        return perform()

    bench.around = lose
    with pytest.raises(Unavailable):
        letters.replay(path)
    bench.around = None

    assert letters.replay(path) == path
    assert queue.claim(path, read_first=True).message.body == b"archived"
    assert bench.keys("orders/dead/") == []


def test_deleting_an_unreadable_letter_whose_name_ends_like_a_mark_deletes_nobody_elses_message(bench, queue, letters):
    path = die_unreadable(bench, queue, "build~1a2b3c4d5e6f")
    queue.enqueue(b"other", name="build")

    letters.delete(path)

    assert bench.keys("orders/messages/") == ["orders/messages/build"]
    with pytest.raises(MessageNotFound):
        letters.describe(path)


def test_a_replay_within_the_second_of_its_message_is_a_message_of_its_own(bench, queue, letters):
    """[P3] Equal bytes within one second are one generation: the record of the death would be its outcome, too."""
    path = queue.enqueue(b"tick", name="tick")
    die(queue, path)

    letters.replay(path)

    assert queue.complete(queue.claim(path)).outcome == "completed"
    assert queue.status(path).record.outcome == "completed"
