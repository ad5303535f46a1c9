"""Someone deletes a message of a dedup id by hand while it is at work, and it is enqueued again."""

from __future__ import annotations

import json
import threading

import pytest

from s3queue import Retry
from s3queue.encoding import put_id_of
from s3queue.errors import AccessDenied, Unavailable
from s3queue.flow import partition_journals
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


@pytest.mark.parametrize("ends", ["when its last attempt was unread", "after its holder died"])
def test_a_lease_that_comes_late_gives_no_second_outcome_whatever_its_attempts_are_dated(bench, ends):
    """[P3] An attempt that had no answer ends after another holder has finished the message; one that is charged when a
    lease has run out has the date of that lease, which is the late one.
    """
    queue = bench.queue(max_attempts=5, retry_base=0, retry_cap=0)
    path, late, runs = queue.enqueue(json.dumps("first"), group="a"), [], []

    def keeps(operation, key, perform):
        answer = perform()
        if operation == "put" and key.startswith("orders/leases/"):
            late.append(bench.read(key))
        return answer

    def handler(body):
        runs.append(body)
        if len(runs) == 1:
            raise Retry("later")

    bench.around = keeps
    bench.processor(queue, handler).run(path)
    bench.around = None
    assert bench.keys("orders/leases/") == []
    assert len(runs) == 2
    lease = next(found for body in late if (found := json.loads(body)).get("waiting") and found.get("taken"))
    bench.clock.advance(60)
    if ends == "when its last attempt was unread":
        lease |= {"state": "open", "taken": {}}
        (attempt,) = lease["waiting"][0]["attempts"]
        attempt["ended_at"] = bench.clock.now().isoformat().replace("+00:00", "Z")
    bench.put("orders/leases/@a", json.dumps(lease).encode())
    for _ in range(3):
        bench.clock.advance(3600)
        bench.processor(queue, _succeed).run(path)

    assert outcomes(bench, queue) == ["completed"]
    assert bench.keys("orders/leases/") == []


@pytest.mark.parametrize("answer", ["none", "refused"])
@pytest.mark.parametrize("journals", [0, 1])
def test_a_failed_message_that_is_gone_when_it_is_read_has_its_record_whatever_has_no_answer(bench, answer, journals):
    """[P1] The LIST of the journals has none, or their GET."""
    queue = bench.queue(max_attempts=3)
    path = queue.enqueue(json.dumps("first"), group="a")
    key = queue.keys.message(path)
    bench.processor(queue, _fail).run(path)
    bench.clock.advance(60)
    for _ in range(journals):
        bench.put(f"orders/records/@a/{queue.chance.name(bench.clock.now())}-1.json", b"{}")
    failing = []

    def deleted(operation, name, perform):
        if operation == "get" and name == key and not failing:
            bench.memory.delete(key)
            failing.append(name)
            if answer == "refused":
                raise AccessDenied("no permission")
        if operation == ("get" if journals else "list") and name.startswith("orders/records/") and len(failing) == 1:
            failing.append(name)
            raise Unavailable("503 SlowDown")
        return perform()

    bench.around = deleted
    bench.processor(queue, _succeed).run(path)
    bench.around = None
    assert len(failing) == 2
    for _ in range(2):
        bench.clock.advance(60)
        bench.processor(queue, _succeed).run(path)

    record = queue.outcome_of(path)
    assert (record.failure.type, record.attempt) == ("MessageVanished", 1)
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_partition_goes_on_while_nobody_answers_what_became_of_a_message_that_is_gone(bench):
    queue, seen = bench.queue(partitions=1, max_attempts=3), []
    path = queue.enqueue(json.dumps("first"))
    bench.processor(queue, _fail).run(path)
    bench.clock.advance(60)
    bench.memory.delete(queue.keys.message(path))
    other = queue.enqueue(json.dumps("other"))

    def silent(operation, key, perform):
        if operation == "list" and key.startswith("orders/records/"):
            raise Unavailable("503 SlowDown")
        return perform()

    bench.around = silent
    bench.processor(queue, seen.append).run(other)
    bench.around = None

    assert seen == ["other"]
    assert path in json.loads(bench.read("orders/leases/@=0"))["waiting"][0]["path"]
    bench.clock.advance(60)
    bench.processor(queue, seen.append).run(other)
    assert queue.outcome_of(path).failure.type == "MessageVanished"
    assert bench.keys("orders/leases/") == []


@pytest.mark.parametrize(("commits", "reads"), [(8, 8), (30, 20)])
def test_whoever_finds_many_messages_gone_reads_each_journal_since_their_last_attempt_once(
    bench, monkeypatch, commits, reads
):
    """And the newest ones only, should there be very many: else a function is ended before it is done, and so is the
    next one, for ever. The lease comes first, so that no other function does the same beside it.
    """
    monkeypatch.setattr(partition_journals, "MOST_READ", 20)
    queue, requests = bench.queue(partitions=1, max_attempts=3, retry_base=14400, retry_cap=14400), []
    doomed = [queue.enqueue(json.dumps("doomed")) for _ in range(10)]

    def handler(body):
        if body == "doomed":
            raise Retry("later")

    def commit(count):
        for _ in range(count):
            bench.processor(queue, handler).run(queue.enqueue(json.dumps("other")))
            bench.clock.advance(10)

    commit(5)
    bench.clock.advance(14400)
    commit(commits)
    for path in doomed:
        bench.memory.delete(queue.keys.message(path))

    def counted(operation, key, perform):
        requests.append((operation, key.rpartition("/")[0] if "records" in key else key))
        return perform()

    bench.around = counted
    bench.processor(queue, handler).run(doomed[0])
    bench.around = None

    journals = "orders/records/@=0"
    assert requests.count(("get", journals)) == reads
    assert requests.count(("list", journals)) == 1
    assert requests.index(("put", "orders/leases/@=0")) < requests.index(("list", journals))
    assert {queue.outcome_of(path).failure.type for path in doomed} == {"MessageVanished"}
    assert bench.keys("orders/leases/") == []


@pytest.mark.parametrize("runs", [0, 1])
def test_no_thread_waits_while_the_journals_are_read(bench, runs):
    """There may be many, and whoever holds the partition may be running other messages."""
    queue = bench.queue(partitions=1, max_attempts=3)
    path = queue.enqueue(json.dumps("first"))
    bench.processor(queue, _fail).run(path)
    bench.clock.advance(60)
    for number in range(10):
        queue.enqueue(json.dumps(number))
    hold, waited = hold_partition(queue.leases, "@=0"), []
    claims = [hold.take() for _ in range(11)]
    assert claims[0].path == path
    queue.fail(claims[0], "once more")
    for claim in claims[1 : len(claims) - runs]:
        queue.complete(claim)
    bench.memory.delete(queue.keys.message(path))
    queue.enqueue(json.dumps("next"))

    def looks(operation, key, perform):
        if operation == "list" and key.startswith("orders/records/"):
            thread = threading.Thread(target=lambda: hold.has_room, daemon=True)
            thread.start()
            thread.join(5)
            waited.append(thread.is_alive())
        return perform()

    bench.around = looks
    assert hold.advance_beside() if runs else hold.advance()
    bench.around = None

    assert waited == [False]


def outcomes(bench, queue) -> list[str]:
    return [record.outcome for name in bench.keys("orders/records/") for record in records_in(queue, name)]
