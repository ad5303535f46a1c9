"""Partitions: one lease for many messages.  [P9]"""

from __future__ import annotations

import contextlib
import json

import pytest

from s3queue import InvalidName, InvalidRequest, Postpone, Reject, Retry
from s3queue.documents.partition import PartitionLease, read_journal
from s3queue.errors import AccessDenied, Unavailable
from s3queue.flow.partitions import has_work, hold_partition


def _run(bench, queue, handler, path):
    return bench.processor(queue, handler).run(path)


def test_the_messages_of_a_group_run_in_the_order_in_which_they_were_enqueued(bench):
    queue, seen = bench.queue(), []
    paths = [queue.enqueue({"n": number}, group="customer-42") for number in range(30)]

    assert _run(bench, queue, lambda body: seen.append(body["n"]), paths[7]) == "completed"

    assert seen == list(range(30))
    assert all(path.startswith("messages/@customer-42/") for path in paths)
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_their_outcomes_are_in_one_journal(bench):
    queue = bench.queue()
    paths = [queue.enqueue({"n": number}, group="a") for number in range(3)]

    _run(bench, queue, lambda body: body["n"] * 2, paths[0])

    [key] = bench.keys("orders/records/")
    records = read_journal(bench.memory.open(key))
    assert [(record.path, record.outcome, record.result) for record in records] == [
        (path, "completed", number * 2) for number, path in enumerate(paths)
    ]


def test_a_hundred_messages_cost_a_put_and_a_get_each_and_a_tenth_of_everything_else(bench):
    queue = bench.queue(partitions=1)
    for number in range(100):
        path = queue.enqueue({"n": number})
    assert bench.store.take() == {"put": 100}

    _run(bench, queue, lambda body: None, path)

    counts = bench.store.take()
    assert counts.pop("get") <= 100 + 2
    assert sum(counts.values()) <= 8, counts


def test_a_retry_holds_its_group_up_and_no_other(bench):
    queue, seen = bench.queue(retry_base=10), []
    first = queue.enqueue(json.dumps("a1"), group="a")
    queue.enqueue(json.dumps("a2"), group="a")
    other = queue.enqueue(json.dumps("b1"), group="b")

    def handler(body):
        seen.append(body)
        if seen.count("a1") == 1 and body == "a1":
            raise Retry("later")

    _run(bench, queue, handler, first)
    _run(bench, queue, handler, other)
    assert seen == ["a1", "b1"]
    lease = PartitionLease.read(bench.memory.open("orders/leases/@a"))
    assert lease.state == "open"
    assert lease.waiting[first].lease.attempt == 1
    assert list(bench.keys("orders/retries/")) != []

    bench.clock.advance(11)
    _run(bench, queue, handler, first)
    assert seen == ["a1", "b1", "a1", "a2"]
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_group_is_reminded_of_the_message_that_it_waits_for(bench):
    """Those behind it were taken by the worker that died, and would be due before it."""
    queue, path = bench.queue(retry_base=100), ""
    for number in range(3):
        path = queue.enqueue({"n": number}, group="a")

    def killed(body):
        raise _Killed

    def fails(body):
        raise Retry("later", after=100)

    with contextlib.suppress(_Killed):
        _run(bench, queue, killed, path)
    bench.clock.advance(60)
    _run(bench, queue, fails, path)

    (reminder,) = bench.keys("orders/retries/")
    due_at, _ = queue.keys.reminded(reminder)
    assert (due_at - bench.clock.now()).total_seconds() >= 99


def test_a_death_lets_its_group_go_on(bench):
    queue, seen = bench.queue(), []
    paths = [queue.enqueue(json.dumps(body), group="a") for body in ("bad", "good")]

    def handler(body):
        seen.append(body)
        if body == "bad":
            raise Reject("no")

    _run(bench, queue, handler, paths[0])

    assert seen == ["bad", "good"]
    assert bench.keys("orders/dead/") == [f"orders/dead/{paths[0]}"]
    assert queue.outcome_of(paths[0]).outcome == "dead"
    assert queue.outcome_of(paths[1]).outcome == "completed"


