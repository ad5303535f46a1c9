"""A dead letter becomes a message of another queue: once, whatever happens in between."""

from __future__ import annotations

import pytest

from s3queue import Conflict, MessageNotFound, Reject, Unavailable
from s3queue.errors import InvalidName
from support.killed_store import Killed


@pytest.fixture
def other(bench):
    return bench.queue("by-hand")


def dead(queue, body=None, **options) -> str:
    path = queue.enqueue(body or {"n": 1}, **options)
    queue.fail(queue.claim(path), "no", dead=True)
    return path


def test_a_letter_becomes_a_message_there_and_is_gone_here(bench, queue, other):
    path = dead(queue, metadata={"customer": "42"}, priority=9)

    arrived = queue.replay(path, to=other)

    assert bench.keys("orders/dead/") == bench.keys("orders/messages/") == []
    message = other.claim(arrived).message
    assert (message.json(), message.metadata, message.priority) == ({"n": 1}, {"customer": "42"}, 9)
    assert queue.status(path).state == "dead", "its record stays"


def test_without_another_queue_it_is_replayed_here(bench, queue):
    path = dead(queue)
    bench.clock.advance(1)
    assert queue.replay(path) == path
    assert bench.processor(queue, lambda body: None).run(path) == "completed"
    again = dead(queue)
    assert queue.replay(again, to=bench.queue()) == again


def test_the_dead_lines_of_a_batch_run_there(bench, queue, other):
    (path,) = queue.enqueue_many([{"n": 1}, {"n": 2}])

    def handle(body: dict) -> None:
        if body["n"] == 2:
            raise Reject("no")

    bench.processor(queue, handle).run(path)
    seen: list[int] = []
    arrived = queue.replay(f"{path}.lines", to=other)

    assert bench.processor(other, lambda body: seen.append(body["n"])).run(arrived) == "completed"
    assert seen == [2]


def test_a_crash_at_any_request_makes_one_message_of_it(bench):
    """[P1] [P4]"""
    for requests in range(8):
        queue, other = bench.queue(f"from{requests}"), bench.queue(f"to{requests}")
        path = dead(queue)
        left = [requests]

        def die(operation, key, perform, left=left):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return perform()

        bench.around = die
        try:
            queue.replay(path, to=other)
        except Killed:
            bench.around = None
            ran: list[object] = []
            bench.settle(other, ran.append)
            bench.clock.advance(1)
            if bench.keys(f"from{requests}/dead/"):
                queue.replay(path, to=other)
            bench.settle(other, ran.append)
            assert len(ran) == 1
        bench.around = None
        assert bench.keys(f"from{requests}/dead/") == []


@pytest.mark.parametrize("stored", [True, False])
def test_an_answer_that_is_lost_makes_no_second_message(bench, queue, other, stored):
    path = dead(queue)

    def lose(operation, key, perform):
        if operation == "put" and key.startswith("by-hand/"):
            bench.around = None
            if stored:
                perform()
            raise Unavailable("time-out")
        return perform()

    bench.around = lose
    with pytest.raises(Unavailable):
        queue.replay(path, to=other)
    ran: list[object] = []
    bench.settle(other, ran.append)

    queue.replay(path, to=other)
    bench.settle(other, ran.append)

    assert len(ran) == 1
    assert bench.keys("orders/dead/") == []


def test_another_message_of_that_name_is_not_overwritten_and_the_letter_stays(bench, queue, other):
    path = dead(queue, name="config")
    other.enqueue({"mine": True}, name="config")

    with pytest.raises(Conflict, match="by-hand/messages/config"):
        queue.replay(path, to=other)

    assert bench.keys("orders/dead/")
    assert bench.read("by-hand/messages/config") == b'{"mine":true}'


def test_what_is_not_dead_is_not_found(queue, other):
    with pytest.raises(MessageNotFound, match="messages/none"):
        queue.replay("messages/none", to=other)


def test_a_name_that_is_too_long_there_stays_here(bench, queue):
    longer = bench.queue("q" + "x" * 50)
    path = dead(queue, name="n" * 940)
    with pytest.raises(InvalidName, match="too long"):
        queue.replay(path, to=longer)
    assert bench.keys("orders/dead/")


def test_it_may_be_replayed_again_once_it_has_died_there(bench, queue, other):
    arrived = queue.replay(dead(queue), to=other)
    other.fail(other.claim(arrived), "no", dead=True)
    bench.clock.advance(1)
    back = other.replay(arrived, to=queue)
    assert bench.processor(queue, lambda body: None).run(back) == "completed"
