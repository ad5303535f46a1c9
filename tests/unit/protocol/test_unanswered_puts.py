"""Enqueue, when a PUT gets no answer: success is told only of this call's own message, and it is not run twice."""

from __future__ import annotations

import pytest

from s3queue import AccessDenied, Unavailable
from s3queue.encoding import METADATA_BYTES, PUT_ID


def lose_a_put(bench) -> None:
    """The next PUT of a message never arrives, and is not answered."""

    def lose(operation, key, perform):
        if operation == "put" and key.startswith("orders/messages/"):
            bench.around = None
            raise Unavailable("time-out")
        return perform()

    bench.around = lose


@pytest.mark.parametrize("options", [{}, {"dedup_id": "order-17"}, {"name": "order-17"}], ids=str)
def test_a_message_whose_put_had_no_answer_and_that_ran_meanwhile_is_not_put_again(bench, queue, options):
    """[P1] The PUT lands, its answer is lost, the message runs and is deleted: a repetition would run it twice."""

    def lose_the_answer(operation, key, perform):
        answer = perform()
        if operation == "put" and key.startswith("orders/messages/"):
            bench.around = None
            worker = bench.queue(worker_id="worker")
            worker.complete(worker.claim(key.removeprefix("orders/")))
            raise Unavailable("time-out")
        return answer

    bench.around = lose_the_answer

    path = queue.enqueue(b"x", **options)

    assert queue.status(path).state == "completed"
    assert bench.keys("orders/messages/") == []


def test_a_message_whose_put_was_lost_is_put_again(bench, queue):
    tries = []

    def lose(operation, key, perform):
        if operation == "put" and not tries:
            tries.append(key)
            raise Unavailable("time-out")
        return perform()

    bench.around = lose

    path = queue.enqueue(b"x")

    assert bench.read(f"orders/{path}") == b"x"


def test_another_message_of_the_same_name_is_not_taken_for_the_one_that_was_lost(bench, queue):
    """[P1] The first is a second old: no date tells which of two PUTs an object is."""
    queue.enqueue(b"v1", name="config")
    bench.clock.advance(1)
    lose_a_put(bench)

    path = queue.enqueue(b"v2", name="config")

    assert bench.read(f"orders/{path}") == b"v2"


@pytest.mark.parametrize("options", [{"dedup_id": "order-17"}, {"name": "order-17"}], ids=str)
@pytest.mark.parametrize("dies", [False, True])
def test_the_outcome_of_an_earlier_message_is_not_taken_for_that_of_the_one_that_was_lost(bench, queue, options, dies):
    """[P1]"""
    path = queue.enqueue(b"first", **options)
    claim = queue.claim(path)
    if dies:
        queue.fail(claim, "no good", dead=True)
    else:
        queue.complete(claim)
    bench.clock.advance(1)
    lose_a_put(bench)

    assert queue.enqueue(b"second", **options) == path

    assert bench.read(f"orders/{path}") == b"second"


def test_a_dedup_id_whose_put_was_lost_keeps_the_message_of_another_call(bench, queue):
    path = queue.enqueue(b"first", dedup_id="order-17")
    lose_a_put(bench)

    assert queue.enqueue(b"second", dedup_id="order-17") == path

    assert bench.read(f"orders/{path}") == b"first"


def test_an_answer_costs_nothing_more_and_none_costs_a_head_and_a_get(bench, queue):
    queue.enqueue(b"x", name="a")
    assert bench.store.take() == {"put": 1}
    lose_a_put(bench)

    queue.enqueue(b"x", name="b")

    assert bench.store.take() == {"put": 2, "head": 1, "get": 1}


def test_a_producer_that_may_only_put_puts_again(bench, queue):
    def lose(operation, key, perform):
        if operation in ("get", "head"):
            raise AccessDenied("PUT only")
        if not tried:
            tried.append(key)
            raise Unavailable("time-out")
        return perform()

    tried: list[str] = []
    bench.around = lose

    path = queue.enqueue(b"x", name="a")

    bench.around = None
    assert bench.read(f"orders/{path}") == b"x"


def test_the_id_of_a_put_is_no_part_of_the_metadata_that_a_handler_sees(bench, queue):
    path = queue.enqueue(b"x", name="a", metadata={"customer": "42"})

    message = queue.claim(path).message

    assert message.metadata == {"customer": "42"}
    assert message.put_id == bench.memory.head(f"orders/{path}").metadata[PUT_ID]


def test_names_that_the_library_makes_need_no_id(bench, queue):
    assert bench.memory.head(f"orders/{queue.enqueue(b'x')}").metadata == {}


def test_metadata_that_leaves_no_room_for_an_id_goes_without_and_nothing_is_lost(bench, queue):
    full = {"a": "x" * (METADATA_BYTES - 1)}
    lose_a_put(bench)

    path = queue.enqueue(b"x", name="a", metadata=full)

    assert bench.memory.head(f"orders/{path}").metadata == full


def test_a_put_without_an_answer_is_not_repeated_while_nobody_can_tell_whether_it_arrived(bench, queue):
    """[P1] The message ran; its record is there, but the question for it had no answer."""
    asked = []

    def lose(operation, key, perform):
        asked.append((operation, key))
        if len(asked) == 1:
            perform()
            bench.around = None
            worker = bench.queue(worker_id="worker")
            worker.complete(worker.claim(key.removeprefix("orders/")))
            bench.around = lose
            raise Unavailable("time-out")
        if operation in ("head", "get") and len(asked) <= 4:
            raise Unavailable("time-out")
        return perform()

    bench.around = lose

    path = queue.enqueue(b"x", name="order-17")

    bench.around = None
    assert [operation for operation, _ in asked].count("put") == 1
    assert queue.status(path).state == "completed"
    assert bench.keys("orders/messages/") == []
