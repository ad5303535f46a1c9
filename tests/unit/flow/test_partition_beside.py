"""A commit of a partition while other threads work on its messages.  [P9]"""

from __future__ import annotations

import json
import threading

import pytest

from s3queue import Worker
from s3queue.documents.lease import Lease
from s3queue.documents.message import Generation
from s3queue.documents.partition import PartitionLease, Waiting
from s3queue.errors import LeaseLost
from s3queue.flow.partitions import hold_partition
from support.threads import PATIENCE, hurry

PARTITION = "@=0"


def filled(bench, messages, **settings):
    queue = bench.queue(partitions=1, **settings)
    paths = [queue.enqueue(json.dumps(number), name=f"{number:04d}") for number in range(messages)]
    return queue, paths


def stored(bench):
    return PartitionLease.read(bench.memory.open(f"orders/leases/{PARTITION}"))


def run_until_low(queue, hold):
    """Take one, and leave it running; run others until a commit beside it is due."""
    running = hold.take()
    ended = []
    while not hold.is_low:
        claim = hold.take()
        queue.complete(claim)
        ended.append(claim.path)
    return running, ended


def test_what_has_ended_is_committed_and_more_is_taken_while_one_runs(bench):
    queue, paths = filled(bench, 260)
    hold = hold_partition(queue.leases, PARTITION)
    running, ended = run_until_low(queue, hold)

    assert hold.advance_beside()

    lease = stored(bench)
    assert [record.path for record in lease.ended] == ended
    assert set(lease.taken) == set(paths[:200]) - set(ended)
    assert running.path in lease.taken
    hold.clear()
    assert len(bench.keys("orders/messages/")) == 260 - len(ended)
    assert not hold.is_low
    assert hold.take().path == paths[len(ended) + 1]


def test_a_name_that_was_put_anew_is_left_until_the_finished_message_is_deleted(bench):
    """Else the deletion of the finished one would delete it.  [P1]"""
    queue, paths = filled(bench, 100)
    hold = hold_partition(queue.leases, PARTITION)
    running, ended = run_until_low(queue, hold)
    bench.clock.advance(2)
    queue.enqueue(b"other bytes", name=ended[3].rpartition("/")[2])
    new = queue.enqueue(b"new", name="9999")

    assert hold.advance_beside()

    assert set(stored(bench).taken) == {*paths, new} - set(ended)
    hold.clear()
    assert f"orders/{ended[3]}" in bench.keys("orders/messages/")
    queue.complete(running)
    while claim := hold.take():
        queue.complete(claim)
    assert hold.advance()
    assert hold.take().message.body == b"other bytes"


def test_a_late_answer_gives_no_time_to_a_hold_that_could_not_record_how_a_message_ended(bench):
    """Else the partition is given up, and nobody has counted that start.  [P5]"""
    queue, _ = filled(bench, 260)
    hold = hold_partition(queue.leases, PARTITION)
    running, _ = run_until_low(queue, hold)
    bench.clock.advance(20)

    def around(operation, key, perform):
        answer = perform()
        if operation == "put" and key == f"orders/leases/{PARTITION}":
            bench.around = None
            bench.clock.advance(15)
            with pytest.raises(LeaseLost):
                queue.complete(running)
            hold.lose(running)
        return answer

    bench.around = around
    assert hold.advance_beside()

    for go_on in (hold.clear, hold.advance, hold.give_up):
        with pytest.raises(LeaseLost):
            go_on()
    assert running.path in stored(bench).taken
    bench.clock.advance(60)
    assert hold_partition(bench.queue(partitions=1).leases, PARTITION)
    assert stored(bench).waiting[running.path].is_suspect


def test_what_runs_is_not_taken_once_more(bench):
    queue, _ = filled(bench, 100)
    hold = hold_partition(queue.leases, PARTITION)
    running, _ = run_until_low(queue, hold)
    new = queue.enqueue(b"new", name="9999")

    assert hold.advance_beside()

    hold.clear()
    left = []
    while claim := hold.take():
        left.append(claim.path)
    assert running.path not in left
    assert left[-1] == new


def test_with_nothing_more_to_take_it_is_not_asked_again(bench):
    queue, _ = filled(bench, 100)
    hold = hold_partition(queue.leases, PARTITION)
    running, _ = run_until_low(queue, hold)

    assert not hold.advance_beside()

    assert not hold.is_low
    assert stored(bench).ended == ()
    bench.store.take()
    queue.complete(running)
    while claim := hold.take():
        queue.complete(claim)
    assert not hold.advance()
    # It was listed: who gives it up looks once more in any case.
    assert bench.store.take().get("list", 0) == 0
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


@pytest.mark.parametrize("settings", [{"max_attempts": 1}, {"group": "a"}])
def test_with_one_attempt_or_an_order_nothing_is_taken_beside_others(bench, settings):
    group = settings.pop("group", None)
    queue = bench.queue(partitions=1, **settings)
    for number in range(150):
        queue.enqueue(json.dumps(number), group=group)
    hold = hold_partition(queue.leases, "@a" if group else PARTITION)

    while claim := hold.take():
        assert not hold.is_low
        queue.complete(claim)


