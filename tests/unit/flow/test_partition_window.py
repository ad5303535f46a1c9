"""What lies in a partition, and can never run, holds nothing else up.  [P9]"""

from __future__ import annotations

import pytest

from s3queue import Postpone
from s3queue.documents.partition import MOST_WAITING, PartitionLease
from s3queue.errors import AccessDenied
from s3queue.flow import partition_window
from s3queue.flow.partitions import has_work, hold_partition
from s3queue.protocol.journal import find_outcome

#: Failed messages that a share may have here: more than one look asks for.
MANY = 25


def _run(bench, queue, handler, path):
    return bench.processor(queue, handler).run(path)


@pytest.mark.parametrize("partition", ["@=0", "@a"])
def test_a_name_that_is_too_long_for_a_lease_dies_alone(bench, partition):
    queue, seen, dead = bench.queue(), [], []
    queue.events.on("message.dead", lambda event: dead.append(event["path"]))
    folder = f"orders/messages/{partition}/"
    bench.put(folder + "0" * (1024 - len(folder)), b'{"n": "long"}')
    bench.put(folder + "1", b'{"n": 1}')

    _run(bench, queue, lambda body: seen.append(body["n"]), f"messages/{partition}/1")

    assert seen == [1]
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    assert [len(path) for path in dead] == [1024 - len("orders/")]
    [letter] = bench.keys("orders/dead/")
    assert bench.read(letter) == b'{"n": "long"}'


def test_one_that_can_be_neither_run_nor_buried_holds_nothing_up(bench):
    queue, seen = bench.queue(), []
    folder = "orders/messages/@a/"
    long = folder + "0" * (1024 - len(folder))
    bench.put(long, b'{"n": "long"}')
    bench.put(folder + "1", b'{"n": 1}')

    def around(operation, key, perform):
        if operation in ("get", "head") and key == long:
            raise AccessDenied("403")
        return perform()

    bench.around = around
    for _ in range(2):
        _run(bench, queue, lambda body: seen.append(body["n"]), "messages/@a/1")

    assert seen == [1]
    assert bench.keys("orders/messages/") == [long]
    assert bench.keys("orders/leases/") == []


@pytest.mark.parametrize("partition", ["@=0", "@a"])
def test_a_page_of_folders_hides_no_message(bench, partition):
    queue, seen = bench.queue(), []
    for number in range(1001):
        bench.put(f"orders/messages/{partition}/{number:04}/", b"")
    bench.put(f"orders/messages/{partition}/x", b'{"n": 1}')

    _run(bench, queue, lambda body: seen.append(body["n"]), f"messages/{partition}/x")

    assert seen == [1]


def _unreadable(bench, prefix):
    """Messages that nobody may read, and whose letters only stand for them."""

    def around(operation, key, perform):
        if key.startswith((prefix, f"orders/dead/{prefix.removeprefix('orders/')}")) and operation in ("get", "copy"):
            raise AccessDenied("403")
        return perform()

    bench.around = around


@pytest.mark.parametrize(("partition", "count"), [("@=0", MOST_WAITING), ("@=0", 4), ("@a", 4)])
def test_messages_that_nobody_can_read_do_not_stop_their_partition(bench, partition, count, monkeypatch):
    monkeypatch.setattr(partition_window, "PAGE", 3)
    monkeypatch.setattr(partition_window, "PAGES", 100, raising=False)
    queue, seen = bench.queue(max_attempts=2), []
    for number in range(count):
        bench.put(f"orders/messages/{partition}/bad-{number:04}", b"{}")
    _unreadable(bench, f"orders/messages/{partition}/bad-")
    path = f"messages/{partition}/good"
    for _ in range(12):
        _run(bench, queue, lambda body: None, path)
        bench.clock.advance(2)
    assert len(bench.keys("orders/dead/")) == count

    bench.put(f"orders/{path}", b'{"n": 1}')
    _run(bench, queue, lambda body: seen.append(body["n"]), path)

    assert seen == [1]
    assert len(bench.keys("orders/messages/")) == count