def test_a_shared_partition_goes_on_while_a_message_waits(bench):
    queue, seen = bench.queue(partitions=1, retry_base=10), []
    paths = [queue.enqueue({"n": number}) for number in range(5)]

    def handler(body):
        seen.append(body["n"])
        if body["n"] == 1 and seen.count(1) == 1:
            raise Retry("later")

    _run(bench, queue, handler, paths[0])
    assert sorted(seen) == [0, 1, 2, 3, 4]
    bench.clock.advance(11)
    _run(bench, queue, handler, paths[0])
    assert seen.count(1) == 2
    assert bench.keys("orders/leases/") == []


def test_a_partition_that_is_held_is_not_taken(bench):
    queue, other = bench.queue(), bench.queue(worker_id="other")
    path = queue.enqueue(json.dumps("x"), group="a")
    hold = hold_partition(queue.leases, "@a")
    assert hold

    assert hold_partition(other.leases, "@a") is None
    assert _run(bench, other, lambda body: None, path) is None


def test_the_next_holder_finishes_what_was_committed(bench):
    """Killed between the commit and whatever follows it."""
    queue, other, seen = bench.queue(), bench.queue(worker_id="other"), []
    paths = [queue.enqueue(json.dumps(f"m{number}"), group="a") for number in range(3)]
    bench.around = _dies_after("put", "orders/leases/@a", 2)
    with pytest.raises(_Killed):
        _run(bench, queue, seen.append, paths[0])
    bench.around = None
    assert seen == ["m0", "m1", "m2"]
    assert len(bench.keys("orders/messages/")) == 3

    bench.clock.advance(40)
    _run(bench, other, seen.append, paths[0])

    assert seen == ["m0", "m1", "m2"]
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    assert [queue.outcome_of(path).outcome for path in paths] == ["completed"] * 3


def test_equal_bytes_that_were_put_after_the_deletion_are_another_message(bench):
    """The first holder commits, deletes, and dies before it gives the lease up; the name is PUT anew.  [P1]"""
    queue, other, seen = bench.queue(), bench.queue(worker_id="other"), []
    path = queue.enqueue(json.dumps("same"), group="a", name="daily")
    bench.around = _dies_before("delete", "orders/leases/@a")
    with pytest.raises(_Killed):
        _run(bench, queue, seen.append, path)
    bench.around = None
    assert bench.keys("orders/messages/") == []
    bench.clock.advance(2)
    bench.put(f"orders/{path}", b'"same"')

    bench.clock.advance(40)
    _run(bench, other, seen.append, path)

    assert seen == ["same", "same"]


def test_a_zombie_commits_nothing(bench):
    queue, other, seen = bench.queue(), bench.queue(worker_id="other"), []
    path = queue.enqueue(json.dumps("x"), group="a")

    def handler(body):
        seen.append(body)
        if len(seen) == 1:
            bench.clock.advance(40)
            _run(bench, other, handler, path)

    assert _run(bench, queue, handler, path) == "lost"
    assert seen == ["x", "x"]
    assert bench.keys("orders/messages/") == []
    assert len(bench.keys("orders/records/")) == 1


def test_the_one_message_that_a_worker_died_of_is_charged_with_it_and_dies_in_the_end(bench):
    queue, starts = bench.queue(max_attempts=3), []
    path = queue.enqueue(json.dumps("poison"), group="a")
    after = queue.enqueue(json.dumps("fine"), group="a")

    def handler(body):
        starts.append(body)
        if body == "poison":
            raise _Killed

    for _ in range(8):
        with contextlib.suppress(_Killed):
            _run(bench, bench.queue(max_attempts=3), handler, path)
        bench.clock.advance(60)

    assert starts.count("fine") == 1
    # Once among several, when nobody knows of which the worker died.
    assert starts.count("poison") == 3 + 1
    assert queue.outcome_of(path).outcome == "dead"
    assert queue.outcome_of(after).outcome == "completed"
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]


