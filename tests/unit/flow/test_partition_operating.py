"""What operators see of the messages of partitions, and do with them.  [P9]"""

from __future__ import annotations

import json

import pytest

from s3queue import Conflict, InvalidRequest, MessageNotFound, Reject, Retry
from s3queue.documents.partition import PartitionLease
from s3queue.flow.partitions import hold_partition


def _fails(body):
    raise Retry("later")


def _rejects(body):
    raise Reject("no")


def _run(bench, queue, handler, path):
    return bench.processor(queue, handler).run(path)


# Status


def test_a_message_that_nobody_has_taken_is_pending(bench, queue):
    path = queue.enqueue(json.dumps("x"), group="a")
    status = queue.status(path)
    assert (status.state, status.lease, status.record) == ("pending", None, None)
    assert queue.retry_info(path).state == "pending"


def test_a_message_that_was_taken_is_processing_and_its_holder_is_named(bench):
    queue = bench.queue(worker_id="w1")
    path = queue.enqueue(json.dumps("x"), group="a")
    hold_partition(queue.leases, "@a")
    later = queue.enqueue(json.dumps("y"), group="a")

    status = queue.status(path)
    assert (status.state, status.lease.owner, status.lease.attempt) == ("processing", "w1", 1)
    assert queue.retry_info(path).state == "processing"
    assert queue.status(later).state == "pending"


def test_a_message_that_failed_waits_with_its_attempts_and_the_time_of_its_retry(bench):
    queue = bench.queue(retry_base=10)
    path = queue.enqueue(json.dumps("x"), group="a")
    _run(bench, queue, _fails, path)

    status, info = queue.status(path), queue.retry_info(path)
    assert (status.state, status.lease.attempt, len(status.attempts)) == ("waiting", 1, 1)
    assert status.to_json()["failure"]["message"] == "later"
    assert status.to_json()["retry_at"]
    assert (info.state, info.attempt, info.retry_at) == ("waiting", 1, status.lease.retry_at)


def test_an_outcome_that_is_committed_counts_although_the_message_still_lies_there(bench):
    queue = bench.queue()
    path = queue.enqueue(json.dumps("x"), group="a")
    hold = hold_partition(queue.leases, "@a")
    queue.complete(hold.take(), {"n": 1})
    bench.around = _dies_before("put", "orders/records/")
    with pytest.raises(_Killed):
        hold.advance(stop=True)
    bench.around = None

    assert bench.keys("orders/messages/") == [f"orders/{path}"]
    status = queue.status(path)
    assert (status.state, status.record.result, status.lease) == ("completed", {"n": 1}, None)


@pytest.mark.parametrize(("handler", "outcome"), [(lambda body: "done", "completed"), (_rejects, "dead")])
def test_a_finished_message_is_found_in_a_journal(bench, queue, handler, outcome):
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(3)]
    _run(bench, queue, handler, paths[0])
    bench.clock.advance(5)
    for number in range(3):
        _run(bench, queue, handler, queue.enqueue(json.dumps(number), group="a"))

    status = queue.status(paths[1])
    assert (status.state, status.record.path, len(status.attempts)) == (outcome, paths[1], 1)
    with pytest.raises(MessageNotFound):
        queue.retry_info(paths[1])


def test_a_name_that_is_put_anew_is_pending_whatever_became_of_the_one_before(bench, queue):
    path = queue.enqueue(json.dumps("x"), group="a", name="daily")
    _run(bench, queue, lambda body: None, path)
    bench.clock.advance(10)
    queue.enqueue(json.dumps("x"), group="a", name="daily")
    assert queue.status(path).state == "pending"


def test_a_lease_of_a_partition_that_cannot_be_read_is_shown_as_such(bench, queue):
    path = queue.enqueue(json.dumps("x"), group="a")
    bench.put("orders/leases/@a", b"{")
    status = queue.status(path)
    assert status.state == "corrupt"
    assert "orders/leases/@a" in status.problem


@pytest.mark.parametrize("path", ["messages/@a/missing", "messages/@a/"])
def test_what_is_not_there_is_not_found(queue, path):
    with pytest.raises(MessageNotFound):
        queue.status(path)