def test_a_zombie_commits_nothing_beside_what_it_runs(bench):
    queue, _ = filled(bench, 160)
    hold = hold_partition(queue.leases, PARTITION)
    _, ended = run_until_low(queue, hold)
    bench.clock.advance(1000)
    other = hold_partition(bench.queue(worker_id="other", partitions=1).leases, PARTITION)
    assert other

    with pytest.raises(LeaseLost):
        hold.advance_beside()

    assert f"orders/{ended[0]}" in bench.keys("orders/messages/")


def test_threads_do_not_wait_for_one_that_is_slow(bench):
    """A thousand messages are done with while the first one still runs."""
    queue, _ = filled(bench, 1000)
    done, let_go, mutex = [], threading.Event(), threading.Lock()

    def handler(number):
        if number == 0:
            assert let_go.wait(PATIENCE)
        with mutex:
            done.append(number)
            if len(done) == 999:
                let_go.set()

    worker = Worker(queue, handler, concurrency=3, sweep=False)
    hurry(worker)
    worker.run_until_empty()

    assert sorted(done) == list(range(1000))
    assert worker.stats()["succeeded"] == 1000
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


@pytest.mark.parametrize("concurrency", [1, 3, 10])
def test_a_worker_with_partitions_needs_less_than_a_tenth_of_a_request_beside_the_get(bench, concurrency):
    # The clock goes on while idle threads wait, and nobody's handler may take the time of a lease here.
    queue = bench.queue(partitions=2, visibility_timeout=3600)
    for number in range(2000):
        queue.enqueue(json.dumps(number))
    bench.store.take()

    worker = Worker(queue, lambda body: None, concurrency=concurrency, sweep=False)
    worker.run_until_empty()

    assert worker.stats()["succeeded"] == 2000
    spent = bench.store.take()
    assert sum(spent.values()) <= 1.1 * 2000
    # Its PUT, its GET, and the rest, at $5 and $0.40 a million; a DELETE is free.
    writes = spent["put"] + spent["list"]
    assert 5 * 2000 + 0.4 * spent["get"] + 5 * writes <= 5.60 * 2000


def test_a_thread_that_is_done_with_a_failed_message_leaves_its_next_attempt_alone(bench):
    """It may have failed, been committed, and been taken again by another thread before the first one goes on.  [P5]"""
    queue = bench.queue(retry_base=1)
    queue.enqueue(b"1", group="a")
    hold = hold_partition(queue.leases, "@a")
    first = hold.take()
    queue.fail(first, "first try", retry_after=0)
    assert hold.advance()
    second = hold.take()
    assert second.attempt == 2

    hold.put_back(first.path, first)

    assert not hold.is_done
    queue.complete(second)
    assert not hold.advance()
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_what_its_worker_may_have_died_of_is_not_taken_beside_others(bench):
    """It runs alone, so that the next death is known to be its own.  [P5]"""
    queue, paths = filled(bench, 260)
    hold = hold_partition(queue.leases, PARTITION)
    run_until_low(queue, hold)
    (found,) = bench.memory.list(f"orders/{paths[100]}").objects
    generation = Generation(etag=found.etag, put_at=found.modified_at)
    lease = Lease(
        state="waiting",
        attempt=1,
        owner="the dead one",
        nonce="",
        timeout=queue.settings.visibility_timeout,
        generation=generation,
        retry_at=generation.put_at,
    )
    hold._waiting[paths[100]] = Waiting(paths[100], lease, is_suspect=True)

    assert not hold.advance_beside()
    assert paths[100] not in stored(bench).taken


def test_what_has_ended_is_not_kept_in_memory_for_as_long_as_its_partition_is_held(bench):
    """A function may hold one for a quarter of an hour, and a claim has the whole payload."""
    queue, _ = filled(bench, 260, retry_base=60)
    hold = hold_partition(queue.leases, PARTITION)
    for number in range(150):
        if (claim := hold.take()) is None:
            assert hold.advance()
            claim = hold.take()
        if number % 3:
            queue.complete(claim)
        else:
            queue.fail(claim, "no")

    assert not hold._claims


def test_a_commit_that_gives_less_time_than_a_handler_asked_for_counts_from_when_it_is_sent(bench):
    """[P2] [P4] It may be stored long before its answer comes: then another worker may have the partition by now."""
    queue, _ = filled(bench, 260, visibility_timeout=30)
    hold = hold_partition(queue.leases, PARTITION)
    running, _ = run_until_low(queue, hold)
    queue.extend(running, 3600)
    alive = []

    def slow(operation, key, perform):
        done = perform()
        if operation == "put" and key == f"orders/leases/{PARTITION}":
            bench.around = None
            bench.clock.advance(40)
            alive.append(hold.claim.is_alive())
            assert hold_partition(bench.queue(worker_id="other").leases, PARTITION)
        return done

    bench.around = slow
    hold.advance_beside()

    assert not any(alive)