def test_neighbours_of_a_message_that_kills_its_worker_lose_no_attempt(bench):
    queue, starts = bench.queue(partitions=1, max_attempts=2), []
    paths = [queue.enqueue({"n": number}) for number in range(20)]

    def handler(body):
        starts.append(body["n"])
        if body["n"] == 5:
            raise _Killed

    for _ in range(8):
        with contextlib.suppress(_Killed):
            _run(bench, bench.queue(partitions=1, max_attempts=2), handler, paths[0])
        bench.clock.advance(60)

    outcomes = {number: queue.outcome_of(path).outcome for number, path in enumerate(paths)}
    assert outcomes == {number: "dead" if number == 5 else "completed" for number in range(20)}


def test_a_name_that_is_put_anew_while_it_runs_runs_again(bench):
    queue, seen = bench.queue(), []
    path = queue.enqueue(json.dumps("one"), group="a", name="x")

    def handler(body):
        seen.append(body)
        if body == "one":
            bench.put(f"orders/{path}", b'"two"')

    _run(bench, queue, handler, path)
    assert seen == ["one", "two"]


def test_a_message_that_comes_while_the_lease_is_given_up_is_found(bench):
    queue, seen = bench.queue(), []
    path = queue.enqueue(json.dumps("first"), group="a")

    def around(operation, key, perform):
        if operation == "delete" and key == "orders/leases/@a":
            bench.around = None
            queue.enqueue(json.dumps("second"), group="a")
        return perform()

    bench.around = around
    _run(bench, queue, seen.append, path)
    assert seen == ["first", "second"]


def test_what_a_message_of_a_group_sends_is_committed_with_its_outcome(bench):
    queue = bench.queue()
    path = queue.enqueue(json.dumps("x"), group="a")

    def handler(body, context):
        context.send("emails", {"to": body})

    bench.processor(queue, handler, sends_to=["emails"]).run(path)
    [sent] = bench.keys("emails/messages/")
    assert json.loads(bench.read(sent)) == {"to": "x"}


def test_a_postponed_message_uses_no_attempt_and_holds_its_group_up(bench):
    queue, seen = bench.queue(), []
    path = queue.enqueue(json.dumps("x"), group="a")
    queue.enqueue(json.dumps("y"), group="a")

    def handler(body):
        seen.append(body)
        if len(seen) == 1:
            raise Postpone(after=5)

    _run(bench, queue, handler, path)
    bench.clock.advance(6)
    _run(bench, queue, handler, path)
    assert seen == ["x", "x", "y"]


def test_a_batch_cannot_belong_to_a_partition(bench):
    queue = bench.queue()
    bench.put("orders/messages/@a/x.ndjson", b'{"n":1}\n')
    _run(bench, queue, lambda body: None, "messages/@a/x.ndjson")
    assert "batch" in queue.outcome_of("messages/@a/x.ndjson").failure.message
    assert bench.keys("orders/dead/") == ["orders/dead/messages/@a/x.ndjson"]


@pytest.mark.parametrize("group", ["", "x" * 900, 7, "\ud800"])
def test_a_group_that_cannot_be_a_key_is_refused(bench, group):
    with pytest.raises(InvalidName, match="group"):
        bench.queue().enqueue(json.dumps("x"), group=group)
    assert bench.keys() == []


@pytest.mark.parametrize("options", [{"priority": 3}, {"delay": 10}])
def test_a_group_has_neither_priorities_nor_delays(bench, options):
    with pytest.raises(InvalidRequest, match="group"):
        bench.queue().enqueue(json.dumps("x"), group="a", **options)


