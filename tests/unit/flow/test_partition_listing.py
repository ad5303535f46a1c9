"""Lists, the dashboard's views and purges of queues that have partitions.  [P9]"""

from __future__ import annotations

import json

import pytest

from s3queue import DeadLetters, Reject, Retry
from s3queue.dashboard.browse import browse
from s3queue.dashboard.stuck import stuck
from s3queue.documents.partition import PartitionLease
from s3queue.errors import AccessDenied
from s3queue.flow.partitions import hold_partition
from s3queue.spark_runs.claims import Waiting
from support.interruption import interrupted

STATES = ("pending", "processing", "waiting", "completed", "dead", "cancelled")


@pytest.fixture
def sample(bench):
    """A queue with a message of each state in groups, and one pending message without a group."""
    queue, found = bench.queue(retry_base=100, worker_id="w1"), {}

    def run(body, group, error=None):
        path = queue.enqueue(json.dumps(body), group=group)

        def handler(body):
            if error:
                raise error

        bench.processor(queue, handler).run(path)
        return path

    found["completed"] = [run(number, "done") for number in range(3)]
    found["dead"] = [run("x", "dead", Reject("no"))]
    found["waiting"] = [run("x", "late", Retry("later"))]
    behind = queue.enqueue(json.dumps("behind"), group="late")
    found["cancelled"] = [queue.enqueue(json.dumps("x"), group="gone")]
    queue.cancel(found["cancelled"][0])
    found["processing"] = [queue.enqueue(json.dumps("x"), group="busy")]
    hold_partition(queue.leases, "@busy")
    found["pending"] = [queue.enqueue(json.dumps("x"), group="busy"), behind, queue.enqueue(json.dumps("x"))]
    return queue, {state: sorted(paths) for state, paths in found.items()}


def test_each_message_is_listed_in_its_state_and_in_no_other(sample):
    queue, expected = sample
    listed = {state: sorted(row.path for row in queue.list(state).messages) for state in STATES}
    assert listed == expected


@pytest.mark.parametrize("limit", [1, 2])
def test_pages_show_every_message_once(sample, limit):
    queue, expected = sample
    for state in STATES:
        paths, after = [], ""
        while after is not None:
            page = queue.list(state, limit=limit, after=after)
            paths += [row.path for row in page.messages]
            after = page.next_after
        assert sorted(paths) == expected[state], state


@pytest.mark.parametrize("state", ["completed", "waiting", "processing", "pending"])
def test_a_prefix_is_the_beginning_of_a_path(sample, state):
    queue, expected = sample
    path = expected[state][0]
    folder = path.rpartition("/")[0] + "/"
    wanted = [one for one in expected[state] if one.startswith(folder)]
    assert sorted(row.path for row in queue.list(state, prefix=folder).messages) == wanted


def test_rows_tell_who_works_on_a_message_and_when_it_is_tried_again(sample):
    queue, _ = sample
    [running], [late] = queue.list("processing").messages, queue.list("waiting").messages
    assert (running.worker, running.attempt) == ("w1", 1)
    assert (late.attempt, late.failure.message) == (1, "later")
    assert late.due_at is not None


def test_the_dashboard_shows_each_message_in_its_state(sample):
    queue, expected = sample
    for state in ("pending", "processing", "waiting", "completed"):
        assert sorted(row.path for row in browse(queue, state, "", "", 100).messages) == expected[state]


def test_documents_of_a_partition_that_cannot_be_read_are_shown_as_such(bench, sample):
    queue, _ = sample
    bench.put("orders/leases/@bad", b"{")
    bench.put("orders/records/@bad/x.json", b"{")
    assert [row.path for row in queue.list("processing").messages if row.state == "corrupt"] == ["@bad"]
    assert [row.path for row in browse(queue, "processing", "", "", 100).messages if row.state == "corrupt"] == ["@bad"]
    assert len(queue.list("completed").messages) == 3


def test_a_group_that_a_retry_holds_up_and_a_holder_that_is_gone_are_shown(bench, sample):
    queue, expected = sample
    bench.clock.advance(50)
    found = {one.path: one for one in stuck(queue).leases}
    assert expected["waiting"][0] in found["messages/@late/"].reason
    assert "not before" in found["messages/@late/"].reason
    assert "ran out" in found["messages/@busy/"].reason
    bench.clock.advance(3600)
    assert "is due" in {one.path: one for one in stuck(queue).leases}["messages/@late/"].reason


def test_a_purge_leaves_what_a_held_partition_may_be_running(bench, sample):
    queue, expected = sample
    assert queue.purge() == 3
    assert bench.keys("orders/messages/") == sorted(
        f"orders/{path}" for path in expected["processing"] + expected["pending"] if "@busy" in path
    )
    assert "orders/leases/@late" not in bench.keys("orders/leases/")


