"""s3queue.testing.MemoryBucket: the queues of an application under virtual time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from s3queue import Breaker, Context, Flow, InvalidRequest, define
from s3queue.testing import MemoryBucket, Sent, VirtualClock


class Calls(list):
    """When the handler was called, in seconds of the bucket's clock, and for what."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def note(self, what: object) -> None:
        self.append((self._clock.monotonic(), what))


@pytest.fixture
def calls(clock):
    return Calls(clock)


def failing(name: str, calls: Calls, times: int, **settings):
    """A queue whose handler fails so often."""
    queue = define(name, **settings)

    @queue.handler
    def handle(body: dict, context: Context) -> str:
        calls.note(context.attempt)
        if len(calls) <= times:
            raise ConnectionError("the server is down")
        return "done"

    return queue


def test_retries_happen_while_time_passes_each_when_it_is_due(bucket, clock, calls):
    orders = bucket.serve(failing("orders", calls, 2, retry_base=60, max_attempts=3))
    path = orders.enqueue({})
    assert bucket.run() == 1
    assert orders.status(path).state == "waiting"

    clock.advance(3600)

    assert calls == [(0, 1), (60, 2), (180, 3)]
    assert orders.status(path).state == "completed"
    assert clock.now() == datetime(2026, 1, 5, 10, 0, tzinfo=UTC)


def test_what_is_not_due_yet_does_not_run(bucket, clock, calls):
    orders = bucket.serve(failing("orders", calls, 0))
    orders.enqueue({}, delay=3600)

    clock.advance(timedelta(minutes=59))
    assert calls == []
    clock.advance(60)
    assert calls == [(3600, 1)]


def test_a_message_that_dies_is_a_dead_letter(bucket, clock, calls):
    orders = bucket.serve(failing("orders", calls, 9, max_attempts=2))
    path = orders.enqueue({"id": 17})

    clock.advance(3600)

    (letter,) = bucket.dead("orders")
    assert (letter.path, letter.error_type) == (path, "ConnectionError")
    assert bucket.messages("orders") == []


def test_what_is_sent_to_a_queue_that_nobody_serves_lies_there(bucket):
    orders = define("orders", sends_to=["emails"])

    @orders.handler
    def handle(body: dict, context: Context) -> None:
        context.send("emails", {"order": body["id"]}, priority=5, metadata={"kind": "Größe"})

    bucket.serve(orders).enqueue_many([{"id": 1}, {"id": 2}], per_object=1)
    bucket.run()

    assert bucket.messages("emails") == [
        Sent("emails", {"order": number}, priority=5, metadata={"kind": "Größe"}) for number in (1, 2)
    ]


def test_queues_that_send_to_each_other_run_in_one_go(bucket, clock, calls):
    orders = define("orders", sends_to=["emails"])

    @orders.handler
    def handle(body: dict, context: Context) -> None:
        context.send("emails", body, delay=30)

    bucket.serve(orders).enqueue({})
    bucket.serve(failing("emails", calls, 0))
    clock.advance(60)

    assert calls == [(30, 1)]


def test_a_definition_enqueues_to_the_bucket_of_the_test(bucket, calls):
    orders = failing("orders", calls, 0)
    bucket.serve(orders)
    orders.enqueue({}, delay=10)
    other = define("others")
    other.enqueue("hello")

    assert bucket.messages("orders") == [Sent("orders", {}, due_at=datetime(2026, 1, 5, 9, 0, 10, tzinfo=UTC))]
    assert bucket.messages("others") == [Sent("others", "hello")]


def test_a_payload_that_the_handler_could_not_take_is_refused_when_it_is_enqueued(bucket, calls):
    with pytest.raises(InvalidRequest, match="cannot take this payload"):
        bucket.serve(failing("orders", calls, 0)).enqueue("not json")


def test_a_schedule_comes_at_its_instants(bucket, clock, calls):
    reports = failing("reports", calls, 0)
    reports.every("30 9 * * *", body={})
    bucket.serve(reports)

    clock.advance(timedelta(days=3))

    assert [at for at, _ in calls] == [1800, 1800 + 86400, 1800 + 2 * 86400]


def test_a_rate_lets_the_rest_wait(bucket, clock, calls):
    orders = bucket.serve(failing("orders", calls, 0, rate="2/min"))
    for _ in range(4):
        orders.enqueue({})
    assert bucket.run() == 2

    clock.advance(300)

    assert len(calls) == 4


