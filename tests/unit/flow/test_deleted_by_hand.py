"""Someone deletes a message of a dedup id by hand while it is at work, and it is enqueued again."""

from __future__ import annotations

import json

import pytest

from s3queue import Retry
from s3queue.encoding import put_id_of
from s3queue.errors import Unavailable
from s3queue.flow.partitions import hold_partition
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.journal import records_in

ONCE = {"dedup_id": "x", "dedup_for": 300}


def put_id_at(bench, path):
    return put_id_of(bench.memory.head(f"orders/{path}").metadata)


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("group", ["a", None])
def test_what_is_put_again_while_the_first_one_runs_does_not_run_after_that_is_completed(bench, group, others):
    """[P4] Its journal is younger than the second PUT, so nobody would look for it there."""
    queue, seen = bench.queue(partitions=1), []
    path = queue.enqueue(json.dumps("first"), group=group, **ONCE)
    for number in range(others):
        queue.enqueue(json.dumps(number), group=group)

    def handler(body):
        seen.append(body)
        if body == "first":
            bench.memory.delete(f"orders/{path}")
            assert queue.enqueue(json.dumps("second"), group=group, **ONCE) == path
            bench.clock.advance(8)

    for _ in range(3):
        bench.processor(queue, handler).run(path)

    assert sorted(seen, key=str) == [*range(others), "first"]
    assert queue.outcome_of(path).outcome == "completed"
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


@pytest.mark.parametrize("body", ["first", "second"])
def test_whoever_goes_on_after_the_death_of_its_worker_deletes_what_was_put_again(bench, body):
    """[P4] The worker had committed the outcome, and deleted nothing."""
    queue, seen = bench.queue(partitions=1), []
    path = queue.enqueue(json.dumps("first"), **ONCE)

    def silent(operation, key, perform):
        if operation == "put" and key.startswith("orders/records/"):
            raise Unavailable("no answer")
        return perform()

    def handler(found):
        seen.append(found)
        bench.memory.delete(f"orders/{path}")
        queue.enqueue(json.dumps(body), **ONCE)
        bench.clock.advance(8)
        bench.around = silent

    bench.processor(queue, handler).run(path)
    bench.around = None
    assert len(bench.keys("orders/messages/")) == 1
    for _ in range(2):
        bench.clock.advance(120)
        bench.processor(bench.queue(partitions=1), handler).run(path)

    assert seen == ["first"]
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_what_is_put_again_before_its_loss_is_recorded_has_that_outcome(bench):
    """[P1] The record names the id, so it is of the second PUT, too."""
    queue, seen = bench.queue(partitions=1, retry_base=0, retry_cap=0), []
    path = queue.enqueue(json.dumps("first"), **ONCE)
    put_id = put_id_at(bench, path)

    def again(operation, key, perform):
        answer = perform()
        if operation == "list" and key == "orders/messages/@=0/":
            bench.around = None
            assert queue.enqueue(json.dumps("second"), **ONCE) == path
            bench.clock.advance(8)
        return answer

    def handler(body):
        seen.append(body)
        bench.memory.delete(f"orders/{path}")
        bench.around = again
        raise Retry("later")

    for _ in range(3):
        bench.processor(queue, handler).run(path)
        bench.clock.advance(5)

    assert seen == ["first"]
    record = queue.outcome_of(path)
    assert (record.failure.type, record.put_id) == ("MessageVanished", put_id)
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


@pytest.mark.parametrize("finds", ["claim", "sweep"])
def test_the_record_of_a_message_that_vanished_keeps_its_put_id(bench, queue, finds):
    """[P1] As every record does: else a second PUT of it is cleared, and no outcome names its id."""
    path = queue.enqueue(b"x", **ONCE)
    put_id = put_id_at(bench, path)
    queue.fail(queue.claim(path), "once")
    bench.clock.advance(60)
    if finds == "sweep":
        queue.claim(path, read_first=True)
    bench.memory.delete(f"orders/{path}")
    bench.clock.advance(60)

    if finds == "claim":
        assert queue.claim(path, read_first=True) is None
    else:
        bench.sweeper(queue).sweep()

    record = queue.status(path).record
    assert (record.failure.type, record.put_id) == ("MessageVanished", put_id)


