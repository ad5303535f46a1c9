"""The partitions of a queue, with who holds them and what they wait for.  [P9]"""

from __future__ import annotations

import json

import pytest

from s3queue import InvalidName, InvalidRequest, Retry
from s3queue.documents.heartbeat import Heartbeat
from s3queue.flow.partition_states import list_partitions
from s3queue.flow.partitions import hold_partition
from s3queue.paths import partition_path


def _pages(queue, limit, **options):
    after, found = "", []
    while after is not None:
        page = list_partitions(queue, limit=limit, after=after, **options)
        assert len(page.partitions) <= limit
        found += page.partitions
        after = page.next_after
    return found


def _fails(bench, queue, path):
    def handler(body):
        raise Retry("later")

    bench.processor(queue, handler).run(path)


def test_each_state_is_told_with_its_worker_and_what_waits(bench):
    queue = bench.queue(retry_base=10)
    queue.enqueue("x", group="free")
    failed = queue.enqueue(json.dumps("x"), group="open")
    queue.enqueue("y", group="open")
    _fails(bench, queue, failed)
    queue.enqueue("x", group="held")
    assert hold_partition(queue.leases, "@held")
    bench.store.take()

    page = list_partitions(queue)
    free, held, opened = page.partitions

    assert bench.store.take() == {"list": 5, "get": 2}
    assert [(one.group, one.state, one.messages, one.waiting) for one in page.partitions] == [
        ("free", "free", 1, 0),
        ("held", "held", 1, 0),
        ("open", "open", 2, 1),
    ]
    assert (free.worker, free.written_at, free.next_at) == ("", None, None)
    assert (held.worker, held.taken) == (queue.worker_id, 1)
    assert (opened.next_path, opened.failure.message) == (failed, "later")
    assert opened.next_at > page.at
    assert page.next_after is None
    json.dumps(page.to_json())


def test_a_lease_that_ran_out_is_overdue_and_one_that_makes_no_sense_is_corrupt(bench):
    queue = bench.queue()
    queue.enqueue("x", group="a")
    assert hold_partition(queue.leases, "@a")
    bench.clock.advance(queue.settings.visibility_timeout.total_seconds() + 3)
    bench.put("orders/leases/@b", b"[]")

    overdue, corrupt = list_partitions(queue).partitions

    assert (overdue.state, overdue.worker) == ("overdue", queue.worker_id)
    assert (corrupt.state, corrupt.messages) == ("corrupt", 0)
    assert "orders/leases/@b" in corrupt.problem


def test_a_heartbeat_that_names_the_partition_keeps_it_held(bench):
    queue = bench.queue()
    queue.enqueue("x", group="a")
    assert hold_partition(queue.leases, "@a")
    bench.clock.advance(queue.settings.visibility_timeout.total_seconds() + 3)
    beat = Heartbeat(
        worker=queue.worker_id,
        started_at=bench.clock.now(),
        ttl=queue.settings.visibility_timeout,
        nonce="n",
        holds=(partition_path("@a"),),
    )
    bench.put(queue.keys.worker(queue.worker_id), beat.to_bytes())
    assert [one.state for one in list_partitions(queue).partitions] == ["held"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_have_every_partition_once_whatever_the_order_of_names(bench, limit):
    queue = bench.queue(partitions=3)
    # `-`, `.` and `%` come before `/`, digits behind it: the folders and the leases have different orders.
    names = ["a", "a-b", "a.b", "a b", "a0", "aa", "b", "a-b-c"]
    for name in names[::2]:
        queue.enqueue("x", group=name)
    for name in ("x", "y", "z", "v"):
        queue.enqueue("x", name=name)
    for name in names[1::2]:
        failed = queue.enqueue(json.dumps("x"), group=name)
        _fails(bench, queue, failed)
        if name != "aa":
            bench.memory.delete(f"orders/{failed}")
    found = _pages(queue, limit)
    assert sorted(one.group for one in found if one.is_group) == sorted(names)
    assert [one.partition for one in found] == sorted({one.partition for one in found}, key=partition_path)
    assert {one.partition for one in found if not one.is_group} <= {"@=0", "@=1", "@=2"}
    assert sum(one.messages for one in found if not one.is_group) == 4
    assert sorted(one.group for one in _pages(queue, limit, leased=True)) == sorted(names[1::2])


def test_thousands_of_groups_are_not_read_to_show_a_few(bench):
    queue = bench.queue()
    for number in range(3000):
        bench.memory.put(f"orders/messages/@{number:05d}/x", b"x")
    bench.store.take()
    page = list_partitions(queue, limit=5)
    assert [one.group for one in page.partitions] == [f"{number:05d}" for number in range(5)]
    assert page.next_after == "@00004"
    assert bench.store.take() == {"list": 7}


def test_more_messages_than_a_page_are_a_lower_bound(bench):
    queue = bench.queue()
    for number in range(1001):
        bench.memory.put(f"orders/messages/@a/{number:05d}", b"x")
    (one,) = list_partitions(queue).partitions
    assert (one.messages, one.is_exact) == (1000, False)


def test_one_group_is_shown_by_its_name_also_if_it_is_empty(bench):
    queue = bench.queue()
    queue.enqueue("x", group="a/b")
    bench.store.take()
    (one,) = list_partitions(queue, group="a/b").partitions
    assert (one.partition, one.group, one.state, one.messages) == ("@a%2Fb", "a/b", "free", 1)
    assert bench.store.take() == {"list": 1, "get": 1}
    (none,) = list_partitions(queue, group="c").partitions
    assert (none.state, none.messages) == ("free", 0)


def test_a_wrong_question_is_refused(bench):
    queue = bench.queue()
    with pytest.raises(InvalidRequest, match="limit must be from 1 to 1000"):
        list_partitions(queue, limit=0)
    with pytest.raises(InvalidRequest, match="'customer-42' is not a partition"):
        list_partitions(queue, after="customer-42")
    with pytest.raises(InvalidName, match="too long"):
        list_partitions(queue, group="x" * 900)


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_messages_whose_names_look_like_partitions_hide_none(bench, limit):
    queue = bench.queue()
    for number in range(1500):
        bench.memory.put(f"orders/messages/@{number:05d}", b"x")
    bench.memory.put("orders/messages/@/x", b"x")
    for name in ("a", "b", "c"):
        queue.enqueue("x", group=name)
    assert [one.group for one in _pages(queue, limit)] == ["a", "b", "c"]