def test_a_breaker_opens_and_one_message_probes(bucket, clock, calls):
    orders = bucket.serve(failing("orders", calls, 2, breaker=Breaker(failures=2, pause=600), max_attempts=5))
    first, second = orders.enqueue({}), orders.enqueue({})
    bucket.run()
    assert [at for at, _ in calls] == [0, 0]

    clock.advance(3600)

    assert all(at >= 600 for at, _ in calls[2:])
    assert {orders.status(path).state for path in (first, second)} == {"completed"}


def test_a_paused_queue_does_not_run(bucket, clock, calls):
    orders = bucket.serve(failing("orders", calls, 0))
    orders.pause()
    orders.enqueue({})
    clock.advance(3600)
    assert calls == []

    orders.resume()
    clock.advance(60)
    assert len(calls) == 1


def test_a_group_runs_in_its_order_and_a_retry_holds_it_up(bucket, clock):
    orders, seen = define("orders", retry_base=10), []

    @orders.handler
    def handle(body: int, context: Context) -> None:
        seen.append((body, context.attempt))
        if (body, context.attempt) == (1, 1):
            raise ConnectionError

    queue = bucket.serve(orders)
    for number in (1, 2):
        queue.enqueue(number, group="customer-42")
    bucket.run()
    assert seen == [(1, 1)]

    clock.advance(60)
    assert seen == [(1, 1), (1, 2), (2, 1)]


def test_the_continuation_of_a_flow_runs_after_its_members(bucket, clock):
    seen = []
    parts, whole = define("parts", flows=True, sends_to=["whole"]), define("whole", flows=True)

    @parts.handler
    def part(body: int) -> int:
        return body * 2

    @whole.handler
    def join(body: dict, context: Context) -> None:
        assert context.flow
        seen.append([one.result for one in context.flow.results])

    bucket.serve(parts)
    bucket.serve(whole)
    flow = Flow(bucket.store)
    for number in (1, 2):
        flow.add("parts", number)
    flow.then("whole", {})
    flow.start()
    clock.advance(60)

    assert seen == [[2, 4]]


def test_a_handler_that_lets_time_pass_runs_nothing_meanwhile(bucket, clock, calls):
    orders = define("orders", visibility_timeout=60, handler_timeout=50)

    @orders.handler
    def slow(body: dict) -> None:
        calls.note("began")
        clock.advance(20)
        calls.note("ended")

    queue = bucket.serve(orders)
    for _ in range(2):
        queue.enqueue({})
    bucket.run()

    assert calls == [(0, "began"), (20, "ended"), (20, "began"), (40, "ended")]


def test_a_handler_that_sends_to_itself_for_ever_is_told(bucket, monkeypatch):
    monkeypatch.setattr("s3queue.testing.bucket.MOST_ATTEMPTS", 20)
    endless = define("endless", sends_to=["endless"])

    @endless.handler
    def again(body: dict, context: Context) -> None:
        context.send("endless", body)

    bucket.serve(endless).enqueue({})
    with pytest.raises(RuntimeError, match="send to its own queue"):
        bucket.run()


def test_what_cannot_be_served_is_refused(bucket, calls):
    bucket.serve(failing("orders", calls, 0))
    heavy = failing("heavy", calls, 0, engine="spark")

    for wrong, said in ((define("nothing"), "no handler"), (heavy, "Spark"), (failing("orders", calls, 0), "another")):
        with pytest.raises(InvalidRequest, match=said):
            bucket.serve(wrong)


def test_messages_of_one_instant_run_in_the_order_of_the_test_the_urgent_ones_first(bucket):
    orders, seen = define("orders"), []
    orders.handler(seen.append)
    queue = bucket.serve(orders)
    for number in range(30):
        queue.enqueue(number, priority=9 if number == 20 else 0)
    bucket.run()

    assert [int(body) for body in seen] == [20, *(number for number in range(30) if number != 20)]


def test_two_buckets_share_nothing(calls):
    one, other = MemoryBucket(), MemoryBucket()
    one.queue("orders").enqueue({})

    assert (len(one.messages("orders")), other.messages("orders")) == (1, [])


def test_time_does_not_run_backwards(clock):
    with pytest.raises(InvalidRequest, match="backwards"):
        clock.advance(-1)
