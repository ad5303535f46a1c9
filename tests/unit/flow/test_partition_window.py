"""What lies in a partition, and can never run, holds nothing else up.  [P9]"""

from __future__ import annotations

import pytest

from s3queue.documents.partition import MOST_WAITING
from s3queue.errors import AccessDenied
from s3queue.flow import partition_window


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