def test_a_letter_whose_replay_was_deleted_by_hand_can_be_replayed_again(bench, queue):
    """[P1] The replay died before it deleted the letter, which is all that is left of the message."""
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "once", dead=True)
    bench.clock.advance(5)
    letter = f"orders/dead/{path}"

    def silent(operation, key, perform):
        if operation == "delete" and key == letter:
            raise Unavailable("no answer")
        return perform()

    bench.around = silent
    with pytest.raises(Unavailable):
        DeadLetters(queue).replay(path)
    bench.around = None
    queue.fail(queue.claim(path), "again")
    bench.memory.delete(f"orders/{path}")
    bench.clock.advance(60)
    assert queue.claim(path, read_first=True) is None
    assert queue.status(path).record.failure.type == "MessageVanished"

    DeadLetters(queue).replay(path)

    assert queue.claim(path).message.body == b"x"
    assert bench.keys("orders/dead/") == []


def _fail(bodies: list[str]) -> None:
    raise Retry("later")


def _succeed(bodies: list[str]) -> None:
    pass


@pytest.mark.parametrize("within", [0, 5])
def test_whoever_finds_a_failed_message_gone_records_that_with_its_first_write(bench, within):
    """[P1] It dies after that, and the next holder knows of nothing else."""
    settings = {"partitions": 1, "collect": 10, "within_seconds": within}
    queue = bench.queue(**settings)
    path = queue.enqueue(json.dumps("first"), **ONCE)
    bench.processor(queue, _fail).run(path)
    bench.memory.delete(f"orders/{path}")
    bench.clock.advance(60)
    queue.enqueue(json.dumps("other"))

    def dies(operation, key, perform):
        answer = perform()
        if operation == "put" and key == "orders/leases/@=0":
            raise KeyboardInterrupt
        return answer

    bench.around = dies
    with pytest.raises(KeyboardInterrupt):
        hold_partition(bench.queue(**settings, worker_id="dies").leases, "@=0")
    bench.around = None
    bench.clock.advance(3600)
    for _ in range(3):
        bench.processor(queue, _succeed).run(path)
        bench.clock.advance(60)

    assert queue.outcome_of(path).failure.type == "MessageVanished"
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_failed_message_is_recorded_as_gone_also_if_nothing_else_comes_within(bench):
    """[P1] A handler of lists waits for more; what it waited with is deleted meanwhile."""
    queue = bench.queue(partitions=1, collect=10, within_seconds=5)
    path = queue.enqueue(json.dumps("first"), **ONCE)
    bench.processor(queue, _fail).run(path)
    bench.memory.delete(f"orders/{path}")
    bench.clock.advance(60)
    other = queue.enqueue(json.dumps("other"))

    def deleted(operation, key, perform):
        answer = perform()
        if operation == "put" and key == "orders/leases/@=0":
            bench.around = None
            bench.memory.delete(f"orders/{other}")
        return answer

    bench.around = deleted
    bench.processor(queue, _succeed).run(path)

    assert queue.outcome_of(path).failure.type == "MessageVanished"
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_lease_that_comes_late_gives_no_second_outcome_to_what_waited_in_it(bench):
    """[P3] Its creation and the PUT after it had no answer, and land when the partition has been given up."""
    queue = bench.queue(max_attempts=3)
    path = queue.enqueue(json.dumps("first"), group="a")
    bench.processor(queue, _fail).run(path)
    (key,) = bench.keys("orders/leases/")
    late = bench.read(key)
    bench.clock.advance(60)
    bench.processor(queue, _succeed).run(path)
    assert bench.keys("orders/leases/") == []

    bench.put(key, late)
    for _ in range(3):
        bench.clock.advance(3600)
        bench.processor(queue, _succeed).run(path)

    assert queue.outcome_of(path).outcome == "completed"
    assert [record.outcome for name in bench.keys("orders/records/") for record in records_in(queue, name)] == [
        "completed"
    ]
    assert bench.keys("orders/leases/") == []
