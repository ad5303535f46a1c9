"""Batches: every line is a message, with its own outcome and its own number."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from s3queue import (
    Context,
    DeadLetters,
    Reject,
    Retry,
)
from support.payloads import Email, put_batch


def test_every_line_of_a_batch_is_a_message_and_keeps_its_number(bench, queue):
    path = put_batch(bench, [{"n": 10}, {"n": 20}, {"n": 30}])
    seen = []

    def handler(body: dict, context: Context) -> int:
        seen.append((context.line, body["n"]))
        return body["n"] + 1

    assert bench.processor(queue, handler).run(path) == "completed"

    assert seen == [(1, 10), (2, 20), (3, 30)]
    record = queue.status(path).record
    assert record.lines == {
        "total": 3,
        "completed": 3,
        "dead": 0,
        "results": [[1, 11], [2, 21], [3, 31]],
    }


def test_each_line_has_its_own_result_although_the_handler_uses_one_object_for_all(bench, queue):
    path = put_batch(bench, [1, 2, 3])
    last: dict[str, Any] = {}

    def handler(body: int) -> dict:
        last["n"] = body
        return last

    assert bench.processor(queue, handler).run(path) == "completed"
    assert queue.status(path).record.lines["results"] == [[1, {"n": 1}], [2, {"n": 2}], [3, {"n": 3}]]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b'{"n":1}\r\n{"n":2}\r\n', [(1, 1), (2, 2)]),
        (b'\n\n{"n":1}\n   \n{"n":2}\n\r\n', [(3, 1), (5, 2)]),
        (b'{"n":1}\n{"n":2}', [(1, 1), (2, 2)]),
        (b'\xef\xbb\xbf{"n":1}\n{"n":2}\n', [(1, 1), (2, 2)]),
        (b'  {"n":1}  \n', [(1, 1)]),
        (b"", []),
        (b"\n\r\n", []),
        (b"\xef\xbb\xbf\n", []),
    ],
)
def test_lines_are_read_as_an_editor_shows_them(bench, queue, body, lines):
    path = put_batch(bench, body)
    seen = []

    def handler(item: dict, context: Context) -> None:
        seen.append((context.line, item["n"]))

    assert bench.processor(queue, handler).run(path) == "completed"
    assert seen == lines
    assert queue.status(path).record.lines["total"] == len(lines)


def test_a_failed_line_is_retried_alone(bench, queue):
    path = put_batch(bench, list(range(10)))
    runs: list[tuple[int, int]] = []

    def handler(body: Any, context: Context) -> None:
        runs.append((context.attempt, body))
        if body in (3, 7) and context.attempt == 1:
            raise ValueError(f"no {body}")

    processor = bench.processor(queue, handler)
    assert processor.run(path) == "retried"
    assert "2 of 10 lines failed, the first: no 3" in queue.status(path).lease.failure.message
    bench.clock.advance(10)
    assert processor.run(path, read_first=True) == "completed"

    assert [body for attempt, body in runs if attempt == 2] == [3, 7]
    assert len(runs) == 12
    assert queue.status(path).record.lines["completed"] == 10
    assert not bench.keys("orders/dead/")


def test_a_dead_line_lies_in_the_dead_letter_of_its_batch_with_its_number(bench):  # [P1]
    queue = bench.queue(max_attempts=2)
    path = put_batch(bench, [{"n": number} for number in range(1, 6)])
    runs = []

    def handler(body: dict, context: Context) -> None:
        runs.append((context.attempt, body["n"]))
        if body["n"] == 4:
            raise ValueError("four never works")

    processor = bench.processor(queue, handler)
    processor.run(path)
    bench.clock.advance(10)
    assert processor.run(path, read_first=True) == "completed"

    assert runs == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 4)]
    (letter,) = DeadLetters(queue).list()
    assert (letter.path, letter.lines, letter.error_type) == (f"{path}.lines", 1, "ValueError")
    assert letter.error == "four never works"
    (line,) = DeadLetters(queue).lines(letter.path)
    assert (line.number, line.failure.type, line.body) == (4, "ValueError", b'{"n": 4}')
    record = queue.status(path).record
    assert (record.outcome, record.lines["completed"], record.lines["dead"]) == ("completed", 4, 1)
    assert record.lines["dead_lines"] == [[4, "ValueError", "four never works"]]
    assert not bench.keys("orders/messages/")
    assert not bench.keys("orders/leases/")


def test_a_line_that_is_no_json_is_dead_at_once_with_its_number_and_the_others_run(bench, queue):
    path = put_batch(bench, b'{"to":"a"}\n{"to":\n{"to":"c"}\n{"copies":2}\n')
    seen = []

    def handler(email: Email) -> None:
        seen.append(email.to)

    assert bench.processor(queue, handler).run(path) == "completed"

    assert seen == ["a", "c"]
    lines = DeadLetters(queue).lines(f"{path}.lines")
    assert [(line.number, line.failure.type) for line in lines] == [(2, "Reject"), (4, "Reject")]
    assert lines[0].failure.message.startswith("line 2: the payload cannot be parsed")
    assert lines[0].body == b'{"to":'


def test_a_line_that_is_rejected_is_dead_at_once(bench, queue):
    path = put_batch(bench, [1, 2, 3])

    def handler(body: Any) -> None:
        if body == 2:
            raise Reject("two is not for us")

    assert bench.processor(queue, handler).run(path) == "completed"
    assert [line.number for line in DeadLetters(queue).lines(f"{path}.lines")] == [2]


def test_a_batch_whose_every_line_is_dead_is_dead(bench):
    queue = bench.queue(max_attempts=1)
    path = put_batch(bench, [1, 2, 3])

    def handler(body: Any) -> None:
        raise ValueError("never")

    assert bench.processor(queue, handler).run(path) == "dead"
    assert [line.number for line in DeadLetters(queue).lines(f"{path}.lines")] == [1, 2, 3]
    assert queue.status(path).state == "dead"
    assert not bench.keys("orders/messages/")


def test_lines_wait_for_the_longest_time_that_a_handler_asked_for(bench, queue):
    path = put_batch(bench, [5, 50, 20])

    def handler(body: Any) -> None:
        raise Retry("later", after=body)

    bench.processor(queue, handler).run(path)

    assert queue.status(path).lease.retry_at == bench.clock.now() + timedelta(seconds=50)


def test_a_handler_of_lists_gets_the_lines_together(bench, queue):
    path = put_batch(bench, [{"to": str(number)} for number in range(250)])
    calls = []

    def handler(emails: list[Email], context: Context) -> None:
        calls.append([email.to for email in emails])

    assert bench.processor(queue, handler).run(path) == "completed"
    assert [len(call) for call in calls] == [100, 100, 50]
    assert [to for call in calls for to in call] == [str(number) for number in range(250)]


def test_a_handler_of_lists_that_fails_retries_its_call_only(bench, queue):
    path = put_batch(bench, list(range(150)))
    calls = []

    def handler(numbers: list[int], context: Context) -> None:
        calls.append((context.attempt, numbers[0], len(numbers)))
        if numbers[0] == 100 and context.attempt == 1:
            raise ValueError("second call")

    processor = bench.processor(queue, handler)
    assert processor.run(path) == "retried"
    bench.clock.advance(10)
    assert processor.run(path, read_first=True) == "completed"
    assert calls == [(1, 0, 100), (1, 100, 50), (2, 100, 50)]


def test_a_handler_of_lists_never_sees_a_line_that_does_not_parse(bench, queue):
    path = put_batch(bench, b"1\ntwo\n3\n")
    seen = []

    def handler(numbers: list[int]) -> None:
        seen.extend(numbers)

    bench.processor(queue, handler).run(path)

    assert seen == [1, 3]
    assert [line.number for line in DeadLetters(queue).lines(f"{path}.lines")] == [2]


def test_a_line_whose_parsing_fails_in_any_way_dies_alone(bench):
    """[P5] A model's own checks may raise anything."""

    @dataclass
    class Order:
        price: float

        def __post_init__(self) -> None:
            assert self.price < 100

    queue = bench.queue()
    (path,) = queue.enqueue_many([{"price": 1.0}, {"price": 500.0}, {"price": 2.0}])
    seen: list[float] = []

    def handler(order: Order) -> None:
        seen.append(order.price)

    handler.__annotations__["order"] = Order
    assert bench.processor(queue, handler).run(path) == "completed"

    assert seen == [1.0, 2.0]
    assert queue.status(path).record.dead_lines == 1
