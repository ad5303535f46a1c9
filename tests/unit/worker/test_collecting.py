"""One call of a handler for many messages, and an outcome for each.  [P9]"""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import timedelta

import pytest

from s3queue import Context, InvalidRequest, LeaseLost, Reject, Retry, Worker, define
from s3queue.flow.partition_states import list_partitions
from s3queue.flow.partitions import hold_partition
from s3queue.worker.collecting import process_together
from support.payloads import Email

OPTIONS = {"partitions": 1, "collect": 10, "within": 0}


class Strict:
    """A model whose own code does what no model should."""

    @classmethod
    def model_validate_json(cls, body: bytes) -> int:
        if body == b"7":
            raise SystemExit("seven")
        return int(body)


def _definition(handler, **options):
    queue = define("orders", **(OPTIONS | {"retry_jitter": False} | options))
    queue.handler(handler)
    return queue


def _run(bench, definition, bodies, **options):
    queue = bench.queue(**(OPTIONS | options))
    paths = [queue.enqueue(json.dumps(body)) for body in bodies]
    bench.processor(queue, definition.function, **({"sends_to": ["emails"]})).run(paths[0])
    return queue, paths


def test_a_handler_of_lists_gets_up_to_so_many_messages_in_one_call(bench):
    calls: list[list[int]] = []

    def handler(numbers: list[int]) -> None:
        calls.append(numbers)

    queue, paths = _run(bench, _definition(handler), range(25))

    assert [len(call) for call in calls] == [10, 10, 5]
    assert sorted(number for call in calls for number in call) == list(range(25))
    assert {queue.outcome_of(path).outcome for path in paths} == {"completed"}


def test_each_message_has_an_outcome_of_its_own(bench):
    def handler(numbers: list[int]) -> list[object]:
        return [Reject("odd") if number % 2 else Retry("later") if number == 4 else number * 10 for number in numbers]

    queue, paths = _run(bench, _definition(handler), range(6))

    outcomes = [queue.outcome_of(path) for path in paths]
    assert [outcome.outcome if outcome else None for outcome in outcomes] == [
        "completed", "dead", "completed", "dead", None, "dead",
    ]  # fmt: skip
    assert [outcome.result for outcome in (outcomes[0], outcomes[2])] == [0, 20]
    assert bench.keys("orders/messages/") == [f"orders/{paths[4]}"]
    assert len(bench.keys("orders/dead/")) == 3


def test_a_call_that_fails_fails_all_of_its_messages(bench):
    def handler(numbers: list[int]) -> None:
        raise ConnectionError("no route")

    queue, paths = _run(bench, _definition(handler), range(3))
    assert len(bench.keys("orders/messages/")) == 3
    bench.clock.advance(100)

    bench.settle(queue, _nothing)
    assert [queue.outcome_of(path).attempt for path in paths] == [2, 2, 2]


def test_a_lock_of_the_handlers_own_that_is_lost_is_a_failure_like_any(bench):
    def handler(numbers: list[int]) -> None:
        raise LeaseLost("a lock of another bucket")

    queue, paths = _run(bench, _definition(handler), range(3))

    (partition,) = list_partitions(queue).partitions
    assert (partition.state, partition.waiting, partition.failure.type) == ("open", 3, "LeaseLost")
    bench.clock.advance(100)

    bench.settle(queue, _nothing)
    assert [queue.outcome_of(path).attempt for path in paths] == [2, 2, 2]


def test_a_call_whose_partition_is_lost_meanwhile_ends_nothing(bench):  # [P2]
    def handler(numbers: list[int], context: Context) -> None:
        bench.clock.advance(100)
        context.extend()

    queue, paths = _run(bench, _definition(handler), range(3))
    assert [queue.outcome_of(path) for path in paths] == [None] * 3
    assert len(bench.keys("orders/messages/")) == 3


def test_a_call_that_another_thread_has_given_up_ends_none_of_its_messages_again(bench):
    @contextmanager
    def given_up(claim, lines):
        yield
        # As `HeartbeatWriter.take_over`: the other thread fails this one and its companions, and those are alive.
        claim.end()
        raise LeaseLost("handler returned after handler_timeout")

    queue = bench.queue(**OPTIONS)
    for number in range(3):
        queue.enqueue(json.dumps(number))
    hold = hold_partition(queue.leases, "@=0")
    claims = [hold.take(), hold.take(), hold.take()]
    processor = bench.processor(queue, _nothing, around_call=given_up)

    assert process_together(processor, claims) == ["lost"] * 3
    assert [claim.is_alive() for claim in claims] == [False, True, True]