def test_a_journal_that_cannot_be_read_hides_no_other(bench, queue):
    path = queue.enqueue(json.dumps("x"), group="a")
    _run(bench, queue, lambda body: None, path)
    bench.put("orders/records/@a/zzz.json", b"garbage")
    assert queue.status(path).state == "completed"


# Cancel


def test_a_cancelled_message_of_a_group_never_runs_and_the_others_do(bench):
    queue, seen = bench.queue(), []
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(3)]

    record = queue.cancel(paths[1])

    assert (record.outcome, record.path, record.attempt) == ("cancelled", paths[1], 0)
    assert record.is_withdrawn
    assert bench.keys("orders/leases/") == []
    _run(bench, queue, seen.append, paths[0])
    assert seen == [0, 2]
    assert queue.status(paths[1]).state == "cancelled"
    assert queue.cancel(paths[1]).outcome == "cancelled"
    assert queue.cancel(paths[0]).outcome == "completed"


def test_whoever_cancels_hands_the_rest_of_the_partition_over(bench, queue, dispatched):
    """The events of messages that come while the partition is held find it held, and end."""
    path = queue.enqueue(json.dumps("x"), group="a")

    def around(operation, key, perform):
        if operation == "delete" and key == "orders/leases/@a":
            bench.around = None
            queue.enqueue(json.dumps("late"), group="a")
        return perform()

    bench.around = around
    queue.cancel(path)
    assert len(bench.keys("orders/retries/")) == 1
    bench.sweeper(queue, dispatched).tick()
    assert len(dispatched) == 1
    assert dispatched[0].startswith("messages/@a/")


def test_a_cancelled_message_that_failed_keeps_its_attempts_and_no_longer_holds_its_group_up(bench):
    queue, seen = bench.queue(retry_base=100), []
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(2)]
    _run(bench, queue, _fails, paths[0])

    record = queue.cancel(paths[0])

    assert (record.outcome, record.attempt, len(record.attempts)) == ("cancelled", 1, 1)
    _run(bench, queue, seen.append, paths[1])
    assert seen == [1]


def test_others_that_wait_go_on_waiting(bench):
    queue = bench.queue(partitions=1, retry_base=100)
    paths = [queue.enqueue(json.dumps(number)) for number in range(2)]
    _run(bench, queue, _fails, paths[0])

    queue.cancel(paths[0])

    assert queue.status(paths[1]).state == "waiting"
    assert queue.status(paths[0]).state == "cancelled"


def test_a_message_whose_partition_is_held_is_not_cancelled_and_its_holder_is_named(bench):
    queue, other, seen = bench.queue(), bench.queue(worker_id="w1"), []
    path = queue.enqueue(json.dumps("x"), group="a")
    hold_partition(other.leases, "@a")
    before = bench.keys()

    with pytest.raises(Conflict, match=r"w1 holds its partition, @a.*nothing was changed"):
        queue.cancel(path)

    assert bench.keys() == before
    bench.clock.advance(60)
    _run(bench, queue, seen.append, path)
    assert seen == ["x"]


def test_a_message_whose_holder_has_died_can_be_cancelled(bench):
    queue, other = bench.queue(), bench.queue(worker_id="w1")
    path = queue.enqueue(json.dumps("x"), group="a")
    hold_partition(other.leases, "@a")
    bench.clock.advance(60)

    assert queue.cancel(path).outcome == "cancelled"
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_what_the_last_holder_committed_is_finished_by_whoever_cancels(bench):
    queue, other = bench.queue(), bench.queue(worker_id="w1")
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(2)]
    hold = hold_partition(other.leases, "@a")
    other.complete(hold.take())
    bench.around = _dies_before("put", "orders/records/")
    with pytest.raises(_Killed):
        hold.advance(stop=True)
    bench.around = None
    assert queue.cancel(paths[0]).outcome == "completed"
    bench.clock.advance(60)

    assert queue.cancel(paths[1]).outcome == "cancelled"
    assert [queue.status(path).state for path in paths] == ["completed", "cancelled"]
    assert bench.keys("orders/messages/") == []