@pytest.mark.parametrize("group", ["a/b", "=3", "ä ö", "@x", "..", "100%"])
def test_any_text_can_be_a_group(bench, group):
    queue, seen = bench.queue(), []
    path = queue.enqueue(json.dumps("x"), group=group)
    assert path.count("/") == 2
    _run(bench, queue, seen.append, path)
    assert seen == ["x"]


def test_an_unknown_commit_runs_nothing_twice_if_it_was_stored(bench):
    queue, seen = bench.queue(), []
    path = queue.enqueue(json.dumps("x"), group="a")
    puts = []

    def around(operation, key, perform):
        if key == "orders/leases/@a" and operation in ("put", "get"):
            puts.append(operation)
            if puts.count("put") == 2 and operation == "put":
                perform()
            if puts.count("put") >= 2:
                raise Unavailable("no answer")
        return perform()

    bench.around = around
    assert _run(bench, queue, seen.append, path) == "lost"
    bench.around = None
    bench.clock.advance(60)
    _run(bench, bench.queue(), seen.append, path)
    assert seen == ["x"]
    assert bench.keys("orders/messages/") == []


def test_a_message_that_nobody_can_read_is_kept_by_whoever_finishes_its_burial(bench):
    """Its empty letter is there, and its worker died before it could note that the message stays.  [P1]"""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(json.dumps("x"), group="a")

    def around(operation, key, perform):
        if (operation == "get" and key == f"orders/{path}") or operation == "copy":
            raise AccessDenied("403")
        answer = perform()
        if operation == "put" and key == f"orders/dead/{path}" and not killed:
            killed.append(key)
            raise _Killed
        return answer

    killed = []
    bench.around = around
    with pytest.raises(_Killed):
        _run(bench, queue, lambda body: None, path)
    bench.clock.advance(60)
    _run(bench, bench.queue(max_attempts=1), lambda body: None, path)
    assert bench.keys("orders/messages/") == [f"orders/{path}"]
    assert PartitionLease.read(bench.memory.open("orders/leases/@a")).waiting[path].lease.attempt == 1


class _Killed(BaseException):
    pass


def _dies_after(operation, key, times):
    left = [times]

    def around(asked, where, perform):
        answer = perform()
        if asked == operation and where == key:
            left[0] -= 1
            if not left[0]:
                raise _Killed
        return answer

    return around


def _dies_before(operation, key):
    def around(asked, where, perform):
        if asked == operation and where == key:
            raise _Killed
        return perform()

    return around


def test_a_handler_that_outlasts_its_lease_is_charged_with_that_and_dies_in_the_end(bench):
    """Nobody else had taken the partition, and the lease was given up with the attempt not counted.  [P5]"""
    queue, starts = bench.queue(max_attempts=2), []
    path = queue.enqueue(json.dumps("slow"), group="a")

    def handler(body):
        starts.append(body)
        if len(starts) > 5:
            raise _Killed
        bench.clock.advance(31)

    for _ in range(4):
        with contextlib.suppress(_Killed):
            _run(bench, bench.queue(max_attempts=2), handler, path)
        bench.clock.advance(40)
    assert len(starts) == 2
    assert queue.outcome_of(path).outcome == "dead"
    assert queue.outcome_of(path).attempt == 2


def test_an_attempt_whose_sends_cannot_be_staged_counts(bench):
    queue, starts = bench.queue(max_attempts=2, retry_base=1, retry_jitter=False), []
    path = queue.enqueue(json.dumps("x"), group="a")

    def handler(body, context):
        starts.append(body)
        if len(starts) > 5:
            raise _Killed
        context.send("emails", "x" * 70_000)

    def around(operation, key, perform):
        if key.startswith("orders/outbox/"):
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    for _ in range(3):
        with contextlib.suppress(_Killed):
            bench.processor(queue, handler, sends_to=["emails"]).run(path)
        bench.clock.advance(40)
    assert len(starts) == 2
    assert queue.outcome_of(path).outcome == "dead"


