"""What an invocation does with its time, in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from s3queue import AccessDenied, Definition, Queue, Retry, Unavailable
from s3queue.worker.invocation import PATIENCE_SECONDS, WRAP_UP_SECONDS, InvocationRunner
from s3queue.worker.notifications import Notification
from support.workbench import Workbench

LIMIT = 60.0


class Invocation:
    """One InvocationRunner, and a clock that says how long it has."""

    def __init__(self, bench: Workbench, handler: Callable[..., Any], launch: Any = None, **settings: Any) -> None:
        self.bench = bench
        self.queue = bench.queue("orders", **settings)
        definition = Definition("orders", self.queue.settings)
        definition.handler(handler)
        self.runner = InvocationRunner(self.queue, definition, launch=launch)

    def on(
        self, *paths: str, late: bool = False, age: float = 0, limit: float = LIMIT, size: int | None = None
    ) -> dict[str, int]:
        """`late`: the sweeper's dispatch; otherwise S3's event, so many seconds old."""
        end = self.bench.clock.monotonic() + limit
        notified_at = None if late else self.bench.clock.now() - timedelta(seconds=age)
        notifications = [Notification(path=path, notified_at=notified_at, size=size) for path in paths]
        return self.runner.run(notifications, lambda: end - self.bench.clock.monotonic())


def test_what_fails_is_retried_here_if_it_is_due_soon(bench: Workbench) -> None:
    starts: list[float] = []

    def fails_once(message: dict[str, Any]) -> None:
        starts.append(bench.clock.monotonic())
        if len(starts) == 1:
            raise ConnectionError("try again")

    invocation = Invocation(bench, fails_once, retry_base=2)
    path = invocation.queue.enqueue({"number": 1})
    assert invocation.on(path) == {"retried": 1, "completed": 1}
    assert 2 <= starts[1] - starts[0] <= 4
    # Nothing is left for the sweeper: neither message nor lease nor reminder.
    assert [key for key in bench.keys("orders/") if not key.startswith("orders/records/")] == []


def test_what_is_due_later_is_left_to_the_sweeper(bench: Workbench) -> None:
    def fails(message: dict[str, Any]) -> None:
        raise Retry(after=PATIENCE_SECONDS + 1)

    invocation = Invocation(bench, fails)
    path = invocation.queue.enqueue({})
    assert invocation.on(path) == {"retried": 1}
    assert bench.clock.sleeps == []
    assert len(bench.keys("orders/retries/")) == 1


def test_nobody_waits_for_a_retry_that_could_not_finish(bench: Workbench) -> None:
    def fails(message: dict[str, Any]) -> None:
        raise Retry(after=5)

    invocation = Invocation(bench, fails, handler_timeout=20)
    path = invocation.queue.enqueue({})
    assert invocation.on(path, limit=20 + WRAP_UP_SECONDS + 4) == {"retried": 1}
    assert bench.clock.sleeps == []


def test_an_invocation_that_has_to_wait_works_meanwhile(bench: Workbench) -> None:
    order: list[int] = []

    def handler(message: dict[str, int]) -> None:
        order.append(message["number"])
        if order == [0]:
            raise ConnectionError("try again")

    invocation = Invocation(bench, handler, retry_base=2)
    first, *_others = [invocation.queue.enqueue({"number": number}) for number in range(4)]
    bench.clock.advance(6)
    assert invocation.on(first) == {"retried": 1, "completed": 4}
    assert order[0] == order[-1] == 0
    assert sorted(order[1:-1]) == [1, 2, 3]


def test_a_late_event_whose_message_was_taken_looks_no_further(bench: Workbench) -> None:
    """In a burst these are most events, and whoever took the message drains the queue."""
    invocation = Invocation(bench, lambda message: None)
    taken, _other = invocation.queue.enqueue({}), invocation.queue.enqueue({})
    bench.clock.advance(6)
    claim = invocation.queue.claim(taken)
    assert claim
    assert invocation.on(taken, age=6) == {"not claimed": 1}
    invocation.queue.complete(claim)
    assert invocation.on(taken, age=6) == {"not claimed": 1}
    assert len(bench.keys("orders/messages/")) == 1


def test_a_drain_that_runs_out_of_time_asks_for_another_function(bench: Workbench) -> None:
    """The events of what it took are still to come, and look no further."""
    invocation = Invocation(bench, lambda message: bench.clock.advance(10), handler_timeout=20)
    first, *others = [invocation.queue.enqueue({}) for _ in range(4)]
    bench.clock.advance(6)
    assert invocation.on(first, age=6, limit=20 + WRAP_UP_SECONDS + 15) == {"completed": 2}
    (reminder,) = bench.keys("orders/retries/")
    assert any(reminder.endswith(path) for path in others)


def test_a_dispatch_whose_message_was_taken_drains_the_queue_nevertheless(bench: Workbench) -> None:
    """The sweeper names a few messages of many."""
    invocation = Invocation(bench, lambda message: None)
    taken, _other = invocation.queue.enqueue({}), invocation.queue.enqueue({})
    bench.clock.advance(6)
    assert invocation.queue.claim(taken)
    assert invocation.on(taken, late=True) == {"not claimed": 1, "completed": 1}


def test_a_drain_leaves_what_has_just_come_to_its_own_event(bench: Workbench) -> None:
    """Or every retry under load would take the messages of others, whose own invocations then claim in vain."""
    invocation = Invocation(bench, lambda message: None)
    old = invocation.queue.enqueue({})
    bench.clock.advance(6)
    first, fresh = invocation.queue.enqueue({}), invocation.queue.enqueue({})
    assert invocation.on(first, late=True) == {"completed": 2}
    assert bench.keys("orders/messages/") == [f"orders/{fresh}"]
    assert old != fresh


def test_a_long_drain_does_not_forget_its_own_retries(bench: Workbench) -> None:
    order: list[int] = []

    def handler(message: dict[str, int]) -> None:
        order.append(message["number"])
        bench.clock.advance(1)
        if order == [0]:
            raise ConnectionError("try again")

    invocation = Invocation(bench, handler, retry_base=2, visibility_timeout=300, handler_timeout=2)
    first, *_others = [invocation.queue.enqueue({"number": number}) for number in range(12)]
    bench.clock.advance(6)
    invocation.on(first, late=True)
    assert order.index(0, 1) <= 5
    assert sorted(order) == [0, *range(12)]


def test_it_stops_while_a_whole_handler_still_fits(bench: Workbench) -> None:
    ends: list[float] = []

    def takes_its_time(message: dict[str, Any]) -> None:
        bench.clock.advance(10)
        ends.append(bench.clock.monotonic())

    invocation = Invocation(bench, takes_its_time, handler_timeout=10, visibility_timeout=30)
    paths = [invocation.queue.enqueue({}) for _ in range(10)]
    start = bench.clock.monotonic()
    assert invocation.on(*paths, limit=45) == {"completed": 4}
    assert ends[-1] - start <= 45 - WRAP_UP_SECONDS
    assert len(bench.keys("orders/messages/")) == 6
    # What is left was never touched: no lease, no attempt.
    assert bench.keys("orders/leases/") == []


def test_a_batch_that_runs_out_of_time_is_continued_by_the_next_invocation(bench: Workbench) -> None:
    seen: list[int] = []

    def handler(message: dict[str, int]) -> None:
        seen.append(message["number"])
        bench.clock.advance(1)

    invocation = Invocation(bench, handler, handler_timeout=5, visibility_timeout=300)
    (path,) = invocation.queue.enqueue_many([{"number": number} for number in range(30)])
    assert invocation.on(path, limit=20) == {"released": 1}
    bench.clock.advance(1)
    assert invocation.on(path, late=True, limit=LIMIT)["completed"] == 1
    assert seen == list(range(30))


@pytest.mark.parametrize("how", ["named", "retried"])
def test_a_pause_during_a_long_handler_stops_the_next_message(bench: Workbench, how: str) -> None:
    """Whether the event named it, or it waits for its own retry."""
    operator = bench.queue("orders")
    ran: list[int] = []

    def long(message: dict[str, Any]) -> None:
        ran.append(message["number"])
        if message["number"] == 1:
            raise Retry(after=2)
        bench.clock.advance(11)
        operator.pause()

    invocation = Invocation(bench, long)
    paths = [invocation.queue.enqueue({"number": number}) for number in ((1, 2) if how == "retried" else (2, 3))]
    invocation.on(*paths)
    assert ran == ([1, 2] if how == "retried" else [2])


def test_a_pause_stops_a_drain_within_ten_seconds(bench: Workbench) -> None:
    def handler(message: dict[str, Any]) -> None:
        bench.clock.advance(4)

    invocation = Invocation(bench, handler, visibility_timeout=300, handler_timeout=5)
    paths = [invocation.queue.enqueue({}) for _ in range(20)]
    operator = bench.queue("orders")

    def pause(fields: Any) -> None:
        if not operator.overrides():
            operator.pause()

    invocation.queue.events.on("message.completed", pause)
    assert invocation.on(paths[0], late=True, limit=600)["completed"] <= 4


@pytest.mark.parametrize("late", [False, True])
def test_a_delayed_message_is_not_run_before_its_time_whoever_rings(bench: Workbench, late: bool) -> None:
    invocation = Invocation(bench, lambda message: None)
    path = invocation.queue.enqueue({}, delay=30)
    assert invocation.on(path, late=late) == {"not claimed": 1}
    assert bench.keys("orders/") == [f"orders/{path}"]
    bench.clock.advance(30)
    assert invocation.on(path, late=late) == {"completed": 1}


class Launches:
    """Launches Spark runs: keeps what it is given, or refuses it."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.launched: list[list[str]] = []
        self.refusal = refusal
        self.time_left: list[float] = []

    def __call__(self, queue: Queue, paths: Sequence[str], time_left: Callable[[], float]) -> None:
        self.time_left.append(time_left())
        if self.refusal:
            raise self.refusal
        self.launched.append(list(paths))