def test_a_cancel_that_was_committed_and_then_lost_its_answer_is_repeated_safely(bench):
    queue = bench.queue()
    path = queue.enqueue(json.dumps("x"), group="a")
    bench.around = _dies_before("put", "orders/records/")
    with pytest.raises(_Killed):
        queue.cancel(path)
    bench.around = None
    assert queue.cancel(path).outcome == "cancelled"
    bench.clock.advance(60)
    seen = []
    _run(bench, bench.queue(), seen.append, path)
    assert seen == bench.keys("orders/messages/") == []


def test_a_zombie_cannot_complete_what_was_cancelled_after_its_lease_had_run_out(bench):
    queue, other = bench.queue(), bench.queue(worker_id="w1")
    path = queue.enqueue(json.dumps("x"), group="a")

    def handler(body):
        bench.clock.advance(60)
        queue.cancel(path)

    assert _run(bench, other, handler, path) == "lost"
    assert queue.status(path).state == "cancelled"


@pytest.mark.parametrize("path", ["messages/@a/", "messages/@=3/"])
def test_a_whole_partition_cannot_be_cancelled_or_retried(queue, path):
    with pytest.raises(InvalidRequest, match="whole partition"):
        queue.cancel(path)
    with pytest.raises(InvalidRequest, match="whole partition"):
        queue.retry(path)


def test_what_is_not_there_cannot_be_cancelled(queue):
    with pytest.raises(MessageNotFound):
        queue.cancel("messages/@a/nothing")


# Retry now


def test_a_message_that_waits_is_tried_now_and_its_group_goes_on(bench, dispatched):
    queue, seen = bench.queue(retry_base=200), []
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(2)]
    _run(bench, queue, _fails, paths[0])

    info = queue.retry(paths[0])

    assert (info.state, info.attempt) == ("waiting", 1)
    assert info.retry_at <= bench.clock.now()
    bench.sweeper(queue, dispatched).tick()
    assert paths[0] in dispatched
    _run(bench, queue, seen.append, paths[0])
    assert seen == [0, 1]


def test_the_others_of_a_shared_partition_wait_for_their_time(bench):
    queue = bench.queue(partitions=1, retry_base=200)
    paths = [queue.enqueue(json.dumps(number)) for number in range(3)]
    _run(bench, queue, _fails, paths[0])
    before = PartitionLease.read(bench.memory.open("orders/leases/@=0")).waiting

    queue.retry(paths[1])

    after = PartitionLease.read(bench.memory.open("orders/leases/@=0"))
    assert after.state == "open"
    assert after.waiting[paths[0]] == before[paths[0]]
    assert after.waiting[paths[1]].retry_at < before[paths[1]].retry_at


def test_only_a_message_that_waits_in_a_free_partition_can_be_retried(bench):
    queue, other = bench.queue(partitions=1, retry_base=200), bench.queue(worker_id="w1", partitions=1)
    failed = queue.enqueue(json.dumps("x"))
    _run(bench, queue, _fails, failed)
    fresh = queue.enqueue(json.dumps("y"))
    with pytest.raises(InvalidRequest, match="is pending"):
        queue.retry(fresh)
    hold_partition(other.leases, "@=0")
    with pytest.raises(Conflict, match="w1 holds"):
        queue.retry(failed)
    with pytest.raises(MessageNotFound):
        queue.retry("messages/@=0/nothing")


def test_a_retry_that_loses_against_a_worker_changes_nothing(bench):
    queue, other = bench.queue(retry_base=200), bench.queue(worker_id="w1")
    path = queue.enqueue(json.dumps("x"), group="a")
    _run(bench, queue, _fails, path)

    def around(operation, key, perform):
        if operation == "put" and key == "orders/leases/@a":
            bench.around = None
            bench.clock.advance(400)
            assert hold_partition(other.leases, "@a")
        return perform()

    bench.around = around
    with pytest.raises(Conflict, match="just taken"):
        queue.retry(path)
    assert PartitionLease.read(bench.memory.open("orders/leases/@a")).owner == "w1"


class _Killed(BaseException):
    pass


def _dies_before(operation, prefix):
    def around(asked, where, perform):
        if asked == operation and where.startswith(prefix):
            raise _Killed
        return perform()

    return around
