"""Definitions: a payload is parsed as the handler is annotated, or is dead with the reason."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import IO, Any, BinaryIO

import pytest

from s3queue import (
    Context,
    DeadLetters,
    Definition,
    InvalidRequest,
    Processor,
    QueueSettings,
    define,
)
from s3queue.worker.definition import definition_for
from support.payloads import Email


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
    assert "cannot be parsed" in record.failure.message
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
    assert "cannot be parsed" in queue.status(path).record.failure.message


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
    assert "cannot be parsed" in record.failure.message
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

    with pytest.raises(InvalidRequest, match="already has a handler"):

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


def test_an_empty_body_is_a_message_like_any_other(bench, queue):
    path = queue.enqueue(b"")
    seen = []

    def handler(body: bytes) -> None:
        seen.append(body)

    assert bench.processor(queue, handler).run(path) == "completed"
    assert seen == [b""]


def test_an_empty_body_where_json_is_wanted_is_dead_with_the_reason(bench, queue):
    path = queue.enqueue(b"")

    def handler(body: dict) -> None:
        raise AssertionError("must not run")

    assert bench.processor(queue, handler).run(path) == "dead"
    assert "cannot be parsed" in queue.status(path).record.failure.message
    assert bench.read(f"orders/dead/{path}") == b""


@pytest.mark.parametrize("name", ["single", "batch.ndjson"])
def test_a_body_that_is_not_utf8_is_dead_with_the_reason_and_its_bytes(bench, queue, name):
    path = queue.enqueue(b"\xff\xfe\x00", name=name)

    def handler(body: str) -> None:
        raise AssertionError("must not run")

    assert bench.processor(queue, handler).run(path) == "dead"
    (letter,) = DeadLetters(queue).list()
    assert "utf-8" in letter.error
    (body,) = [line.body for line in DeadLetters(queue).lines(letter.path)] or [
        bench.read(f"orders/dead/{letter.path}")
    ]
    assert body == b"\xff\xfe\x00"


def test_a_definition_names_the_queues_that_its_handler_sends_to():
    assert define("orders").sends_to == ()
    assert define("orders", sends_to=["emails", "invoices", "emails"]).sends_to == ("emails", "invoices")


@pytest.mark.parametrize(("sends_to", "complaint"), [("emails", "must be a list of queues"), (["E mails"], "E mails")])
def test_a_target_that_is_no_queue_is_refused(sends_to, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        define("orders", sends_to=sends_to)


@pytest.mark.parametrize(
    ("handler", "allowed"), [(lambda body: None, ()), (define("orders", sends_to=["emails"]), ("emails",))]
)
def test_a_workers_queue_stores_the_sends_of_its_definition_and_no_others(bench, handler, allowed):
    queue = bench.queue()

    definition_for(queue, handler)

    assert queue.sends_to == allowed


class Shop:
    """Callable, with an annotated attribute, which says nothing of its `__call__`."""

    person: str = "attribute"

    def __call__(self, person: Person) -> list[Any]:
        return [person]

    def method(self, person: Person, context: Context) -> list[Any]:
        return [person, context]


class AsyncShop:
    async def __call__(self, person: Person, context: Context) -> list[Any]:
        return [person, context]


def with_database(person: Person, db: str) -> list[Any]:
    return [person, db]


def with_all(person: Person, context: Context, db: str) -> list[Any]:
    return [person, context, db]


def after_its_database(db: str, person: Person) -> list[Any]:
    return [person, db]


def with_rest(person: Person, **rest: Any) -> list[Any]:
    return [person, *rest]


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return wrapper


def with_its_database(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(message: Any) -> Any:
        return function(message, "db")

    return wrapper


def without_context(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(message: Any, context: Context) -> Any:
        return [*function(message), context]

    return wrapper


class DecoratedShop:
    @decorated
    def method(self, person: Person) -> list[Any]:
        return [person]

    @decorated
    def __call__(self, person: Person, context: Context) -> list[Any]:
        return [person, context]


@pytest.mark.parametrize(
    ("handler", "takes"),
    [
        (Shop(), [Person]),
        (DecoratedShop(), [Person, Context]),
        (DecoratedShop().method, [Person]),
        (with_its_database(with_database), [Person, str]),
        (decorated(with_its_database(with_database)), [Person, str]),
        (without_context(with_rest), [Person, Context]),
        (Shop().method, [Person, Context]),
        (AsyncShop(), [Person, Context]),
        (functools.partial(with_database, db="db"), [Person, str]),
        (functools.partial(with_all, db="db"), [Person, Context, str]),
        (functools.partial(after_its_database, "db"), [Person, str]),
        (functools.partial(functools.partial(with_all), db="db"), [Person, Context, str]),
        (functools.partial(Shop()), [Person]),
        (with_rest, [Person]),
        (decorated(with_rest), [Person]),
        (decorated(functools.partial(with_all, db="db")), [Person, Context, str]),
        (lambda *args: [*args], [dict]),
    ],
)
def test_whatever_can_be_called_is_a_handler_and_its_first_annotation_counts(bench, queue, handler, takes):
    path = queue.enqueue({"name": "Ada", "address": {"city": "London", "zip": 1}})
    got: list[Any] = []
    definition = define("orders")
    definition.handler(handler)
    definition.on_complete(lambda message, result, context: got.extend(result))
    definition.events.pass_on(queue.events)

    assert Processor(queue=queue, definition=definition).run(path) == "completed"
    assert [type(one) for one in got] == takes
    with pytest.raises(InvalidRequest, match="already has a handler"):
        definition.handler(handler)


def keyword_context(person: Person, *, context: Context) -> None: ...


def three(person: Person, context: Context, more: int) -> None: ...


@pytest.mark.parametrize(
    "handler", [lambda: None, keyword_context, three, functools.partial(three, more=1, person=2), 7]
)
def test_a_handler_that_no_message_could_call_is_refused_where_it_is_written(handler):
    with pytest.raises(InvalidRequest, match="must take one or two parameters, by position"):
        define("orders").handler(handler)


def test_only_the_first_annotation_has_to_exist_at_run_time():
    def context_for_type_checkers(person: dict, context: NotImported) -> None: ...  # noqa: F821

    def payload_for_type_checkers(person: list[NotImported]) -> None: ...  # noqa: F821

    define("orders").handler(context_for_type_checkers)
    with pytest.raises(
        InvalidRequest, match=r"payload_for_type_checkers cannot be evaluated.*'NotImported'.*at run time"
    ):
        define("orders").handler(payload_for_type_checkers)
