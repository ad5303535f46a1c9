"""The processor: what becomes of a message, by what its handler does."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from s3queue import (
    Context,
    Postpone,
    Reject,
    Retry,
    Unavailable,
)
from s3queue.protocol.liveness import HeartbeatWriter
from support.payloads import put_batch


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


BAD_DELAYS = {
    "text": lambda: Retry(after="30"),
    "a Decimal": lambda: Retry(after=Decimal(30)),
    "NaN": lambda: Retry(after=float("nan")),
    "no time": lambda: Postpone(after=None),
    "a unit": lambda: Postpone(after="10m"),
    "for ever": lambda: Postpone(after=float("inf")),
}


@pytest.mark.parametrize("partitions", [0, 1])
@pytest.mark.parametrize("ask", BAD_DELAYS.values(), ids=BAD_DELAYS)
def test_a_delay_that_is_none_is_a_failed_attempt_of_its_own_message_alone(bench, ask, partitions):
    queue = bench.queue(partitions=partitions)
    paths = [queue.enqueue(str(number)) for number in range(3)]
    seen: list[int] = []

    def handler(number: int) -> None:
        seen.append(number)
        if number == 1:
            raise ask()

    processor = bench.processor(queue, handler)
    for path in paths:
        processor.run(path)

    assert sorted(seen) == [0, 1, 2]
    found = [queue.status(path) for path in paths]
    assert [one.state for one in found] == ["completed", "waiting", "completed"]
    assert found[1].attempts[0].failure.type in ("TypeError", "ValueError", "OverflowError")


@pytest.mark.parametrize("ask", BAD_DELAYS.values(), ids=BAD_DELAYS)
def test_a_delay_that_is_none_is_a_failure_of_its_own_line_alone(bench, queue, ask):
    def handler(number: int) -> None:
        if number == 2:
            raise ask()

    path = put_batch(bench, [1, 2, 3])

    assert bench.processor(queue, handler).run(path) == "retried"
    lines = queue.status(path).lease.lines
    assert (list(lines.done), list(lines.failed)) == ([1, 3], [2])


def test_a_subclass_of_retry_or_postpone_need_not_call_its_init(bench, queue):
    class Busy(Retry):
        def __init__(self) -> None:
            self.said = "busy"

    class Later(Postpone):
        def __init__(self) -> None:
            self.said = "later"

    def handler(asked: str) -> None:
        raise (Busy if asked == "retry" else Later)

    processor = bench.processor(queue, handler)
    assert processor.run(queue.enqueue("retry")) == "retried"
    assert processor.run(queue.enqueue("postpone")) == "postponed"


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


@pytest.mark.parametrize("fraction", [Decimal("0.5"), Fraction(1, 2), 0.5], ids=["Decimal", "Fraction", "float"])
def test_progress_in_any_kind_of_number_can_be_written(bench, queue, fraction):
    path = queue.enqueue(b"x")
    heartbeat = HeartbeatWriter(queue)

    def handler(body: bytes, context: Context) -> None:
        heartbeat.hold(context.claim)
        context.progress(fraction)
        assert bench.queue().status(path).lease.progress == (0.5, "")
        assert heartbeat.beat({})

    assert bench.processor(queue, handler).run(path) == "completed"


@pytest.mark.parametrize(
    "said",
    [(0.5, b"half"), (0.5, 7), (0.5, None), (None,), ("half",), (1j,), (float("nan"),), (float("inf"),)],
    ids=repr,
)
def test_progress_that_cannot_be_written_is_a_failure_of_its_own_attempt_alone(bench, queue, said):  # [P2]
    path, other = queue.enqueue(b"x"), queue.claim(queue.enqueue(b"y"))
    heartbeat = HeartbeatWriter(queue)
    heartbeat.hold(other)

    def handler(body: bytes, context: Context) -> None:
        heartbeat.hold(context.claim)
        try:
            context.progress(*said)
        finally:
            assert heartbeat.beat({}), "the heartbeat of the other message cannot be written either"

    assert bench.processor(queue, handler).run(path) == "retried"
    assert queue.status(path).lease.failure.type in ("TypeError", "ValueError")


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