def never(message: Any) -> None:
    raise AssertionError("a heavy message ran in the function")


def test_a_heavy_queue_hands_all_its_messages_over_in_one_go(bench: Workbench) -> None:
    launches = Launches()
    invocation = Invocation(bench, never, launches, engine="spark")
    paths = [invocation.queue.enqueue({}) for _ in range(3)]
    bench.store.take()
    assert invocation.on(*paths, late=True) == {"heavy": 3}
    assert launches.launched == [paths]
    # The launcher claims for itself: not a single request but the look at queue.json was needed to know.
    assert bench.store.take() == {"get": 1}


def test_a_partition_of_a_queue_on_spark_is_handed_over_as_its_messages_are(bench: Workbench) -> None:
    launches = Launches()
    invocation = Invocation(bench, never, launches, engine="spark", partitions=2)
    paths = [invocation.queue.enqueue({}, group="a"), invocation.queue.enqueue({}), "messages/@b/"]
    bench.store.take()
    assert invocation.on(*paths, late=True) == {"heavy": 3}
    assert launches.launched == [paths]
    assert bench.store.take() == {"get": 1}


@pytest.mark.parametrize("late", [False, True])
def test_a_mixed_queue_sends_its_large_messages_to_spark(bench: Workbench, late: bool) -> None:
    ran: list[int] = []

    def handler(message: bytes) -> None:
        ran.append(len(message))

    launches = Launches()
    invocation = Invocation(bench, handler, launches, heavy_above="1 KiB")
    small, large = invocation.queue.enqueue(b"x" * 1024), invocation.queue.enqueue(b"x" * 1025)
    if late:
        bench.clock.advance(6)
        # A drain does not know the sizes, and asks.
        assert invocation.on(small, late=True) == {"completed": 1, "heavy": 1}
    else:
        assert invocation.on(small, size=1024) == {"completed": 1}
        assert invocation.on(large, size=1025) == {"heavy": 1}
    assert (ran, launches.launched) == ([1024], [[large]])
    assert bench.keys("orders/leases/") == []