def test_a_message_that_was_put_anew_since_the_list_runs_under_a_lease_that_names_it(bench):
    """Else nobody knows of what its worker died.  [P5]"""
    queue, named = bench.queue(max_attempts=1), []
    path = queue.enqueue(json.dumps("one"), group="a", name="x")

    def around(operation, key, perform):
        if operation == "put" and key == "orders/leases/@a" and bench.read(f"orders/{path}") == b'"one"':
            bench.put(f"orders/{path}", b'"two"')
        return perform()

    def handler(body):
        lease = PartitionLease.read(bench.memory.open("orders/leases/@a"))
        named.append((body, lease.taken[path] == bench.memory.head(f"orders/{path}").etag))

    bench.around = around
    _run(bench, queue, handler, path)
    assert named == [("two", True)]


def test_no_message_is_charged_while_what_was_committed_cannot_be_finished(bench):
    """A send that is refused for long: the next message of the group is not started, and loses no attempt.  [P5]"""
    queue, seen = bench.queue(max_attempts=2), []
    paths = [queue.enqueue(json.dumps(f"m{number}"), group="a") for number in range(2)]

    def handler(body, context):
        seen.append(body)
        if body == "m0":
            context.send("emails", {"to": body})
            bench.clock.advance(26)  # so long that it is committed before the next one starts

    def around(operation, key, perform):
        if operation == "put" and key.startswith("emails/"):
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    for _ in range(5):
        with contextlib.suppress(Unavailable):
            bench.processor(bench.queue(max_attempts=2), handler, sends_to=["emails"]).run(paths[0])
        bench.clock.advance(60)
    bench.around = None
    bench.processor(queue, handler, sends_to=["emails"]).run(paths[0])

    assert seen == ["m0", "m1"]
    assert queue.outcome_of(paths[1]).outcome == "completed"


def test_failures_are_committed_before_the_lease_runs_out(bench):
    """Of many messages that fail one after the other, each attempt counts."""
    queue, starts = bench.queue(partitions=1, max_attempts=2, retry_base=600, retry_cap=600), []
    paths = [queue.enqueue({"n": number}) for number in range(20)]

    def handler(body):
        starts.append(body["n"])
        bench.clock.advance(3)
        raise Retry("later")

    _run(bench, queue, handler, paths[0])
    assert sorted(starts) == list(range(20))
    lease = PartitionLease.read(bench.memory.open("orders/leases/@=0"))
    assert [lease.waiting[path].lease.attempt for path in paths] == [1] * 20


def test_equal_bytes_that_were_put_after_someone_deleted_a_failed_message_are_not_deleted_with_it(bench):
    """[P1] The vanished one is recorded; what was PUT since runs."""
    queue, seen = bench.queue(retry_base=0, retry_cap=0), []
    path = queue.enqueue(json.dumps("same"), group="a", name="x")
    queue.enqueue(json.dumps("other"), group="a", name="y")

    def around(operation, key, perform):
        answer = perform()
        if operation == "list" and key == "orders/messages/@a/" and "same" in seen:
            bench.around = None
            bench.clock.advance(2)
            bench.put(f"orders/{path}", b'"same"')
        return answer

    def handler(body):
        seen.append(body)
        if seen == ["same"]:
            bench.memory.delete(f"orders/{path}")
            bench.around = around
            raise Retry("later")

    _run(bench, queue, handler, path)
    assert seen.count("same") == 2
    assert bench.keys("orders/messages/") == []


def test_a_message_that_is_not_answered_for_holds_the_others_up_for_its_attempts_only(bench):
    queue, seen = bench.queue(max_attempts=2, retry_base=1, retry_jitter=False), []
    path = queue.enqueue(json.dumps("silent"), group="a")
    after = queue.enqueue(json.dumps("fine"), group="a")
    asked = []

    def around(operation, key, perform):
        if operation == "get" and key == f"orders/{path}":
            asked.append(key)
            assert len(asked) < 20
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    for _ in range(4):
        _run(bench, queue, seen.append, path)
        bench.clock.advance(30)
    assert seen == ["fine"]
    assert queue.outcome_of(path).outcome == "dead"
    assert queue.outcome_of(after).outcome == "completed"


