"""Messages that nobody may read, nor describe: what cannot be told about them is not decided."""

from __future__ import annotations

from typing import Any

import pytest

from s3queue import DeadLetters
from s3queue.errors import AccessDenied
from support.workbench import Workbench


class Killed(BaseException):
    """The worker dies."""


def boom(body: Any) -> None:
    raise ValueError("boom")


def refuse(bench: Workbench, key: str, *operations: str) -> None:
    def around(operation: str, asked: str, perform: Any) -> Any:
        if operation in operations and (asked == key or operation == "copy"):
            raise AccessDenied(f"{operation} {asked}")
        return perform()

    bench.around = around


def die_before_reading(bench: Workbench, queue: Any, path: str) -> None:
    """A worker writes its lease, and is killed before its GET."""

    def around(operation: str, key: str, perform: Any) -> Any:
        if operation == "get" and key == queue.keys.message(path):
            raise Killed
        return perform()

    bench.around = around
    with pytest.raises(Killed):
        bench.processor(queue, boom).run(path, read_first=True)
    bench.around = None


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_outcome_of_what_may_be_a_late_repetition_is_kept(bench: Workbench, is_killed: bool) -> None:
    queue, ran = bench.queue(max_attempts=1), []
    path = queue.enqueue({"n": 1}, dedup_id="order-17", dedup_for=3600)
    key = queue.keys.message(path)
    first = bench.memory.open(key)
    assert first
    body, metadata = first.read(), dict(first.metadata)
    bench.clock.advance(5)
    bench.processor(queue, ran.append).run(path)
    bench.clock.advance(5)
    bench.put(key, body, metadata=metadata)  # the producer's PUT again, late
    if is_killed:
        die_before_reading(bench, queue, path)

    refuse(bench, key, "get", "head")
    sweeper = bench.sweeper(queue)
    for _ in range(3):
        if not is_killed:
            bench.processor(queue, boom).run(path, read_first=True)
        bench.clock.advance(120)
        sweeper.sweep()
    assert queue.outcome_of(path).outcome == "completed"

    bench.around = None
    for _ in range(3):
        bench.clock.advance(3600)
        sweeper.sweep()
        bench.processor(queue, ran.append).run(path, read_first=True)
    assert (ran, bench.keys("orders/messages/"), bench.keys("orders/dead/")) == ([{"n": 1}], [], [])


def test_a_replay_of_what_died_unread_is_not_taken_for_what_has_died(bench: Workbench) -> None:
    queue, ran = bench.queue(max_attempts=1), list[Any]()
    path = f"delayed/{bench.clock.now():%Y%m%dT%H%M%SZ}/scheduled-nightly"
    key = queue.keys.message(path)
    bench.put(key, b'{"n": 1}')
    bench.clock.advance(5)
    refuse(bench, key, "get", "head", "copy")
    bench.processor(queue, boom).run(path, read_first=True)
    bench.around = None
    bench.clock.advance(5)
    (letter,) = DeadLetters(queue).list()
    DeadLetters(queue).replay(letter.path)
    bench.clock.advance(5)
    die_before_reading(bench, queue, path)

    refuse(bench, key, "get", "head", "copy")
    sweeper = bench.sweeper(queue)
    for _ in range(3):
        bench.clock.advance(120)
        sweeper.sweep()
    bench.around = None
    bench.clock.advance(3600)
    bench.processor(queue, ran.append).run(path, read_first=True)

    assert ran == [{"n": 1}]


@pytest.mark.parametrize("is_discarded", [False, True])
def test_in_a_group_a_late_replay_of_what_died_unread_does_not_run(bench: Workbench, is_discarded: bool) -> None:
    queue, ran = bench.queue(max_attempts=1), list[Any]()
    path = queue.enqueue({"n": 1}, group="g")
    bench.clock.advance(5)
    bench.processor(queue, boom).run(path)
    bench.clock.advance(5)
    (letter,) = DeadLetters(queue).list()

    def meanwhile(key: str) -> None:
        """Another operator's replay of the same letter dies unread, and is replayed where it lies, or discarded."""
        DeadLetters(queue).replay(letter.path)
        bench.clock.advance(5)
        refuse(bench, key, "get", "copy")
        replayed = key.removeprefix("orders/")
        bench.processor(queue, boom).run(replayed)
        bench.around = None
        bench.clock.advance(5)
        (second,) = DeadLetters(queue).list()
        if is_discarded:
            DeadLetters(queue).discard(second)
            return
        DeadLetters(queue).replay(second.path)
        bench.clock.advance(5)
        bench.processor(queue, ran.append).run(replayed)
        bench.clock.advance(5)

    def sleep_before_the_put(operation: str, key: str, perform: Any) -> Any:
        if operation == "put" and key.startswith("orders/messages/@g/"):
            bench.around = None
            meanwhile(key)
        return perform()

    bench.around = sleep_before_the_put
    DeadLetters(queue).replay(letter.path)
    bench.clock.advance(5)
    for key in bench.keys("orders/messages/"):
        bench.processor(queue, ran.append).run(key.removeprefix("orders/"))

    assert ran == ([] if is_discarded else [{"n": 1}])
    assert not bench.keys("orders/messages/")