def test_a_launch_that_is_refused_leaves_the_messages_as_they_were(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    invocation = Invocation(bench, never, Launches(Unavailable("StartJobRun: throttled")), engine="spark")
    path = invocation.queue.enqueue({})
    assert invocation.on(path) == {"heavy": 1}
    assert bench.keys("orders/") == [f"orders/{path}"]
    assert "Spark run not started, heavy messages kept: orders: 1: StartJobRun: throttled" in caplog.text


def test_a_run_is_launched_before_the_queue_is_drained_which_may_take_all_of_the_time(bench: Workbench) -> None:
    def slow(message: bytes) -> None:
        bench.clock.advance(20)

    launches = Launches()
    invocation = Invocation(bench, slow, launches, heavy_above="1 KiB")
    heavy = [invocation.queue.enqueue(b"x" * 2000) for _ in range(2)]
    for _ in range(5):
        invocation.queue.enqueue(b"x")
    bench.clock.advance(6)

    assert invocation.on(heavy[0], late=True) == {"completed": 2, "heavy": 2}

    assert launches.launched == [[heavy[0]], [heavy[1]]]
    assert launches.time_left[0] == LIMIT
    assert launches.time_left[1] < 30


@pytest.mark.parametrize("refusal", [Unavailable("no answer"), ZeroDivisionError("a bug")])
def test_what_was_dispatched_and_not_launched_is_dispatched_again(bench: Workbench, refusal: Exception) -> None:
    def handler(message: bytes) -> None:
        pass

    invocation = Invocation(bench, handler, Launches(refusal), heavy_above="1 KiB")
    heavy = invocation.queue.enqueue(b"x" * 2000)
    claim = invocation.queue.claim(heavy)
    assert claim
    invocation.queue.fail(claim, "once", retry_after=0)
    bench.store.delete(bench.keys("orders/retries/")[0])  # whoever dispatches it does so
    light = invocation.queue.enqueue(b"x")
    bench.clock.advance(6)

    with suppress(ZeroDivisionError):
        invocation.on(heavy, late=True)

    assert len(bench.keys("orders/retries/")) == 1
    assert not invocation.queue.store.head(f"orders/{light}"), "the queue was drained nevertheless"


def test_a_missing_permission_stops_one_message_and_is_told_at_the_end(bench: Workbench) -> None:
    ran: list[int] = []
    invocation = Invocation(bench, lambda message: ran.append(1))
    paths = [invocation.queue.enqueue({}) for _ in range(3)]

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "put" and key.endswith(paths[1]):
            raise AccessDenied(f"PUT {key}: grant s3:PutObject")
        return perform()

    bench.around = refuse
    with pytest.raises(AccessDenied, match="grant s3:PutObject"):
        invocation.on(*paths)
    assert len(ran) == 2


def test_an_outage_is_no_error_of_the_function(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    invocation = Invocation(bench, lambda message: None)
    path = invocation.queue.enqueue({})

    def fail(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        raise Unavailable("503")

    bench.around = fail
    caplog.set_level(logging.WARNING)
    assert invocation.on(path, late=True) == {"not claimed": 1}
    assert "left to the sweeper" in caplog.text


def test_a_bug_below_the_handler_is_told_and_the_others_run(bench: Workbench) -> None:
    invocation = Invocation(bench, lambda message: None)
    paths = [invocation.queue.enqueue({}) for _ in range(2)]

    def break_down(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if key.endswith(paths[0]):
            raise ZeroDivisionError
        return perform()

    bench.around = break_down
    with pytest.raises(ZeroDivisionError):
        invocation.on(*paths)
    assert bench.keys("orders/records/") == [f"orders/records/{paths[1]}"]


def test_an_unhurried_message_costs_three_puts_and_one_get(bench: Workbench) -> None:
    invocation = Invocation(bench, lambda message: None)
    invocation.on(invocation.queue.enqueue({}))
    bench.store.take()
    path = invocation.queue.enqueue({})
    assert invocation.on(path) == {"completed": 1}
    assert bench.store.take() == {"put": 3, "get": 1, "delete": 2}


def test_the_retries_of_one_invocation_are_not_the_next_ones(bench: Workbench) -> None:
    def fails(message: dict[str, Any]) -> None:
        raise Retry(after=timedelta(seconds=5))

    invocation = Invocation(bench, fails, handler_timeout=5)
    first = invocation.queue.enqueue({})
    assert invocation.on(first, limit=10) == {"retried": 1}
    assert invocation.on(limit=LIMIT) == {}
    assert bench.clock.sleeps == []


@pytest.mark.parametrize("override", [b'{"handler_timeout_seconds": 60}', b'{"visibility_timeout_seconds": 2}'])
def test_an_override_that_a_function_cannot_keep_stops_no_queue_and_is_not_applied(
    bench: Workbench, caplog: pytest.LogCaptureFixture, override: bytes
) -> None:
    """Written by hand, or by an older version: `configure` refuses it."""
    invocation = Invocation(bench, lambda message: None)
    path = invocation.queue.enqueue({})
    bench.put("orders/queue.json", override)

    assert invocation.on(path, limit=LIMIT) == {"completed": 1}
    assert invocation.queue.settings == invocation.queue.defined
    assert "orders/queue.json: not applied" in caplog.text
