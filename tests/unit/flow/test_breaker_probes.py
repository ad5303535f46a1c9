"""Probes that last longer than they may, decide nothing, or whose breaker is changed or switched off meanwhile."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from s3queue import Breaker, Context, LeaseLost, Postpone, Reject, Unavailable
from s3queue.documents.breaker_document import BreakerDocument
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification
from support.workbench import Workbench

SETTINGS = {"breaker": Breaker(failures=1, pause=5), "visibility_timeout": 30, "handler_timeout": 20}


def _queues(bench: Workbench, *names: str, **settings):
    return [bench.queue(worker_id=name, **(SETTINGS | settings)) for name in names]


def _open(bench: Workbench, queue) -> None:
    queue.fail(queue.claim(queue.enqueue(b"{}")), ConnectionError("down"), dead=True)
    assert queue.breaker().document.state == "open"
    bench.clock.advance(6)


def _state(queue) -> str:
    return queue.breaker().document.state


def _taken_over(bench: Workbench, first, second):
    """The probe of the first worker lasts too long, and the second one probes."""
    _open(bench, first)
    claim = first.claim(first.enqueue(b"{}"), timeout=600)
    assert claim
    bench.clock.advance(33)
    other = second.claim(second.enqueue(b"{}"), timeout=600)
    assert other
    assert _state(first) == "probing"
    return claim, other


def test_a_probe_that_runs_longer_than_it_lasts_still_closes_the_breaker(bench):
    first, second = _queues(bench, "first", "second")
    closed = []
    first.events.on("breaker.closed", closed.append)
    claim, other = _taken_over(bench, first, second)

    first.complete(claim)

    assert (_state(first), len(closed)) == ("closed", 1)
    second.complete(other)
    assert first.breaker().document == BreakerDocument()


def test_handlers_that_are_always_longer_close_it_in_one_process_too(bench):
    (queue,) = _queues(bench, "only")
    first, second = _taken_over(bench, queue, queue)
    bench.clock.advance(33)
    third = queue.claim(queue.enqueue(b"{}"), timeout=600)
    assert third

    queue.complete(first)

    assert _state(queue) == "closed"
    queue.complete(second)
    queue.complete(third)
    assert _state(queue) == "closed"


def test_a_late_success_does_not_count_once_a_later_probe_has_failed(bench):
    first, second = _queues(bench, "first", "second")
    claim, other = _taken_over(bench, first, second)
    second.fail(other, ConnectionError("still down"))
    assert _state(first) == "open"

    first.complete(claim)
    assert _state(first) == "open"


def test_a_late_success_does_not_count_for_a_probe_after_a_later_failure(bench):
    first, second = _queues(bench, "first", "second")
    claim, other = _taken_over(bench, first, second)
    second.fail(other, ConnectionError("still down"), retry_after=900)
    bench.clock.advance(6)
    assert second.claim(second.enqueue(b"{}"))
    assert _state(first) == "probing"

    first.complete(claim)
    assert _state(first) == "probing"


def test_a_failure_of_a_probe_counts_after_another_one_has_closed_the_breaker(bench):
    first, second = _queues(bench, "first", "second")
    claim, other = _taken_over(bench, first, second)
    second.complete(other)

    first.fail(claim, ConnectionError("down"))
    assert _state(first) == "open"


def test_a_probe_that_is_given_back_late_does_not_end_the_one_that_followed(bench):
    first, second = _queues(bench, "first", "second")
    claim, _ = _taken_over(bench, first, second)
    first.refresh()
    first.release(claim)

    assert _state(first) == "probing"


def _cancelled(queue, path):
    def handler(body: bytes, context: Context) -> None:
        queue.cancel(path)
        context.check()

    return handler


@pytest.mark.parametrize("what", ["not parsed", "empty batch", "no line parsed", "too large", "cancelled", "postponed"])
def test_a_message_that_says_nothing_leaves_the_probe_to_another_one_at_once(bench, what):
    queue, other = _queues(bench, "one", "two", max_batch_size=100)
    name, body = {
        "not parsed": ("m", b"no json"),
        "empty batch": ("m.ndjson", b"\n\n"),
        "no line parsed": ("m.ndjson", b"no json\nnone\n"),
        "too large": ("m.ndjson", b'{"a": 1}\n' * 100),
    }.get(what, ("m", b"{}"))
    path = f"messages/{name}"
    bench.put(f"orders/{path}", body)
    _open(bench, queue)

    def handler(body: dict) -> None:
        if what == "postponed":
            raise Postpone(after=60)

    processor = bench.processor(queue, _cancelled(bench.queue(), path) if what == "cancelled" else handler)
    assert processor.run(path)

    assert _state(queue) == "open"
    bench.clock.advance(1)
    probe = other.claim(other.enqueue(b"{}"))
    assert probe
    assert _state(queue) == "probing"
    other.complete(probe)
    assert _state(queue) == "closed"


def _unanswered(*parts: str):
    """PUTs of these keys have no answer, and do not get through."""

    def around(operation, key, perform):
        if operation == "put" and any(part in key for part in parts):
            raise Unavailable("no answer")
        return perform()

    return around


def _silent(part: str):
    """No request for these keys gets through."""

    def around(operation, key, perform):
        if part in key:
            raise Unavailable("no answer")
        return perform()

    return around


def _says(what: str):
    def handler(body: bytes) -> None:
        if what == "failed":
            raise ConnectionError("still down")
        if what == "postponed":
            raise Postpone(after=60)

    return handler


@pytest.mark.parametrize(("what", "state"), [("well", "closed"), ("failed", "open"), ("postponed", "open")])
def test_a_probe_whose_outcome_cannot_be_written_decides_nevertheless(bench, what, state):
    queue, other = _queues(bench, "one", "two", visibility_timeout=3600)
    path = queue.enqueue(b"{}")
    _open(bench, queue)
    claim = queue.claim(path)
    bench.around = _unanswered("/records/", "/leases/")
    assert bench.processor(queue, _says(what)).process(claim) == "lost"
    bench.around = None

    assert _state(queue) == state
    bench.clock.advance(1)
    claim = other.claim(other.enqueue(b"{}"))
    assert (claim is not None) == (what != "failed"), "after a failure there is another pause"


def test_a_probe_that_was_lost_does_not_end_the_next_one_of_the_same_message(bench):
    """It was asleep until its message was claimed again, by another thread of its process, and probes once more."""
    (queue,) = _queues(bench, "one", max_attempts=9)
    path = queue.enqueue(b"{}")
    _open(bench, queue)
    first = queue.claim(path)
    assert first
    bench.clock.advance(40)
    bench.sweeper(queue).sweep()
    bench.clock.advance(40)
    second = queue.claim(path, read_first=True)
    assert second
    assert _state(queue) == "probing"

    assert bench.processor(queue, _says("well"), around_call=_given_up).process(first) == "lost"

    assert _state(queue) == "probing"
    queue.complete(second)
    assert _state(queue) == "closed"


@contextmanager
def _given_up(claim, lines):
    yield
    claim.end()
    raise LeaseLost("given up")


def test_a_worker_that_stops_gives_its_probe_back_although_its_message_cannot_be_given_back(bench):
    queue, other = _queues(bench, "one", "two", visibility_timeout=3600)
    _open(bench, queue)
    claim = queue.claim(queue.enqueue(b"{}"))
    bench.around = _silent("/leases/")
    with pytest.raises(Unavailable):
        queue.release(claim)
    bench.around = None

    bench.clock.advance(1)
    assert other.claim(other.enqueue(b"{}"))


def _failed_claim(bench: Workbench, queue, around) -> None:
    path = queue.enqueue(b"{}")
    bench.around = around
    with pytest.raises(Unavailable):
        queue.claim(path)
    bench.around = None


def test_a_probe_that_cannot_be_given_back_is_used_by_the_next_claim(bench):
    (queue,) = _queues(bench, "one", visibility_timeout=3600)
    _open(bench, queue)
    taken = []

    def around(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            taken.append(key)
        if operation == "put" and taken:
            raise Unavailable("no answer")
        return perform()

    _failed_claim(bench, queue, around)
    assert _state(queue) == "probing"

    claim = queue.claim(queue.enqueue(b"{}"))
    assert claim
    queue.complete(claim)
    assert _state(queue) == "closed"


def test_a_probe_that_was_given_back_by_a_write_without_an_answer_is_not_used_again(bench):
    queue, other = _queues(bench, "one", "two", visibility_timeout=3600)
    _open(bench, queue)
    taken, given = [], []

    def around(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            taken.append(key)
            raise Unavailable("no answer")
        if taken and "breaker" in key:
            if operation == "put" and not given:
                given.append(perform())
            raise Unavailable("no answer")
        return perform()

    _failed_claim(bench, queue, around)
    assert given
    assert _state(queue) == "open"
    bench.clock.advance(1)
    assert other.claim(other.enqueue(b"{}"))

    bench.around = _silent("breaker")
    assert queue.claim(queue.enqueue(b"{}")) is None, "nobody knows yet whose the probe is"
    bench.around = None
    assert queue.claim(queue.enqueue(b"{}")) is None


def test_a_probe_without_a_token_is_another_workers_at_once(bench):
    queue, other = _queues(bench, "one", "two", visibility_timeout=3600)
    _open(bench, queue)
    limited = queue.settings.with_overrides({"rate": "1/hour"})
    queue.settings = limited
    path = queue.enqueue(b"{}")
    bench.put("orders/limits/queue.json", b"no limit")

    assert queue.claim(path) is None

    bench.clock.advance(1)
    assert other.claim(path)


def test_a_message_that_cannot_be_parsed_does_not_end_failures_in_a_row(bench):
    (queue,) = _queues(bench, "one", breaker=Breaker(failures=2))
    queue.fail(queue.claim(queue.enqueue(b"{}")), ConnectionError("down"))
    bench.processor(queue, lambda body: None).run(queue.enqueue(b"no json"))
    assert queue.breaker().document.failures == 1


def test_a_handler_that_rejects_its_message_was_called_and_closes_it(bench):
    (queue,) = _queues(bench, "one")
    _open(bench, queue)

    def handler(body: bytes) -> None:
        raise Reject("no such customer, says what is back again")

    assert bench.processor(queue, handler).run(queue.enqueue(b"{}")) == "dead"
    assert _state(queue) == "closed"


def _run(bench: Workbench, queue, paths, limit: float = 120.0) -> dict[str, int]:
    definition = bench.processor(queue, lambda body: None).definition
    end = bench.clock.monotonic() + limit
    notifications = [Notification(path=path) for path in paths]
    return InvocationRunner(queue, definition).run(notifications, lambda: end - bench.clock.monotonic())


def test_a_function_ends_at_once_when_an_operator_holds_the_breaker_open(bench):
    (queue,) = _queues(bench, "function", visibility_timeout=900)
    paths = [bench.queue().enqueue(b"{}") for _ in range(3)]
    waiting = bench.queue().enqueue(b"{}", name="waits")
    bench.queue().fail(bench.queue().claim(waiting), "once", retry_after=0)
    for key in bench.keys("orders/retries/"):
        bench.memory.delete(key)
    queue.force_breaker("open")
    bench.clock.advance(20)
    before = bench.clock.monotonic()

    assert _run(bench, queue, [paths[0], waiting]) == {"held back": 2}

    assert bench.clock.monotonic() - before < 1
    # Both will be handed over again within two minutes.
    reminded = {path for key in bench.keys("orders/retries/") for _, path in [queue.keys.reminded(key)]}
    assert waiting in reminded
    queue.force_breaker("auto")
    dispatched: list[str] = []
    bench.clock.advance(61)
    bench.sweeper(bench.queue(worker_id="sweeper", **SETTINGS), dispatched).sweep()
    assert waiting in dispatched


def test_a_function_does_not_sleep_for_its_own_retry_when_an_operator_holds_the_breaker_open(bench):
    (queue,) = _queues(bench, "function", retry_base=8, max_attempts=5)
    path = bench.queue().enqueue(b"{}")

    def handler(body: dict) -> None:
        bench.queue(**SETTINGS).force_breaker("open")
        bench.clock.advance(11)  # by now it is known here, too
        raise ValueError("it is down")

    definition = bench.processor(queue, handler).definition
    before = bench.clock.monotonic()
    InvocationRunner(queue, definition).run([Notification(path=path)], lambda: 120.0)

    assert bench.clock.monotonic() - before < 12
    assert [queue.keys.reminded(key)[1] for key in bench.keys("orders/retries/")] == [path]


def test_a_function_does_not_sleep_through_the_probe_of_another_worker(bench):
    queue, other = _queues(bench, "function", "other", handler_timeout=300)
    paths = [bench.queue().enqueue(b"{}") for _ in range(30)]
    _open(bench, queue)
    bench.clock.advance(10)
    assert other.claim(paths[0])
    before = bench.clock.monotonic()

    assert "completed" not in _run(bench, queue, paths[1:2], limit=600)

    assert bench.clock.monotonic() - before <= 11


def test_the_lines_of_a_batch_do_not_wait_through_the_probe_of_another_worker(bench):
    queue, other = _queues(bench, "batch", "other", handler_timeout=300, visibility_timeout=300)
    (path,) = queue.enqueue_many([{"n": number} for number in range(3)])
    second = queue.enqueue(b"{}")
    began: list[float] = []

    def handler(body: dict) -> None:
        began.append(bench.clock.monotonic())
        if len(began) == 1:
            _open(bench, other)
            bench.clock.advance(10)
            assert other.claim(second)

    assert bench.processor(queue, handler).run(path) == "postponed"
    assert bench.clock.monotonic() - began[0] < 25


@pytest.mark.parametrize("changes", [{"breaker": "off"}, {"rate": "off"}, {"breaker": "off", "rate": "off"}])
def test_limits_may_be_switched_off_at_any_request(bench, changes):
    """Someone else's thread reads queue.json between any two steps of a claim and its end."""
    settings = SETTINGS | {"rate": "100/min"}
    for step in range(40):
        queue = bench.queue(f"orders{step}", **settings)
        steps = []

        def around(operation, key, perform, queue=queue, steps=steps, step=step):
            steps.append(key)
            if len(steps) == step:
                queue.settings = queue.settings.with_overrides(changes)
            return perform()

        path = bench.queue(f"orders{step}").enqueue(b"{}")
        failing = bench.queue(f"orders{step}", worker_id="failing", **SETTINGS)
        failing.fail(failing.claim(failing.enqueue(b"{}")), ConnectionError("down"), dead=True)
        bench.clock.advance(6)
        bench.around = around
        claim = queue.claim(path)
        assert claim
        if step % 2:
            queue.complete(claim)
        else:
            queue.fail(claim, ConnectionError("down"))
        bench.around = None


def test_limits_are_switched_on_and_off_while_threads_work(bench):
    queue = bench.queue(**SETTINGS)
    limited = queue.settings.with_overrides({"rate": "1000000/s"})
    errors: list[BaseException] = []
    is_over = threading.Event()

    def work() -> None:
        try:
            while not is_over.is_set():
                claim = queue.claim(queue.enqueue(b"{}"))
                if claim:
                    queue.may_call(claim.path)
                    queue.complete(claim)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3000):
        queue.settings = queue.settings.with_overrides({"breaker": "off", "rate": "off"})
        queue.settings = limited
    is_over.set()
    for thread in threads:
        thread.join()
    assert errors == []