@pytest.mark.parametrize("is_put_anew", [False, True])
@pytest.mark.parametrize("most", [1, 2])
def test_what_another_holder_has_finished_since_the_list_has_one_outcome(bench, most, is_put_anew):
    """It had given the partition up again, so the PUT of the lease succeeded; the GET was not answered.  [P3]"""
    late, other = (bench.queue(max_attempts=most, retry_base=30) for _ in range(2))
    seen, path = [], late.enqueue(json.dumps("x"), group="a", name="x")

    def silent(operation, key, perform):
        if operation == "get" and key == f"orders/{path}":
            raise Unavailable("no answer")
        return perform()

    def around(operation, key, perform):
        if operation == "put" and key == "orders/leases/@a":
            bench.around = None
            _run(bench, other, seen.append, path)
            if is_put_anew:
                bench.clock.advance(2)
                bench.put(f"orders/{path}", b'"x"')
            bench.around = silent
        return perform()

    bench.around = around
    _run(bench, late, seen.append, path)
    bench.around = None
    bench.clock.advance(60)
    _run(bench, other, seen.append, path)

    journals = [read_journal(bench.memory.open(key)) for key in bench.keys("orders/records/")]
    outcomes = [(record.outcome, record.attempt) for records in journals for record in records]
    assert outcomes == [("completed", 1)] * len(seen)
    assert seen == ["x"] * (1 + is_put_anew)
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == bench.keys("orders/dead/") == []


@pytest.mark.parametrize("put_anew", [None, b'"x"', b'"y"'], ids=["gone", "equal bytes", "other bytes"])
def test_a_refused_get_counts_for_what_lies_there_and_not_for_what_the_list_has_shown(bench, put_anew):
    """[P3] [P5] Another holder had finished that, and given the partition up again."""
    late, other = (bench.queue(max_attempts=1) for _ in range(2))
    path = late.enqueue(json.dumps("x"), group="a", name="x")

    def refuse(operation, key, perform):
        if (operation == "get" and key == f"orders/{path}") or operation == "copy":
            raise AccessDenied("403")
        return perform()

    def around(operation, key, perform):
        if operation == "put" and key == "orders/leases/@a":
            bench.around = None
            _run(bench, other, lambda body: None, path)
            if put_anew:
                bench.clock.advance(2)
                bench.put(f"orders/{path}", put_anew)
            bench.around = refuse
        return perform()

    bench.around = around
    _run(bench, late, lambda body: None, path)
    bench.around = None

    journals = [read_journal(bench.memory.open(key)) for key in bench.keys("orders/records/")]
    records = sorted((one for records in journals for one in records), key=lambda one: one.generation.put_at)
    assert [record.outcome for record in records] == ["completed", "dead"][: 2 if put_anew else 1]
    if put_anew:
        lying = bench.memory.head(f"orders/{path}")
        assert (records[1].generation.etag, records[1].generation.put_at) == (lying.etag, lying.modified_at)


def test_a_message_that_a_stranger_puts_into_a_group_of_a_spark_queue_waits_for_a_run(bench):
    queue = bench.queue(engine="spark")
    bench.put("orders/messages/@a/x", b"{}")

    with pytest.raises(InvalidRequest, match="a Spark run"):
        queue.claim("messages/@a/x")

    assert bench.keys("orders/") == ["orders/messages/@a/x"]
    assert has_work(queue.leases, "@a")


