"""s3queue.testing.run: one attempt of a handler, as its worker would make it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from aws_lambda_powertools import Logger

from s3queue import Breaker, Context, InvalidRequest, Postpone, Reject, Retry, define
from s3queue.testing import Run, Sent, VirtualClock, run

orders = define("orders", sends_to=["emails"], max_attempts=4, retry_base=10, rate="1/hour")


@dataclass
class Order:
    id: int
    to: str = "ada@example.com"


@orders.handler
def confirm(order: Order, context: Context) -> dict:
    logging.getLogger("shop").info("order %d, attempt %d", order.id, context.attempt)
    context.send("emails", {"to": order.to, "attempt": context.attempt}, delay=60, priority=9)
    if order.id < 0:
        raise ValueError("no such order")
    return {"confirmed": order.id, "by": context.metadata.get("by")}


def test_a_completed_attempt_has_a_result_sends_and_logs():
    done = run(orders, Order(17), metadata={"by": "Ada"})

    assert (done.outcome, done.result, done.error) == ("completed", {"confirmed": 17, "by": "Ada"}, None)
    assert done.sends == [
        Sent(
            "emails", {"to": "ada@example.com", "attempt": 1}, priority=9, due_at=datetime(2026, 1, 5, 9, 1, tzinfo=UTC)
        )
    ]
    assert done.logs == ["order 17, attempt 1"]


def test_a_failed_attempt_is_retried_and_sends_nothing():
    failed = run(orders, {"id": -1})

    assert (failed.outcome, failed.result, failed.sends) == ("retried", None, [])
    assert isinstance(failed.error, ValueError)
    assert failed.retry_after == timedelta(seconds=10)
    assert failed.logs == ["order -1, attempt 1"]


def test_the_attempts_before_have_failed_also_beyond_a_rate():
    assert run(orders, {"id": 1}, attempt=3).sends[0].body["attempt"] == 3
    assert run(orders, {"id": -1}, attempt=3).retry_after == timedelta(seconds=40)
    assert run(orders, {"id": -1}, attempt=4).outcome == "dead"


@pytest.mark.parametrize("attempt", [0, 5])
def test_an_attempt_that_there_cannot_be_is_refused(attempt):
    with pytest.raises(InvalidRequest, match="from 1 to 4"):
        run(orders, {"id": 1}, attempt=attempt)


def test_a_decorated_function_runs_as_its_definition():
    assert run(confirm, {"id": 17}).sends[0].queue == "emails"


def test_a_payload_that_cannot_be_parsed_is_dead_and_the_handler_is_not_called():
    dead = run(orders, {"id": "seventeen"})

    assert dead.outcome == "dead"
    assert isinstance(dead.error, Reject)
    assert "id" in str(dead.error)
    assert dead.logs == []


@pytest.mark.parametrize(
    ("error", "outcome", "after"),
    [
        (Retry(after=30), "retried", 30),
        (Postpone(after=30), "postponed", 30),
        (Reject("never"), "dead", None),
    ],
)
def test_what_a_plain_function_raises_decides(error, outcome, after):
    def refuse(body: dict) -> None:
        raise error

    ended = run(refuse, {})

    assert (ended.outcome, ended.error) == (outcome, error)
    assert ended.retry_after == (timedelta(seconds=after) if after else None)


def test_a_plain_function_may_be_async_and_takes_what_its_annotation_says():
    async def count(body: bytes, context: Context) -> int:
        return len(body)

    assert run(count, b"\x00\x01").result == 2


def test_an_async_handler_runs_also_in_an_async_test(bucket):
    queue = define("counts")

    @queue.handler
    async def count(body: str) -> int:
        logging.getLogger("shop").info("counting")
        return len(body)

    path = bucket.serve(queue).enqueue("four")

    async def test() -> Run:
        assert bucket.run() == 1
        return run(queue, "three")

    ended = asyncio.run(test())
    assert (ended.outcome, ended.result, ended.logs) == ("completed", 5, ["counting"])
    assert bucket.queue("counts").status(path).record.result == 4


def test_a_send_that_the_definition_does_not_name_fails_the_attempt():
    def send(body: dict, context: Context) -> None:
        context.send("invoices", body)

    failed = run(send, {})

    assert failed.outcome == "retried"
    assert "sends_to" in str(failed.error)


def test_a_handler_of_lists_gets_one_call_and_limits_do_not_count():
    queue = define("sums", partitions=2, collect=10, breaker=Breaker(failures=1, pause=60), history=False)

    @queue.handler
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    assert run(queue, [1, 2, 3]).result == 6


def test_the_clock_of_a_test_is_that_of_the_context():
    clock = VirtualClock()

    def slow(body: dict, context: Context) -> list[float]:
        before = context.remaining()
        clock.advance(10)
        return [before.total_seconds(), context.remaining().total_seconds()]

    assert run(slow, {}, clock=clock).result == [30, 20]


def test_hooks_are_told_of_this_attempt_alone():
    queue = define("told", max_attempts=3)
    told: list[int] = []

    @queue.handler
    def fail(body: dict) -> None:
        raise ValueError

    @queue.on_error
    def note(error: BaseException, message: object, context: Context) -> None:
        told.append(context.attempt)

    run(queue, {}, attempt=2)

    assert told == [2]


def test_what_powertools_logs_is_among_the_logs():
    logger = Logger(service="shop")

    def say(body: dict) -> None:
        logger.info("hello")

    assert run(say, {}).logs == ["hello"]


def test_the_level_of_the_root_logger_is_as_before():
    before = logging.getLogger().level, list(logging.getLogger().handlers)
    run(orders, {"id": 1})

    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == before


def test_a_definition_without_a_handler_is_refused():
    with pytest.raises(InvalidRequest, match="no handler"):
        run(define("nothing"), {})
