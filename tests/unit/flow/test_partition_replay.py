"""Replays of messages of partitions: to the end of their group, and once.  [P9]"""

from __future__ import annotations

import json

import pytest

from s3queue import InvalidRequest, Reject
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.partition_replay import in_turn


def _rejects(body):
    raise Reject("no")


def _run(bench, queue, handler, path):
    return bench.processor(queue, handler).run(path)


def _dead(bench, queue, **options):
    path = queue.enqueue(json.dumps("dead"), **options)
    _run(bench, queue, _rejects, path)
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]
    bench.clock.advance(5)
    return path


def test_a_dead_letter_of_a_group_goes_to_the_end_of_it(bench):
    queue, seen = bench.queue(), []
    path = _dead(bench, queue, group="a")
    queue.enqueue(json.dumps("later"), group="a")
    bench.clock.advance(1)

    target = queue.replay(path)

    assert target.startswith("messages/@a/")
    assert target != path
    _run(bench, queue, seen.append, target)
    assert seen == ["later", "dead"]
    assert bench.keys("orders/dead/") == bench.keys("orders/messages/") == []
    assert queue.status(target).state == "completed"


def test_of_many_replays_those_of_a_group_wait_for_one_another_and_others_do_not():
    paths = ["messages/@a/1", "messages/x", "messages/@b/1", "messages/@a/2", "messages/@=3/1", "messages/@=3/2"]
    assert in_turn(paths) == [
        ["messages/@a/1", "messages/@a/2"],
        ["messages/x"],
        ["messages/@b/1"],
        ["messages/@=3/1"],
        ["messages/@=3/2"],
    ]


def test_names_that_sort_behind_all_times_do_not_come_after_it(bench):
    queue, seen = bench.queue(), []
    path = _dead(bench, queue, group="a", name="invoice-1")
    queue.enqueue(json.dumps("later"), group="a", name="zebra")

    target = queue.replay(path)

    _run(bench, queue, seen.append, target)
    assert seen == ["later", "dead"]


def test_a_replay_that_is_repeated_after_a_crash_runs_once(bench):
    """Killed between the PUT and the deletion of the letter: whoever repeats it finds its message."""
    queue, seen = bench.queue(), []
    path = _dead(bench, queue, group="a")
    bench.around = _dies_before("delete", "orders/dead/")
    with pytest.raises(_Killed):
        queue.replay(path)
    bench.around = None
    bench.clock.advance(3)

    target = queue.replay(path)

    assert bench.keys("orders/messages/") == [f"orders/{target}"]
    _run(bench, queue, seen.append, target)
    assert seen == ["dead"]
    assert bench.keys("orders/messages/") == []


def test_a_replay_that_is_repeated_after_its_message_has_run_only_clears_the_letter(bench):
    queue, seen = bench.queue(), []
    path = _dead(bench, queue, group="a")
    bench.around = _dies_before("delete", "orders/dead/")
    with pytest.raises(_Killed):
        queue.replay(path)
    bench.around = None
    [key] = bench.keys("orders/messages/")
    _run(bench, queue, seen.append, key.removeprefix("orders/"))
    letters = DeadLetters(queue)
    assert letters.is_replayed(letters.describe(path))

    queue.replay(path)

    assert bench.keys("orders/messages/") == bench.keys("orders/dead/") == []
    assert seen == ["dead"]


def test_a_message_that_dies_again_can_be_replayed_again(bench):
    queue, seen = bench.queue(), []
    first = queue.replay(_dead(bench, queue, group="a"))
    _run(bench, queue, _rejects, first)
    bench.clock.advance(5)
    second = queue.replay(first)
    _run(bench, queue, seen.append, second)
    assert seen == ["dead"]


def test_a_letter_of_a_shared_partition_goes_back_to_its_name(bench):
    queue, seen = bench.queue(partitions=1), []
    path = _dead(bench, queue)
    bench.around = _dies_before("delete", "orders/dead/")
    with pytest.raises(_Killed):
        queue.replay(path)
    bench.around = None
    _run(bench, queue, seen.append, path)

    assert DeadLetters(queue).replay(path) == path

    assert bench.keys("orders/messages/") == bench.keys("orders/dead/") == []
    assert seen == ["dead"]


def test_the_record_of_a_letter_is_found(bench, queue):
    path = _dead(bench, queue, group="a")
    _, body, record = DeadLetters(queue).get(path)
    assert (body, record.path, record.outcome) == (b'"dead"', path, "dead")


@pytest.mark.parametrize(
    ("options", "partitions", "folder"),
    [({"group": "a"}, 0, "messages/@a/"), ({}, 0, "messages/"), ({}, 1, "messages/@=0/")],
)
def test_a_letter_of_a_partition_can_go_to_another_queue_once(bench, options, partitions, folder):
    queue, other, seen = bench.queue(partitions=1), bench.queue("others", partitions=partitions), []
    path = _dead(bench, queue, **options)
    bench.around = _dies_before("delete", "orders/dead/")
    with pytest.raises(_Killed):
        queue.replay(path, to=other)
    bench.around = None

    target = queue.replay(path, to=other)

    assert target.startswith(folder)
    assert bench.keys("orders/dead/") == []
    for key in bench.keys("others/messages/"):
        _run(bench, other, seen.append, key.removeprefix("others/"))
    assert seen == ["dead"]


def test_a_group_cannot_go_to_a_queue_whose_large_messages_go_to_spark(bench, queue):
    path = _dead(bench, queue, group="a")
    with pytest.raises(InvalidRequest, match="Spark"):
        queue.replay(path, to=bench.queue("heavy", heavy_above=1000))
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]


def test_a_group_can_go_to_a_queue_on_spark(bench, queue):
    path = _dead(bench, queue, group="a")
    heavy = bench.queue("heavy", engine="spark")
    assert queue.replay(path, to=heavy).startswith("messages/@a/")
    assert len(bench.keys("heavy/messages/@a/")) == 1


def test_a_batch_in_a_group_is_not_replayed_there(bench, queue):
    bench.put("orders/messages/@a/x.ndjson", b'{"n":1}\n')
    _run(bench, queue, lambda body: None, "messages/@a/x.ndjson")
    with pytest.raises(InvalidRequest, match="batch"):
        queue.replay("messages/@a/x.ndjson")
    assert bench.keys("orders/dead/") == ["orders/dead/messages/@a/x.ndjson"]


@pytest.mark.parametrize("options", [{"group": "a"}, {}])
def test_a_completed_message_whose_payload_was_kept_runs_again_once(bench, options):
    queue, seen = bench.queue(keep_payload=True, partitions=1), []
    path = queue.enqueue(json.dumps("x"), **options)
    _run(bench, queue, seen.append, path)
    bench.clock.advance(5)
    record = queue.status(path).record

    target = queue.replay(path, of=record)
    assert queue.replay(path, of=record) == target
    _run(bench, queue, seen.append, target)

    assert seen == ["x", "x"]
    assert queue.replay(path, of=record) == target
    assert bench.keys("orders/messages/") == []


class _Killed(BaseException):
    pass


def _dies_before(operation, prefix):
    def around(asked, where, perform):
        if asked == operation and where.startswith(prefix):
            raise _Killed
        return perform()

    return around
