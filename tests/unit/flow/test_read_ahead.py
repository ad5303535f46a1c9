"""The next messages of a held partition are read while handlers run.  [P9]"""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

from s3queue import Worker
from s3queue.documents.message import INLINE_BYTES
from s3queue.errors import Unavailable
from s3queue.flow import read_ahead
from s3queue.flow.partitions import hold_partition
from s3queue.flow.read_ahead import FRESH_SECONDS, QUICK_SECONDS, READERS, SLOW_GET_SECONDS, Readers
from support.threads import PATIENCE, eventually, hurry

PARTITION = "@=0"


def is_reading():
    return any("-reading" in thread.name for thread in threading.enumerate())


@pytest.fixture
def readers():
    with Readers("w") as readers:
        yield readers
    eventually(lambda: not is_reading())


def fill(bench, messages, **settings):
    queue = bench.queue(partitions=1, **settings)
    paths = [queue.enqueue(json.dumps(number), name=f"{number:04d}") for number in range(messages)]
    return queue, paths


def slow_gets(bench, fails=lambda: False):
    """Every GET of a message takes long enough; returns how often each was read."""
    read = Counter()

    def around(operation, key, perform):
        if operation == "get" and key.startswith("orders/messages/"):
            bench.clock.advance(SLOW_GET_SECONDS * 1.5)
            read[key.removeprefix("orders/")] += 1
            if fails():
                raise Unavailable("no answer")
        return perform()

    bench.around = around
    return read


def take_two(queue, hold):
    """Complete one, which shows how long that takes, and take another: the next ones are read beside it."""
    queue.complete(hold.take())
    return hold.take()


def test_the_next_messages_are_read_while_one_runs_and_none_twice(bench, readers):
    queue, paths = fill(bench, 40)
    read = slow_gets(bench)
    hold = hold_partition(queue.leases, PARTITION, readers)
    claim = take_two(queue, hold)
    eventually(lambda: len(read) == 2 + READERS - 1)

    ran = [paths[0]]
    while claim:
        ran.append(claim.path)
        queue.complete(claim)
        claim = hold.take()

    assert ran == paths
    assert read == Counter(paths)
    assert not hold.advance()
    assert bench.keys("orders/messages/") == []


def test_no_message_is_read_before_the_lease_that_names_it_is_written(bench, readers, monkeypatch):
    """Another holder may finish it in between, and give the partition up: it would run again.  [P4]"""
    monkeypatch.setattr(read_ahead, "QUICK_SECONDS", float("inf"))
    monkeypatch.setattr(read_ahead, "SLOW_GET_SECONDS", 0.0)
    queue, paths = fill(bench, 5)
    unnamed = []

    def around(operation, key, perform):
        if operation == "get" and key.startswith("orders/messages/"):
            unnamed.extend([] if bench.keys("orders/leases/") else [key])
        elif operation == "put" and "/leases/" in key and is_reading():
            eventually(lambda: unnamed)
        return perform()

    bench.around = around
    hold = hold_partition(queue.leases, PARTITION, readers)
    claims = [hold.take() for _ in paths]

    assert [claim.path for claim in claims] == paths
    assert is_reading()
    assert unnamed == []


def test_an_attempt_begins_when_the_message_is_taken_not_when_it_was_read(bench, readers):
    queue, _ = fill(bench, 5)
    read = slow_gets(bench)
    hold = hold_partition(queue.leases, PARTITION, readers)
    queue.complete(take_two(queue, hold))
    eventually(lambda: len(read) == 5)
    bench.clock.advance(0.5)

    claim = hold.take()

    assert claim.since == bench.clock.monotonic()
    assert abs((claim.claimed_at - bench.clock.now()).total_seconds()) < 1  # a Date has whole seconds


def test_what_was_read_too_long_ago_is_read_again(bench, readers):
    """It may have been deleted by hand since, or been PUT anew."""
    queue, paths = fill(bench, 5)
    read = slow_gets(bench)
    hold = hold_partition(queue.leases, PARTITION, readers)
    claim = take_two(queue, hold)
    eventually(lambda: len(read) == 5)
    bench.clock.advance(FRESH_SECONDS + 0.1)
    queue.complete(claim)
    bench.memory.delete(f"orders/{paths[2]}")

    assert hold.take().path == paths[3]
    assert (read[paths[2]], read[paths[3]]) == (2, 2)


