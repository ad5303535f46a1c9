"""Messages that nobody may read, nor describe: what cannot be told about them is not decided."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from s3queue import DeadLetters
from s3queue.errors import AccessDenied, Unavailable
from support.interruption import interrupted
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
    queue, ran = bench.queue(max_attempts=2), list[Any]()
    path = f"delayed/{bench.clock.now():%Y%m%dT%H%M%SZ}/scheduled-nightly"
    key = queue.keys.message(path)
    bench.put(key, b'{"n": 1}')
    bench.clock.advance(5)
    refuse(bench, key, "get", "head", "copy")
    for _ in range(2):
        bench.processor(queue, boom).run(path, read_first=True)
        bench.clock.advance(60)
    bench.around = None
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


def replayed(bench: Workbench, queue: Any) -> str:
    """The path of a message with a dedup id that died, and was replayed: its record tells no replay from a repetition
    of what has died, unless the put id is known.
    """
    path = queue.enqueue({"n": 1}, dedup_id="order-17", dedup_for=86400)
    for _ in range(queue.settings.max_attempts):
        bench.clock.advance(4000)
        bench.processor(queue, boom).run(path, read_first=True)
    bench.clock.advance(5)
    (letter,) = DeadLetters(queue).list()
    DeadLetters(queue).replay(letter.path)
    bench.clock.advance(5)
    return str(path)


def test_who_kills_his_workers_has_no_more_attempts_although_the_sweeper_cannot_describe_it(bench: Workbench) -> None:
    """[P5]"""
    queue, starts = bench.queue(max_attempts=2), list[Any]()
    path = replayed(bench, queue)

    def kill(body: Any) -> None:
        starts.append(body)
        raise Killed

    for _ in range(6):
        bench.clock.advance(3600)
        with suppress(Killed):
            bench.processor(queue, kill).run(path, read_first=True)
        bench.clock.advance(3600)
        refuse(bench, queue.keys.message(path), "head")
        swept = bench.sweeper(queue).sweep()
        bench.around = None
    assert (len(starts), bench.keys("orders/dead/"), swept.endings) == (2, [], {"undecided": 1})

    bench.clock.advance(3600)
    bench.sweeper(queue).sweep()
    assert (queue.status(path).state, bench.keys("orders/messages/")) == ("dead", [])


def test_a_burial_goes_on_although_its_message_cannot_be_described_since_the_lease_has_its_put_id(
    bench: Workbench,
) -> None:
    """[P5] It is not given another attempt."""
    queue, starts = bench.queue(max_attempts=1), list[Any]()
    path = replayed(bench, queue)

    def die_of_the_record(operation: str, key: str, perform: Any) -> Any:
        if operation == "put" and key.startswith("orders/records/"):
            raise Killed
        return perform()

    bench.around = die_of_the_record
    with pytest.raises(Killed):
        bench.processor(queue, boom).run(path, read_first=True)
    bench.clock.advance(3600)
    refuse(bench, queue.keys.message(path), "head")
    bench.sweeper(queue).sweep()
    bench.around = None

    bench.processor(queue, starts.append).run(path, read_first=True)
    assert (starts, queue.status(path).state, bench.keys("orders/messages/")) == ([], "dead", [])


def test_what_nobody_could_describe_has_all_its_postponements(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=5, max_postpones=3)
    path = replayed(bench, queue)
    refuse(bench, queue.keys.message(path), "get", "head")
    for _ in range(4):
        bench.processor(queue, boom).run(path, read_first=True)
        bench.clock.advance(4000)
    bench.around = None

    lease = queue.read_lease(path).lease
    assert (lease.state, lease.attempt, lease.postponed) == ("waiting", 4, 0)


def test_a_purge_of_what_cannot_be_described_later_uses_no_attempt(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=2)
    path = replayed(bench, queue)
    bench.processor(queue, boom).run(path, read_first=True)
    with interrupted(bench, path):
        queue.purge()
    bench.clock.advance(3600)
    refuse(bench, queue.keys.message(path), "head")
    bench.sweeper(queue).sweep()
    bench.around = None

    lease = queue.read_lease(path).lease
    assert (lease.state, lease.attempt, lease.is_cancelling) == ("waiting", 1, False)


@pytest.mark.parametrize("error", [AccessDenied("HEAD: refused"), Unavailable("GET: 503")], ids=["refused", "silent"])
def test_in_a_group_the_outcome_of_what_may_be_a_late_repetition_is_kept(bench: Workbench, error: Exception) -> None:
    """[P3] Its death would take the place of it, and a replay of that run it a second time."""
    queue, ran = bench.queue(max_attempts=2), list[Any]()
    path = queue.enqueue({"n": 1}, group="g", dedup_id="order-17", dedup_for=86400)
    key = queue.keys.message(path)
    first = bench.memory.open(key)
    assert first
    body, metadata = first.read(), dict(first.metadata)
    bench.processor(queue, ran.append).run(path)
    bench.clock.advance(5)
    bench.put(key, body, metadata=metadata)

    def fail(operation: str, asked: str, perform: Any) -> Any:
        if operation in ("get", "head") and asked == key:
            raise error
        return perform()

    bench.around = fail
    for _ in range(5):
        bench.processor(queue, ran.append).run(path)
        bench.clock.advance(3600)
    bench.around = None
    assert (queue.outcome_of(path).outcome, bench.keys("orders/dead/")) == ("completed", [])

    bench.processor(queue, ran.append).run(path)
    assert (ran, bench.keys("orders/messages/")) == ([{"n": 1}], [])


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
