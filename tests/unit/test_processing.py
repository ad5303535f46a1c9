"""Processing: what becomes of a message, by what its handler does and how its payload reads."""

from __future__ import annotations

import dataclasses
import io
import json
import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from typing import IO, Any, BinaryIO

import pydantic
import pytest

from s3queue import (
    Context,
    DeadLetters,
    Definition,
    InvalidRequest,
    Processor,
    QueueSettings,
    Reject,
    Retry,
    Unavailable,
    define,
)
from s3queue.store import Object
from support.workbench import Workbench


@pytest.fixture
def bench():
    return Workbench()


@pytest.fixture
def queue(bench):
    return bench.queue()


class Email(pydantic.BaseModel):
    to: str
    copies: int = 1


@dataclasses.dataclass
class Address:
    city: str
    zip: int


@dataclasses.dataclass
class Person:
    name: str
    address: Address
    height: float = 0.0
    tags: list = dataclasses.field(default_factory=list)


def batch(bench, lines: bytes | list[Any], name: str = "messages/b.ndjson") -> str:
    """A batch as `aws s3 cp` would write it."""
    body = lines if isinstance(lines, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    bench.memory.put(f"orders/{name}", body)
    return name


# One message


def test_what_a_handler_returns_is_its_result(bench, queue):
    path = queue.enqueue({"a": 1})

    assert bench.processor(queue, lambda body: {"sum": body["a"] + 1}).run(path) == "completed"

    assert queue.status(path).record.result == {"sum": 2}


def test_an_exception_is_a_failed_attempt_with_its_type_text_and_place(bench, queue):
    path = queue.enqueue(b"x")

    def handler(body: bytes) -> None:
        raise KeyError("no such customer")

    assert bench.processor(queue, handler).run(path) == "retried"

    failure = queue.status(path).lease.failure
    assert (failure.type, failure.message) == ("KeyError", "'no such customer'")
    assert "in handler" in failure.details


def test_the_last_failed_attempt_is_a_death(bench):  # [P5]
    queue = bench.queue(max_attempts=3)
    path = queue.enqueue(b"x")
    starts = []

    def handler(body: bytes, context: Context) -> None:
        starts.append(context.attempt)
        raise ValueError("always")

    processor = bench.processor(queue, handler)
    outcomes = []
    for _ in range(6):
        outcomes.append(processor.run(path, read_first=True))
        bench.clock.advance(60)

    assert outcomes == ["retried", "retried", "dead", None, None, None]
    assert starts == [1, 2, 3]


def test_retry_is_as_told_and_counts_as_an_attempt(bench):
    queue = bench.queue(max_attempts=2)
    path = queue.enqueue(b"x")

    def handler(body: bytes) -> None:
        raise Retry("rate limited", after=30)

    processor = bench.processor(queue, handler)
    assert processor.run(path) == "retried"
    assert queue.status(path).lease.retry_at == bench.clock.now() + timedelta(seconds=30)
    bench.clock.advance(29)
    assert processor.run(path, read_first=True) is None
    bench.clock.advance(1)
    assert processor.run(path, read_first=True) == "dead"


def test_retry_without_a_time_waits_as_the_policy_says(bench, queue):
    path = queue.enqueue(b"x")

    def handler(body: bytes) -> None:
        raise Retry

    bench.processor(queue, handler).run(path)

    assert queue.status(path).lease.retry_at == bench.clock.now() + timedelta(seconds=1)


def test_reject_is_death_at_once_with_its_reason(bench, queue):
    path = queue.enqueue(b"x")

    def handler(body: bytes) -> None:
        raise Reject("unknown customer")

    assert bench.processor(queue, handler).run(path) == "dead"

    record = queue.status(path).record
    assert (record.failure.type, record.failure.message, record.attempt) == ("Reject", "unknown customer", 1)


def test_system_exit_is_a_failure_of_the_message_and_not_of_the_worker(bench, queue):
    path = queue.enqueue(b"x")

    def handler(body: bytes) -> None:
        raise SystemExit(3)

    assert bench.processor(queue, handler).run(path) == "retried"
    assert queue.status(path).lease.failure.type == "SystemExit"


def test_an_interrupt_from_the_keyboard_is_not_swallowed(bench, queue):
    path = queue.enqueue(b"x")

    def handler(body: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.processor(queue, handler).run(path)


def test_the_context_tells_everything_and_the_handler_need_not_take_it(bench, queue):
    path = queue.enqueue(b"payload", metadata={"Tenant": "Zoë"}, content_type="text/csv")
    told = {}
    bench.clock.advance(4)

    def handler(body: bytes, context: Context) -> None:
        told.update(
            worker=context.worker_id,
            attempt=context.attempt,
            most=context.max_attempts,
            path=context.path,
            queue=context.queue,
            waited=context.claimed_at - context.enqueued_at,
            metadata=dict(context.metadata),
            content_type=context.content_type,
            fence=context.fence,
            left=context.remaining(),
            stream=context.open().read(),
            line=context.line,
        )

    bench.processor(queue, handler).run(path)

    fence = told.pop("fence")
    assert fence.startswith("1-")
    assert told == {
        "worker": queue.worker_id,
        "attempt": 1,
        "most": 3,
        "path": path,
        "queue": "orders",
        "waited": timedelta(seconds=4),
        "metadata": {"tenant": "Zoë"},
        "content_type": "text/csv",
        "left": timedelta(seconds=30),
        "stream": b"payload",
        "line": 0,
    }


def test_a_handler_that_extends_keeps_its_message(bench, queue):
    path = queue.enqueue(b"x")

    def handler(body: bytes, context: Context) -> str:
        for _ in range(4):
            bench.clock.advance(25)
            context.extend()
            bench.sweeper(bench.queue(worker_id="sweeper")).sweep()
        context.extend(500)
        assert context.remaining() == timedelta(seconds=500)
        return "done"

    assert bench.processor(queue, handler).run(path) == "completed"
    assert len(queue.status(path).record.attempts) == 1


def test_a_handler_that_extends_too_late_is_told_that_the_message_is_lost(bench, queue):  # [P4]
    path = queue.enqueue(b"x")

    def handler(body: bytes, context: Context) -> None:
        bench.clock.advance(60)
        bench.sweeper(bench.queue(worker_id="sweeper")).sweep()
        context.extend()

    assert bench.processor(queue, handler).run(path) == "lost"
    assert queue.status(path).state == "waiting"


def test_progress_is_shown_to_operators_while_the_handler_runs(bench, queue):
    path = queue.enqueue(b"x")

    def handler(body: bytes, context: Context) -> None:
        context.progress(0.4, "loading")
        assert bench.queue().status(path).lease.progress == (0.4, "loading")

    assert bench.processor(queue, handler).run(path) == "completed"


def test_no_handler_starts_on_a_lease_that_is_over(bench, queue):  # [P4]
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    bench.clock.advance(30)
    started = []

    assert bench.processor(queue, started.append).process(claim) == "lost"
    assert started == []


def test_no_handler_starts_when_reading_the_payload_outlived_the_lease(bench, queue):  # [P4]
    path = queue.enqueue(b"x" * (9 * 1024 * 1024))
    claim = queue.claim(path)
    started = []

    def slow(operation, key, perform):
        bench.clock.advance(40)
        return perform()

    def handler(body: bytes) -> None:
        started.append(len(body))

    bench.around = slow
    assert bench.processor(queue, handler).process(claim) == "lost"
    assert started == []


def test_an_outcome_that_the_store_does_not_confirm_is_asked_about_again(bench, queue):  # [P1]
    path = queue.enqueue(b"x")
    silent = []

    def falters(operation, key, perform):
        if "/records/" in key and len(silent) < 6:
            silent.append(key)
            raise Unavailable("no answer")
        return perform()

    def handler(body: bytes) -> str:
        bench.around = falters
        return "done"

    assert bench.processor(queue, handler).run(path) == "completed"
    assert queue.status(path).record.result == "done"


def test_an_outcome_that_cannot_be_written_leaves_the_message_to_the_sweeper(bench, queue):  # [P1] [P6]
    path = queue.enqueue(b"1")

    def silent(operation, key, perform):
        if "/records/" in key:
            raise Unavailable("no answer")
        return perform()

    def handler(body: bytes) -> str:
        bench.around = silent
        return "done"

    assert bench.processor(queue, handler).run(path) == "lost"
    bench.around = None
    bench.clock.advance(60)
    bench.settle(queue, lambda body: "done by another")
    assert queue.status(path).record.result == "done by another"


# Parsing


def test_a_pydantic_model_is_validated(bench, queue):
    good, bad = queue.enqueue({"to": "a@example.com"}), queue.enqueue({"copies": "many"})
    seen = []

    def handler(email: Email) -> None:
        seen.append(email)

    processor = bench.processor(queue, handler)
    assert processor.run(good) == "completed"
    assert processor.run(bad) == "dead"

    assert seen == [Email(to="a@example.com")]
    record = queue.status(bad).record
    assert record.failure.type == "Reject"
    assert "does not parse" in record.failure.message
    assert "copies" in record.failure.message
    assert record.attempt == 1


def test_a_dataclass_is_built_with_its_nested_ones(bench, queue):
    path = queue.enqueue({"name": "Ann", "address": {"city": "Ulm", "zip": 89073}, "height": 2, "tags": ["a"]})
    seen = []

    def handler(person: Person) -> None:
        seen.append(person)

    assert bench.processor(queue, handler).run(path) == "completed"
    assert seen == [Person("Ann", Address("Ulm", 89073), 2.0, ["a"])]


@pytest.mark.parametrize(
    "body",
    [
        {"name": "Ann"},
        {"name": "Ann", "address": "Ulm"},
        {"name": "Ann", "address": {"city": "Ulm", "zip": "89073"}},
        {"name": "Ann", "address": {"city": "Ulm", "zip": True}},
        {"name": "Ann", "address": {"city": "Ulm", "zip": 1}, "age": 3},
        [1],
        "text",
    ],
)
def test_a_dataclass_that_does_not_fit_is_dead_at_once(bench, queue, body):
    path = queue.enqueue(json.dumps(body))

    def handler(person: Person) -> None:
        raise AssertionError("must not run")

    assert bench.processor(queue, handler).run(path) == "dead"
    assert "does not parse" in queue.status(path).record.failure.message


def _dict(body: dict) -> Any:
    return body


def _dict_of(body: dict[str, int]) -> Any:
    return body


def _list(body: list) -> Any:
    return body


def _str(body: str) -> Any:
    return body


def _bytes(body: bytes) -> Any:
    return body.hex()


def _stream(body: BinaryIO) -> Any:
    with body:
        return body.read().decode()


def _io(body: IO[bytes]) -> Any:
    with body:
        return body.read().decode()


def _any(body: Any) -> Any:
    return body


def _bare(body):
    return body


@pytest.mark.parametrize(
    ("handler", "body", "result"),
    [
        (_dict, b'{"a":1}', {"a": 1}),
        (_dict_of, b'{"a":1}', {"a": 1}),
        (_list, b"[1,2]", [1, 2]),
        (_str, "grüße".encode(), "grüße"),
        (_bytes, b"\xff\x00", "ff00"),
        (_stream, b"as it is", "as it is"),
        (_io, b"as it is", "as it is"),
        (_any, b"[null]", [None]),
        (_bare, b'"text"', "text"),
    ],
)
def test_a_payload_is_parsed_as_the_handler_is_annotated(bench, queue, handler, body, result):
    path = queue.enqueue(body)

    assert bench.processor(queue, handler).run(path) == "completed"
    assert queue.status(path).record.result == result


@pytest.mark.parametrize(
    ("handler", "body"),
    [
        (_dict, b"[1]"),
        (_list, b"{}"),
        (_dict, b""),
        (_dict, b"{"),
        (_str, b"\xff"),
        (_any, b"nope"),
        (_bare, b"\xff\xfe"),
    ],
)
def test_a_payload_that_does_not_parse_is_dead_at_once_with_the_reason(bench, queue, handler, body):
    path = queue.enqueue(body)

    assert bench.processor(queue, handler).run(path) == "dead"
    record = queue.status(path).record
    assert (record.failure.type, record.attempt) == ("Reject", 1)
    assert "does not parse" in record.failure.message
    assert bench.read(f"orders/dead/{path}") == body


def test_json_nested_too_deeply_is_dead_and_does_not_kill_the_worker(bench, queue):
    path = queue.enqueue(b"[" * 200_000)

    assert bench.processor(queue, _any).run(path) == "dead"


def test_what_was_put_larger_than_the_queue_takes_is_dead_unless_it_is_streamed(bench):
    queue = bench.queue(max_message_size=10)
    bench.memory.put("orders/messages/large", b"x" * 11)
    bench.memory.put("orders/messages/streamed", b"x" * 11)

    assert bench.processor(queue, _str).run("messages/large") == "dead"
    assert "MessageTooLarge" in queue.status("messages/large").record.failure.message
    assert bench.processor(queue, _stream).run("messages/streamed") == "completed"


def test_a_largest_size_that_is_set_at_run_time_counts_for_the_handler_too(bench):
    queue = bench.queue(max_message_size=10)
    processor = bench.processor(queue, _str)
    bench.memory.put("orders/messages/once too large", b"x" * 11)
    bench.memory.put("orders/messages/larger still", b"x" * 12)

    queue.configure(max_message_size=11)

    assert processor.run("messages/once too large") == "completed"
    assert processor.run("messages/larger still") == "dead"


def test_an_annotation_that_cannot_be_parsed_into_is_refused_when_the_queue_is_defined():
    with pytest.raises(InvalidRequest, match="cannot take"):

        @define("emails").handler
        def send(email: complex) -> None: ...


def test_a_handler_takes_one_or_two_arguments_and_a_queue_one_handler():
    queue = define("emails")

    with pytest.raises(InvalidRequest):

        @queue.handler
        def three(a: dict, b: Any, c: Any) -> None: ...

    @queue.handler
    def one(a: dict) -> None: ...

    with pytest.raises(InvalidRequest, match="has a handler already"):

        @queue.handler
        def two(a: dict) -> None: ...


def test_a_queue_without_a_handler_says_so(bench, queue):
    path = queue.enqueue(b"x")

    processor = Processor(queue=queue, definition=Definition("orders", QueueSettings()))
    assert processor.run(path) == "retried"
    assert "has no handler" in queue.status(path).lease.failure.message


def test_a_list_of_models_takes_a_json_array_or_a_single_one(bench, queue):
    many, one = queue.enqueue([{"to": "a"}, {"to": "b"}]), queue.enqueue({"to": "c"})
    seen = []

    def handler(emails: list[Email]) -> None:
        seen.append([email.to for email in emails])

    processor = bench.processor(queue, handler)
    processor.run(many)
    processor.run(one)

    assert seen == [["a", "b"], ["c"]]


# Batches


def test_every_line_of_a_batch_is_a_message_and_keeps_its_number(bench, queue):
    path = batch(bench, [{"n": 10}, {"n": 20}, {"n": 30}])
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
    path = batch(bench, body)
    seen = []

    def handler(item: dict, context: Context) -> None:
        seen.append((context.line, item["n"]))

    assert bench.processor(queue, handler).run(path) == "completed"
    assert seen == lines
    assert queue.status(path).record.lines["total"] == len(lines)


def test_a_failed_line_is_retried_alone(bench, queue):
    path = batch(bench, list(range(10)))
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


def test_a_dead_line_becomes_a_dead_letter_of_its_own_with_its_number(bench):  # [P1]
    queue = bench.queue(max_attempts=2)
    path = batch(bench, [{"n": number} for number in range(1, 6)])
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
    assert (letter.path, letter.line, letter.error_type) == (f"{path}.line-00000004", 4, "ValueError")
    assert letter.error == "four never works"
    assert bench.read(f"orders/dead/{letter.path}") == b'{"n": 4}'
    record = queue.status(path).record
    assert (record.outcome, record.lines["completed"], record.lines["dead"]) == ("completed", 4, 1)
    assert record.lines["dead_lines"] == [[4, "ValueError", "four never works"]]
    assert not bench.keys("orders/messages/")
    assert not bench.keys("orders/leases/")


def test_a_line_that_is_no_json_is_dead_at_once_with_its_number_and_the_others_run(bench, queue):
    path = batch(bench, b'{"to":"a"}\n{"to":\n{"to":"c"}\n{"copies":2}\n')
    seen = []

    def handler(email: Email) -> None:
        seen.append(email.to)

    assert bench.processor(queue, handler).run(path) == "completed"

    assert seen == ["a", "c"]
    letters = list(DeadLetters(queue).list())
    assert [(letter.line, letter.error_type) for letter in letters] == [(2, "Reject"), (4, "Reject")]
    assert letters[0].error.startswith("line 2: the payload does not parse")
    assert bench.read(f"orders/dead/{letters[0].path}") == b'{"to":'


def test_a_line_that_is_rejected_is_dead_at_once(bench, queue):
    path = batch(bench, [1, 2, 3])

    def handler(body: Any) -> None:
        if body == 2:
            raise Reject("two is not for us")

    assert bench.processor(queue, handler).run(path) == "completed"
    assert [letter.line for letter in DeadLetters(queue).list()] == [2]


def test_a_batch_whose_every_line_is_dead_is_dead(bench):
    queue = bench.queue(max_attempts=1)
    path = batch(bench, [1, 2, 3])

    def handler(body: Any) -> None:
        raise ValueError("never")

    assert bench.processor(queue, handler).run(path) == "dead"
    assert [letter.line for letter in DeadLetters(queue).list()] == [1, 2, 3]
    assert queue.status(path).state == "dead"
    assert not bench.keys("orders/messages/")


def test_lines_wait_for_the_longest_time_that_a_handler_asked_for(bench, queue):
    path = batch(bench, [5, 50, 20])

    def handler(body: Any) -> None:
        raise Retry("later", after=body)

    bench.processor(queue, handler).run(path)

    assert queue.status(path).lease.retry_at == bench.clock.now() + timedelta(seconds=50)


def test_a_batch_that_runs_out_of_time_goes_on_where_it_stopped_and_burns_no_attempt(bench):  # [P5]
    queue = bench.queue(max_attempts=2)
    path = batch(bench, list(range(20)))
    runs: list[tuple[int, int]] = []
    in_this_invocation: list[int] = []

    def handler(body: Any, context: Context) -> None:
        runs.append((context.attempt, body))
        in_this_invocation.append(body)
        if body == 2:
            raise ValueError("two")

    outcomes = []
    while not outcomes or outcomes[-1] == "released":
        in_this_invocation.clear()
        processor = bench.processor(queue, handler, should_stop=lambda: len(in_this_invocation) >= 3)
        outcomes.append(processor.run(path, read_first=bool(outcomes)))
        bench.clock.advance(1)

    # Twenty lines in invocations of three, all of them attempt 1, each line once.
    assert outcomes == ["released"] * 6 + ["retried"]
    assert runs == [(1, number) for number in range(20)]
    bench.clock.advance(10)
    assert bench.processor(queue, handler).run(path, read_first=True) == "completed"
    assert runs[20:] == [(2, 2)]
    assert [letter.line for letter in DeadLetters(queue).list()] == [3]


def test_even_the_shortest_invocation_gets_one_line_done(bench, queue):
    path = batch(bench, [1, 2, 3])
    runs = []
    processor = bench.processor(queue, runs.append, should_stop=lambda: True)

    for read_first in (False, True, True, True):
        processor.run(path, read_first=read_first)
        bench.clock.advance(1)

    assert runs == [1, 2, 3]
    assert queue.status(path).state == "completed"


def test_a_long_batch_keeps_its_lease_and_notes_what_is_done(bench, queue):  # [P2]
    path = batch(bench, list(range(30)))
    rival = bench.sweeper(bench.queue(worker_id="sweeper"))
    noted = []

    def handler(body: Any) -> None:
        bench.clock.advance(10)
        rival.sweep()
        lease = queue.status(path).lease
        noted.append(len(lease.lines.done) if lease.lines else 0)

    assert bench.processor(queue, handler).run(path) == "completed"
    assert len(queue.status(path).record.attempts) == 1
    assert max(noted) >= 28


def test_after_a_crash_only_the_lines_that_were_not_noted_run_again(bench, queue):  # [P6]
    path = batch(bench, list(range(10)))
    runs: list[int] = []

    class PowerCut(BaseException):
        pass

    def handler(body: Any, context: Context) -> None:
        runs.append(body)
        bench.clock.advance(10)
        if body == 6 and context.attempt == 1:
            raise PowerCut

    with pytest.raises(PowerCut):
        bench.processor(queue, handler).run(path)
    noted = len(queue.status(path).lease.lines.done)
    assert noted >= 4
    bench.clock.advance(60)
    bench.settle(queue, handler)

    assert runs[7:] == list(range(noted, 10))
    assert queue.status(path).record.lines["completed"] == 10


def test_a_batch_that_crashes_in_its_last_attempt_loses_no_line(bench):  # [P1]
    queue = bench.queue(max_attempts=1)
    path = batch(bench, list(range(6)))

    class PowerCut(BaseException):
        pass

    def handler(body: Any) -> None:
        bench.clock.advance(14)
        if body == 1:
            raise ValueError("one")
        if body == 4:
            raise PowerCut

    with pytest.raises(PowerCut):
        bench.processor(queue, handler).run(path)
    done = queue.status(path).lease.lines.done
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()

    letters = {letter.path: bench.read(f"orders/dead/{letter.path}") for letter in DeadLetters(queue).list()}
    assert letters.pop(f"{path}.line-00000002") == b"1"
    left = [int(line) for line in letters.pop(path).split()]
    assert sorted([*left, 1, *(number - 1 for number in done)]) == list(range(6))
    assert not letters


def test_a_handler_of_lists_gets_the_lines_together(bench, queue):
    path = batch(bench, [{"to": str(number)} for number in range(250)])
    calls = []

    def handler(emails: list[Email], context: Context) -> None:
        calls.append([email.to for email in emails])

    assert bench.processor(queue, handler).run(path) == "completed"
    assert [len(call) for call in calls] == [100, 100, 50]
    assert [to for call in calls for to in call] == [str(number) for number in range(250)]


def test_a_handler_of_lists_that_fails_retries_its_call_only(bench, queue):
    path = batch(bench, list(range(150)))
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
    path = batch(bench, b"1\ntwo\n3\n")
    seen = []

    def handler(numbers: list[int]) -> None:
        seen.extend(numbers)

    bench.processor(queue, handler).run(path)

    assert seen == [1, 3]
    assert [letter.line for letter in DeadLetters(queue).list()] == [2]


def test_a_batch_that_was_deleted_before_it_could_be_read_is_no_crash(bench, queue):  # [P1]
    path = batch(bench, b'"' + b"x" * (9 * 1024 * 1024) + b'"\n')
    claim = queue.claim(path)
    bench.memory.delete(f"orders/{path}")

    assert bench.processor(queue, lambda body: None).process(claim) == "retried"
    bench.clock.advance(60)
    bench.settle(queue, lambda body: None)
    assert queue.status(path).record.failure.type == "MessageVanished"


class _OneLargeObject:
    """A store with one object that is far too large for memory: its bytes are made as they are read."""

    def __init__(self, bench: Workbench, key: str, line: bytes, lines: int) -> None:
        self._inner, self._key, self._line, self._lines = bench.memory, key, line, lines
        self.url = bench.memory.url
        bench.memory.put(key, b"a stand-in")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        found = self._inner.open(key, if_match=if_match)
        if key != self._key or found is None:
            return found
        stream = io.BufferedReader(_Repeated(self._line, self._lines))
        return dataclasses.replace(found, size=len(self._line) * self._lines, stream=stream)


class _Repeated(io.RawIOBase):
    def __init__(self, line: bytes, lines: int) -> None:
        self._left: Iterator[bytes] = iter([line] * lines)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self._rest) < len(buffer) and (more := next(self._left, b"")):
            self._rest += more
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def test_a_batch_of_200_mb_is_worked_on_in_a_fraction_of_its_size(bench):
    line = b'"' + b"x" * 10_237 + b'"\n'
    queue = bench.queue()
    queue.store = _OneLargeObject(bench, "orders/messages/huge.ndjson", line, 20_000)
    seen = 0

    def handler(body: bytes) -> None:
        nonlocal seen
        seen += len(body) + 1

    processor = bench.processor(queue, handler)
    tracemalloc.start()
    try:
        assert processor.run("messages/huge.ndjson") == "completed"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert seen == len(line) * 20_000 > 200_000_000
    assert peak < 40_000_000


def test_lease_lost_inside_a_batch_stops_it(bench, queue):  # [P4]
    path = batch(bench, list(range(5)))
    runs = []

    def handler(body: Any) -> None:
        runs.append(body)
        if body == 2:
            bench.clock.advance(60)
            bench.sweeper(bench.queue(worker_id="sweeper")).sweep()

    assert bench.processor(queue, handler).run(path) == "lost"
    assert runs == [0, 1, 2]