def _nothing(numbers: list[int]) -> None: ...


@pytest.mark.parametrize("returned", [[1], {"a": 1}, 7])
def test_a_result_that_fits_no_message_is_a_failure(bench, returned):
    def handler(numbers: list[int]) -> object:
        return returned

    _run(bench, _definition(handler), range(3), max_attempts=2)
    assert len(bench.keys("orders/messages/")) == 3


def test_a_payload_that_cannot_be_parsed_dies_alone(bench):
    def handler(emails: list[Email]) -> None:
        assert len(emails) == 2

    good = {"to": "a@example.com", "subject": "x", "body": "y"}
    queue, paths = _run(bench, _definition(handler), [good, 7, good, [good, good]])
    assert [queue.outcome_of(path).outcome for path in paths] == ["completed", "dead", "completed", "dead"]


@pytest.mark.parametrize("poison", [b"[" * 100_000, b'{"a":' * 100_000, b"{", b"\xff"])
def test_a_payload_that_no_parser_survives_dies_alone_and_its_partition_goes_on(bench, poison):
    calls: list[int] = []

    def handler(rows: list[dict]) -> None:
        calls.append(len(rows))

    queue = bench.queue(**OPTIONS)
    paths = [queue.enqueue(body) for body in (b"{}", poison, b"{}")]
    bench.processor(queue, handler).run(paths[0])

    assert [queue.outcome_of(path).outcome for path in paths] == ["completed", "dead", "completed"]
    assert calls == [2]


def test_a_model_that_ends_its_program_fails_alone(bench):
    calls: list[int] = []

    def handler(numbers: list[Strict]) -> None:
        calls.append(len(numbers))

    queue, paths = _run(bench, _definition(handler), [1, 7, 2], max_attempts=2)
    assert [getattr(queue.outcome_of(path), "outcome", None) for path in paths] == ["completed", None, "completed"]
    assert calls == [2]
    assert bench.keys("orders/messages/") == [f"orders/{paths[1]}"]


def test_what_the_call_sends_goes_with_the_first_that_is_completed(bench):
    def handler(numbers: list[int], context: Context) -> list[object]:
        context.send("emails", {"count": len(numbers)})
        return [Reject("no"), 1, 2]

    _run(bench, _definition(handler), range(3))
    assert len(bench.keys("emails/messages/")) == 1


def test_it_waits_for_more_messages_but_not_longer_than_asked(bench):
    calls: list[int] = []

    def handler(numbers: list[int]) -> None:
        calls.append(len(numbers))

    queue = bench.queue(partitions=1, collect=10, within=2)
    path = queue.enqueue(b"1")
    slept: list[float] = []
    real_sleep = bench.clock.sleep

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        queue.enqueue(b"2")
        real_sleep(seconds)

    bench.clock.sleep = sleep
    bench.processor(queue, handler).run(path)
    assert (calls, slept) == ([2], [2.0])


def test_messages_of_a_group_come_one_at_a_time(bench):
    calls: list[int] = []

    def handler(numbers: list[int]) -> None:
        calls.append(len(numbers))

    queue = bench.queue(**OPTIONS)
    paths = [queue.enqueue(json.dumps(number), group="a") for number in range(3)]
    bench.processor(queue, handler).run(paths[0])
    assert calls == [1, 1, 1]


def test_a_pull_worker_collects_too(bench):
    calls: list[int] = []

    def handler(numbers: list[int]) -> None:
        calls.append(len(numbers))

    queue = bench.queue(concurrency=2, **OPTIONS)
    for number in range(100):
        queue.enqueue(json.dumps(number))
    Worker(queue, _definition(handler, concurrency=2), sweep=False).run_until_empty()
    assert sum(calls) == 100
    assert max(calls) == 10


def test_a_queue_that_collects_needs_a_handler_of_lists():
    with pytest.raises(InvalidRequest, match="list"):
        _definition(lambda body: None)