def test_a_group_that_waits_or_is_held_has_no_work_for_another(bench):
    queue = bench.queue(retry_base=100)
    assert not has_work(queue.leases, "@a")
    path = queue.enqueue(json.dumps(1), group="a")
    queue.enqueue(json.dumps(2), group="a")
    bench.store.take()
    assert has_work(queue.leases, "@a")
    assert bench.store.take() == {"get": 1, "list": 1}

    hold = hold_partition(queue.leases, "@a")
    assert not has_work(queue.leases, "@a")
    queue.fail(hold.take(), "not now")
    hold.advance()
    bench.store.take()
    assert not has_work(queue.leases, "@a")
    assert bench.store.take() == {"get": 1}

    bench.clock.advance(101)
    assert has_work(queue.leases, "@a")
    hold = hold_partition(queue.leases, "@a")
    assert hold.take().path == path
    bench.clock.advance(300)
    # Its holder died.
    assert has_work(queue.leases, "@a")


def test_a_share_with_a_failed_message_has_work_if_another_has_come(bench):
    queue = bench.queue(partitions=1, retry_base=100)
    queue.enqueue(json.dumps(1))
    hold = hold_partition(queue.leases, "@=0")
    queue.fail(hold.take(), "not now")
    hold.advance()
    assert not has_work(queue.leases, "@=0")
    queue.enqueue(json.dumps(2))
    assert has_work(queue.leases, "@=0")


def test_what_a_newer_version_holds_is_no_work(bench):
    queue = bench.queue()
    queue.enqueue(json.dumps(1), group="a")
    bench.put("orders/leases/@a", b'{"v": 99}')
    assert not has_work(queue.leases, "@a")


def test_a_message_of_a_partition_cannot_be_released_alone(bench):
    queue = bench.queue()
    path = queue.enqueue(b"{}", group="a")
    assert hold_partition(queue.leases, "@a")
    with pytest.raises(InvalidRequest, match="@a"):
        queue.release_held(path)


def test_stats_count_the_outcomes_in_journals(bench):
    queue = bench.queue()
    for number in range(7):
        path = queue.enqueue(json.dumps(number), group="a")
    _run(bench, queue, lambda body: None, path)

    assert queue.stats().completed == 7
    assert queue.stats().finished_per_minute == 7


def test_the_last_of_two_outcomes_within_a_second_is_told(bench):
    queue = bench.queue()
    for number in range(5):
        path = queue.enqueue(json.dumps(number), group="a", name="x")
        _run(bench, queue, lambda body: body, path)
        assert queue.outcome_of(path).result == number


@pytest.mark.parametrize("options", [{"group": "a"}, {}])
def test_a_message_of_a_partition_cannot_be_claimed_alone_and_the_error_names_the_way_out(bench, options):
    queue = bench.queue(partitions=4)
    path = queue.enqueue({}, **options)
    bench.store.take()

    with pytest.raises(InvalidRequest, match=r"with its partition.*Worker\(queue, handler\)"):
        queue.claim(path)
    assert bench.store.take() == {}
    with pytest.raises(InvalidRequest, match=r"partitions=4.*s3queue work orders"):
        queue.claim_next()

    assert bench.keys("orders/leases/") == []
    assert queue.status(path).state == "pending"


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"heavy_above": "1 MiB"}, r"Worker\(queue, handler\).*s3queue work"), ({"engine": "spark"}, "a Spark run")],
)
def test_nor_can_it_in_a_queue_whose_messages_go_to_spark(bench, settings, said):
    """With `heavy_above` no group can be enqueued to, but one may lie there from before."""
    path = bench.queue().enqueue({}, group="a")
    queue = bench.queue(**settings)

    with pytest.raises(InvalidRequest, match=f"with its partition.*{said}"):
        queue.claim(path)

    assert queue.claim_next() == []
    assert bench.keys("orders/leases/") == []


def test_what_has_a_lease_of_its_own_is_claimed_next_to_partitions(bench):
    queue = bench.queue(partitions=4)
    queue.enqueue({}, group="a")
    urgent = queue.enqueue({}, priority=9)

    assert [claim.path for claim in queue.claim_next(10)] == [urgent]

    plain = bench.queue(name="emails")
    plain.enqueue({}, group="a")
    assert plain.claim_next() == []