def test_a_message_that_was_put_anew_after_it_was_read_runs_afterwards(bench, readers):
    queue, paths = fill(bench, 3)
    read = slow_gets(bench)
    hold = hold_partition(queue.leases, PARTITION, readers)
    claim = take_two(queue, hold)
    eventually(lambda: len(read) == 3)
    queue.enqueue(b'"anew"', name="0002")
    bodies = []
    while claim:
        bodies.append(json.loads(claim.message.body))
        queue.complete(claim)
        claim = hold.take()
    hold.advance()

    hold = hold_partition(queue.leases, PARTITION, readers)

    assert bodies == [1, 2]
    assert json.loads(hold.take().message.body) == "anew"
    assert paths[2].endswith("0002")


def test_an_early_read_that_fails_costs_no_attempt(bench, readers):
    queue, paths = fill(bench, 3)
    read = slow_gets(bench, fails=lambda: "reading" in threading.current_thread().name)
    hold = hold_partition(queue.leases, PARTITION, readers)
    queue.complete(take_two(queue, hold))
    eventually(lambda: len(read) == 3)

    claim = hold.take()

    assert (claim.path, claim.attempt) == (paths[2], 1)
    assert read[paths[2]] == 2


def test_what_one_call_collects_is_read_together_however_long_handlers_take(bench, readers):
    queue, paths = fill(bench, 12)
    read = slow_gets(bench)
    hold = hold_partition(queue.leases, PARTITION, readers)
    hold.take(wanted=3)  # how long a GET takes is unknown before it
    assert list(read) == paths[:1]

    hold.take(wanted=2)

    eventually(lambda: set(read) == set(paths[:4]))
    claims = [hold.take(wanted=1), hold.take()]
    assert [claim.path for claim in claims] == paths[2:4]
    assert read == Counter(paths[:4])


@pytest.mark.parametrize("reason", ["a rate", "slow handlers", "quick GETs", "large messages"])
def test_nothing_is_read_early_if(bench, readers, reason):
    queue, paths = fill(bench, 3, **({"rate": "1000/s"} if reason == "a rate" else {}))
    if reason == "large messages":
        bench.memory.put(f"orders/{paths[2]}", b"x" * (INLINE_BYTES + 1))
    read = slow_gets(bench)
    if reason == "quick GETs":
        bench.around = None
        bench.store.take()
    hold = hold_partition(queue.leases, PARTITION, readers)
    first = hold.take()
    if reason == "slow handlers":
        bench.clock.advance(QUICK_SECONDS + 0.1)
    queue.complete(first)

    hold.take()
    readers.end()

    if reason == "quick GETs":
        read = Counter(key.removeprefix("orders/") for verb, key in bench.store.log if verb == "get")
    assert read[paths[1]] == 1
    assert read[paths[2]] == 0


def test_a_group_goes_on_with_the_message_that_failed_whatever_was_read(bench, readers):
    queue = bench.queue()
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(5)]
    read = slow_gets(bench)
    hold = hold_partition(queue.leases, "@a", readers)
    second = take_two(queue, hold)
    eventually(lambda: len(read) == 5)

    queue.fail(second, "down")

    assert hold.take() is None
    hold.advance()
    bench.clock.advance(60)
    hold = hold_partition(queue.leases, "@a", readers)
    assert [hold.take().path, hold.take()] == [paths[1], None]


def test_nobody_waits_for_what_is_read_in_vain(bench):
    queue, _ = fill(bench, 3)
    going_on = threading.Event()
    read = slow_gets(bench, fails=lambda: "reading" in threading.current_thread().name and not going_on.wait(PATIENCE))
    try:
        with Readers("w") as readers:
            take_two(queue, hold_partition(queue.leases, PARTITION, readers))
            eventually(lambda: len(read) == 3)
    finally:
        was_waited_for = not is_reading()
        going_on.set()

    assert not was_waited_for
    eventually(lambda: not is_reading())


def test_a_worker_leaves_no_reading_thread(bench):
    queue, paths = fill(bench, 300)
    read = slow_gets(bench)
    names = set()

    def handler(number):
        names.update(thread.name for thread in threading.enumerate())

    worker = Worker(queue, handler, concurrency=2, sweep=False)
    hurry(worker)
    worker.run_until_empty()

    assert any(name.startswith(f"{queue.worker_id}-reading") for name in names)
    eventually(lambda: not is_reading())
    assert worker.stats()["succeeded"] == 300
    assert set(read) == set(paths)