@pytest.mark.parametrize(
    "options",
    [{"collect": 5}, {"collect": -1, "partitions": 1}, {"collect": 5, "partitions": 1, "max_attempts": 1},
     {"partitions": 1001}, {"partitions": 1, "within": 61}, {"partitions": 2, "heavy_above": 1000},
     {"partitions": 2, "collect": 5, "engine": "spark"}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(InvalidRequest):
        define("orders", **options)


def test_a_call_that_fails_counts_once_for_the_breaker(bench):
    breaker = {"failures": 3, "pause_seconds": 30}

    def handler(numbers: list[int]) -> None:
        raise ConnectionError("no route")

    queue, _ = _run(bench, _definition(handler), range(20), breaker=breaker)

    assert (queue.breaker().document.state, queue.breaker().document.failures) == ("closed", 2)


def test_a_call_that_fails_for_each_of_its_messages_counts_once_for_the_breaker(bench):
    def handler(numbers: list[int]) -> list[object]:
        return [ConnectionError("no route") if number < 10 or number % 2 else number for number in numbers]

    queue, _ = _run(bench, _definition(handler), range(10), breaker={"failures": 3, "pause_seconds": 30})
    assert (queue.breaker().document.state, queue.breaker().document.failures) == ("closed", 1)

    paths = [queue.enqueue(json.dumps(number)) for number in range(10, 20)]
    bench.processor(queue, handler).run(paths[0])
    assert queue.breaker().document.failures == 0, "some of them were completed"


def test_a_message_that_cannot_be_parsed_decides_nothing_for_the_breaker(bench):
    calls: list[list[dict]] = []

    def handler(rows: list[dict]) -> None:
        calls.append(rows)
        raise ConnectionError("no route")

    queue, paths = _run(bench, _definition(handler), [{}, {}], breaker={"failures": 1, "pause_seconds": 30})
    assert queue.breaker().document.state == "open"
    bench.put("orders/messages/@=0/0000", b"not json")
    bench.clock.advance(40)

    bench.processor(queue, handler).run(paths[0])

    assert queue.breaker().document.state == "open"
    assert queue.outcome_of("messages/@=0/0000").outcome == "dead"
    bench.processor(queue, handler).run(paths[0])
    assert [len(call) for call in calls] == [2, 1], "the next one probes"


@pytest.mark.parametrize("reaction", ["returns", "raises"])
def test_a_probe_whose_partition_is_lost_meanwhile_does_not_keep_the_others_waiting(bench, reaction):
    options = {"breaker": {"failures": 1, "pause_seconds": 30}, "visibility_timeout": 3600}

    def fails(numbers: list[int]) -> None:
        raise ConnectionError("no route")

    queue, _ = _run(bench, _definition(fails), [1], **options)
    bench.clock.advance(40)

    def handler(numbers: list[int], context: Context) -> None:
        bench.clock.advance(3601)
        if reaction == "raises":
            context.extend()

    _run(bench, _definition(handler), [2], **(options | {"handler_timeout": 36000}))

    document = queue.breaker().document
    expected = ("closed", timedelta()) if reaction == "returns" else ("open", timedelta())
    assert (document.state, document.lasts) == expected


def test_while_one_process_gathers_the_events_of_others_find_the_partition_held(bench):
    options = OPTIONS | {"within_seconds": 40, "visibility_timeout_seconds": 30}
    queue, others, calls = bench.queue(**options), bench.queue(worker_id="other", **options), []

    def handler(numbers: list[int]) -> None:
        calls.append(len(numbers))

    def storm(seconds: float) -> None:
        bench.clock.advance(seconds)
        bench.clock.sleep = sleep
        for number in range(5):
            path = queue.enqueue(number)
        bench.store.take()
        for _ in range(100):
            assert bench.processor(others, handler).run(path) is None
        counts.append(bench.store.take())

    sleep, counts, path = bench.clock.sleep, [], queue.enqueue(0)
    bench.clock.sleep = storm
    bench.processor(queue, handler).run(path)

    assert counts == [{"get": 100}] or counts == [{"get": 200}], "its lease, and its owner's heartbeat"
    assert calls == [6]
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_what_was_gathered_may_be_gone(bench):
    queue = bench.queue(**(OPTIONS | {"within_seconds": 5}))
    path = queue.enqueue(0)

    def gone(seconds: float) -> None:
        bench.memory.delete(f"orders/{path}")

    bench.clock.sleep = gone

    def handler(numbers: list[int]) -> None:
        raise AssertionError("nothing is there")

    assert bench.processor(queue, handler).run(path) is None
    assert bench.keys("orders/leases/") == []