def test_a_full_partition_finds_what_is_due_behind_a_page_of_others(bench, monkeypatch):
    monkeypatch.setattr(partition_window, "PAGE", 250)
    queue, seen, is_down = bench.queue(retry_base=10), [], True

    def handler(body):
        seen.append(body["n"])
        if is_down:
            raise ValueError("down")

    for number in range(MOST_WAITING):
        bench.put(f"orders/messages/@=0/z-{number:04}", b'{"n": %d}' % number)
    _run(bench, queue, handler, "messages/@=0/z")
    for number in range(251):
        bench.put(f"orders/messages/@=0/a-{number:04}", b'{"n": "a"}')
    is_down = False
    bench.clock.advance(11)

    _run(bench, queue, handler, "messages/@=0/z")

    assert seen.count("a") == 251
    assert bench.keys("orders/messages/") == []


def _fill(bench, queue, monkeypatch, name, error):
    """A share with as many failed messages as it may have, and then others: more pages than one look reads."""

    def handler(body):
        raise error

    monkeypatch.setattr(partition_window, "MOST_WAITING", MANY)
    for number in range(MANY):
        bench.put(f"orders/messages/@=0/{name}-{number:04}", b'{"n": "%b"}' % name.encode())
    _run(bench, queue, handler, "messages/@=0/x")
    monkeypatch.setattr(partition_window, "PAGE", 10)
    for number in range(10 * (partition_window.PAGES + 2)):
        bench.put(f"orders/messages/@=0/m-{number:04}", b'{"n": "m"}')
    return sorted(PartitionLease.read(bench.memory.open("orders/leases/@=0")).waiting)


def _run_all(bench, queue, seen):
    """Until nothing more happens, as the sweeper would call for it."""
    for _ in range(40):
        _run(bench, queue, lambda body: seen.append(body["n"]), "messages/@=0/x")
        bench.clock.advance(1)


def test_a_full_share_finds_what_is_due_behind_any_number_of_others(bench, monkeypatch):
    """Nothing else is taken before one of these has run: it would stand still for ever."""
    queue, seen = bench.queue(retry_base=10), []
    _fill(bench, queue, monkeypatch, "z", ValueError("down"))
    bench.clock.advance(11)

    assert has_work(queue.leases, "@=0")
    _run(bench, queue, lambda body: seen.append(body["n"]), "messages/@=0/x")

    assert (seen.count("z"), seen.count("m")) == (MANY, 10 * (partition_window.PAGES + 2))
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_look_asks_for_few_messages_by_their_names(bench, monkeypatch):
    queue = bench.queue(retry_base=10)
    _fill(bench, queue, monkeypatch, "z", ValueError("down"))
    bench.clock.advance(11)
    bench.store.take()

    hold = hold_partition(queue.leases, "@=0")

    assert len(PartitionLease.read(bench.memory.open("orders/leases/@=0")).taken) == partition_window.PAGES
    assert bench.store.take()["list"] == 1 + partition_window.PAGES
    hold.advance(stop=True)


@pytest.mark.parametrize("error", [ValueError("down"), Postpone(10)], ids=["failed", "postponed"])
@pytest.mark.parametrize("name", ["a", "z"])
def test_messages_of_a_full_share_that_are_deleted_by_hand_leave_their_places(bench, monkeypatch, name, error):
    """Whether or not a record has to say so, and wherever their names are among the others."""
    queue, seen = bench.queue(retry_base=10), []
    paths = _fill(bench, queue, monkeypatch, name, error)
    assert len(paths) == MANY
    for path in paths:
        bench.memory.delete(f"orders/{path}")
    bench.clock.advance(11)

    assert has_work(queue.leases, "@=0")
    _run_all(bench, queue, seen)

    assert seen == ["m"] * (10 * (partition_window.PAGES + 2))
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    outcomes = {record and record.failure.type for record in (find_outcome(queue, path) for path in paths)}
    assert outcomes == ({"MessageVanished"} if isinstance(error, ValueError) else {None})
