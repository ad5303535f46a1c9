"""Rates and breakers of queues with partitions, in a function and where messages are collected.  [P9]"""

from __future__ import annotations

import json

import pytest

from s3queue import Breaker, Context, Definition
from s3queue.errors import AccessDenied
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification
from support.payloads import Email

GOOD = {"to": "a@example.com", "subject": "x", "body": "y"}
COLLECTS = {"partitions": 1, "collect": 10, "within": 0}


def _raises(emails: list[Email]) -> None:
    raise ConnectionError("no route")


def _succeeds(emails: list[Email]) -> None: ...


def _run(bench, queue, handler):
    return bench.processor(queue, handler).run("messages/@=0/")


@pytest.mark.parametrize("options", [{"group": "a"}, {}], ids=["group", "share"])
def test_a_function_keeps_the_rate_from_its_first_message_on(bench, options):
    """A new process has asked for nothing before: its limits must not begin with its second message."""
    producer, calls = bench.queue(rate="1/min", partitions=1), []
    paths = [producer.enqueue(json.dumps(number), **options) for number in range(3)]
    definition = Definition("orders", producer.settings)
    definition.handler(calls.append)

    for _ in range(2):
        runner = InvocationRunner(bench.queue(rate="1/min", partitions=1), definition)
        runner.run([Notification(path=paths[0])], lambda: 60.0)

    assert len(calls) == 1


def test_a_call_that_fails_is_one_failure_however_many_messages_it_was_for(bench):
    queue = bench.queue(**COLLECTS, breaker=Breaker(failures=2, pause=30))
    for _ in range(5):
        queue.enqueue(json.dumps(GOOD))

    _run(bench, queue, _raises)

    assert json.loads(bench.read("orders/queue-breaker.json"))["failures"] == 1


def test_a_payload_that_cannot_be_parsed_says_nothing_to_the_breaker(bench):
    """It is the one that probes, its handler is not called, and another message probes in its place."""
    queue = bench.queue(**COLLECTS, breaker=Breaker(failures=1, pause=30), retry_base=100, retry_cap=100)
    queue.enqueue(json.dumps(GOOD), name="fails")
    _run(bench, queue, _raises)
    bench.clock.advance(40)
    queue.enqueue(json.dumps("nonsense"), name="nonsense")

    _run(bench, queue, _succeeds)

    assert json.loads(bench.read("orders/queue-breaker.json"))["state"] == "open"
    assert queue.outcome_of("messages/@=0/nonsense").outcome == "dead"
    queue.enqueue(json.dumps(GOOD), name="probes")
    _run(bench, queue, _succeeds)
    assert queue.outcome_of("messages/@=0/probes").outcome == "completed"
    assert json.loads(bench.read("orders/queue-breaker.json"))["state"] == "closed"


def test_an_outcome_that_cannot_be_written_does_not_take_the_others_along(bench):
    queue = bench.queue(**COLLECTS)
    paths = [queue.enqueue(json.dumps(GOOD), name=f"m{number}") for number in range(3)]

    def sends_much(emails: list[Email], context: Context) -> None:
        context.send("emails", "x" * 100_000)

    def around(operation, key, perform):
        if "/outbox/" in key:
            raise AccessDenied(key)
        return perform()

    bench.around = around
    bench.processor(queue, sends_much, sends_to=["emails"]).run(paths[0])
    bench.around = None

    assert [bool(queue.outcome_of(path)) for path in paths] == [False, True, True]
    assert queue.status(paths[0]).state == "waiting"


def test_a_payload_of_a_group_that_cannot_be_parsed_dies_at_once_and_the_group_goes_on(bench):
    queue, seen = bench.queue(), []

    def handler(email: Email) -> None:
        seen.append(email.to)

    paths = [queue.enqueue(json.dumps(body), group="a") for body in ("nonsense", GOOD)]
    bench.processor(queue, handler).run(paths[0])

    first, second = [queue.outcome_of(path) for path in paths]
    assert (first.outcome, first.failure.type, first.attempt) == ("dead", "Reject", 1)
    assert (second.outcome, seen) == ("completed", ["a@example.com"])


def test_a_probe_that_finds_its_message_gone_lets_the_next_one_probe(bench):
    queue, seen = bench.queue(breaker=Breaker(failures=1, pause=30), max_attempts=2), []

    def fails(body):
        raise ConnectionError("no route")

    bench.processor(queue, fails).run(queue.enqueue(b"0", group="b"))
    paths = [queue.enqueue(json.dumps(number), group="a") for number in (1, 2)]
    bench.clock.advance(40)

    def around(operation, key, perform):
        if operation == "get" and key == f"orders/{paths[0]}":
            bench.around = None
            bench.memory.delete(key)  # since the LIST
        return perform()

    bench.around = around
    bench.processor(queue, seen.append).run(paths[0])
    assert seen == [2]