def test_a_purged_message_that_waited_is_not_recorded_as_a_death(bench, sample):
    queue, expected = sample
    queue.purge()
    bench.clock.advance(3600)
    bench.processor(queue, lambda body: None).run(queue.enqueue(json.dumps("x"), group="late"))
    assert [row.path for row in queue.list("dead").messages] == expected["dead"]
    assert queue.outcome_of(expected["waiting"][0]) is None


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_purge_that_is_interrupted_gives_a_message_that_waits_no_new_attempts(bench, sample, is_deleted):
    queue, expected = sample
    [late] = expected["waiting"]
    before = PartitionLease.read(bench.memory.open("orders/leases/@late")).waiting[late].lease

    with interrupted(bench, late, is_deleted=is_deleted):
        queue.purge()
    after = PartitionLease.read(bench.memory.open("orders/leases/@late")).waiting[late].lease
    assert (after.attempt, after.attempts, after.leased_etag) == (before.attempt, before.attempts, before.leased_etag)
    bench.clock.advance(3600)
    bench.processor(queue, lambda body: None).run(late)
    assert [row.path for row in queue.list("dead").messages] == expected["dead"]
    outcome = queue.outcome_of(late)
    assert outcome is None if is_deleted else outcome.attempt == before.attempt + 1


def test_a_purge_leaves_what_waits_in_a_partition_and_was_put_anew_since_it_was_listed(bench, sample):
    queue, expected = sample
    [late] = expected["waiting"]
    [entry] = queue.store.list(queue.keys.message(late)).objects
    bench.put(f"orders/{late}", b"other")
    before = PartitionLease.read(bench.memory.open("orders/leases/@late")).waiting
    assert not queue.purge_message(entry)
    assert PartitionLease.read(bench.memory.open("orders/leases/@late")).waiting == before
    assert f"orders/{late}" in bench.keys("orders/messages/")


def parked(bench, queue, *paths):
    """They are dead, and lie there because nobody can read them."""

    def refuse(operation, key, perform):
        if operation == "copy" or (operation == "get" and key in [f"orders/{path}" for path in paths]):
            raise AccessDenied(key)
        return perform()

    for path in paths:
        bench.put(f"orders/{path}", b"{}")
    bench.clock.advance(5)
    bench.around = refuse
    for _ in paths:
        bench.processor(queue, lambda body: None).run(paths[0])
        bench.clock.advance(60)
    bench.around = None
    return [next(iter(queue.store.list(f"orders/{path}").objects)) for path in paths]


def test_a_letter_that_is_replayed_after_an_interrupted_purge_runs(bench):
    """[P1] Its message lies where it died, and an entry of its partition keeps workers off that one only."""
    queue, ran = bench.queue("orders", max_attempts=1), []
    path = "messages/@g/a"
    parked(bench, queue, path)
    with interrupted(bench, path):
        queue.purge()
    bench.clock.advance(600)
    (letter,) = DeadLetters(queue).list()
    DeadLetters(queue).replay(letter.path)
    bench.clock.advance(60)
    bench.processor(queue, ran.append).run(path)

    assert ran == [{}]


def test_of_two_purges_at_once_in_a_partition_neither_leaves_anything_behind(bench):
    """[P1] What is PUT under the same name later runs."""
    queue, ran = bench.queue("orders", max_attempts=1, partitions=1), []
    first, second = parked(bench, queue, "messages/@=0/a", "messages/@=0/b")

    def meanwhile(operation, key, perform):
        if operation == "delete" and key == first.key:
            bench.around = None
            assert queue.purge_message(second)
        return perform()

    bench.around = meanwhile
    assert queue.purge_message(first)
    assert bench.keys("orders/leases/") == []

    bench.put(first.key, b"{}")
    bench.clock.advance(5)
    bench.processor(queue, ran.append).run("messages/@=0/a")
    assert ran == [{}]


def test_what_is_put_where_a_message_was_being_purged_begins_anew(bench, sample):
    """[P5] The purge was killed before the entry of what waited went."""
    queue, expected = sample
    [late] = expected["waiting"]
    body = bench.read(f"orders/{late}")
    with interrupted(bench, late, is_deleted=True):
        queue.purge()
    bench.clock.advance(3600)
    bench.put(f"orders/{late}", body)
    bench.clock.advance(5)
    bench.processor(queue, lambda body: None).run(late)

    assert queue.outcome_of(late).attempt == 1


def test_a_spark_run_leaves_the_leases_of_partitions_alone(bench, sample):
    queue, _ = sample
    bench.store.take()
    assert Waiting(queue).due() == []
    assert bench.store.take() == {"list": 1}
