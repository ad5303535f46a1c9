"""The breaker: what it counts, who probes, what operators may do, and what it costs."""

from __future__ import annotations

import json

import pytest

from s3queue import Breaker, InvalidRequest, Postpone, Reject, Retry, define
from s3queue.documents.breaker_document import BreakerDocument
from s3queue.errors import Unavailable
from s3queue.settings import QueueSettings

KEY = "orders/queue-breaker.json"


def _fail(queue, error: Exception | None = None) -> None:
    claim = queue.claim(queue.enqueue(b"{}"))
    assert claim
    queue.fail(claim, error or ConnectionError("down"))


def _succeed(queue) -> None:
    claim = queue.claim(queue.enqueue(b"{}"))
    assert claim
    queue.complete(claim)


def _state(queue) -> str:
    return queue.breaker().document.state


@pytest.mark.parametrize(
    "options",
    [{"failures": 0}, {"failures": True}, {"failures": 1.5}, {"pause": 0}, {"pause": -1}, {"pause": float("nan")},
     {"pause": "soon"}, {"pause": 10**9}, {"on": "ConnectionError"}, {"on": [int]}, {"on": ["a b"]}],
)  # fmt: skip
def test_a_breaker_that_cannot_be_is_refused(options):
    with pytest.raises(InvalidRequest, match="breaker"):
        Breaker(**options)


@pytest.mark.parametrize("value", [5, [], {"failure": 3}, {"failures": 0}, "[]", '{"pause_seconds": 0}'])
def test_a_setting_that_is_no_breaker_is_refused(value):
    with pytest.raises(InvalidRequest):
        define("orders", breaker=value)


def test_a_breaker_is_a_value_that_is_read_back(bench):
    settings = QueueSettings.of(breaker=Breaker(failures=3, pause=5, on=(ConnectionError, "requests.Timeout")))
    described = settings.to_json()
    assert described["breaker"] == {"failures": 3, "pause_seconds": 5.0, "on": ["ConnectionError", "requests.Timeout"]}
    assert QueueSettings().with_overrides(json.loads(json.dumps(described))) == settings
    queue = bench.queue()
    queue.configure(breaker={"failures": 2, "pause_seconds": 9})
    assert json.loads(bench.read("orders/queue.json")) == {"breaker": {"failures": 2, "pause_seconds": 9}}
    assert queue.settings.breaker == Breaker(failures=2, pause=9)
    assert queue.configure(breaker=Breaker(failures=4)).breaker == Breaker(failures=4)
    assert queue.configure(breaker="off").breaker is None


def test_subclasses_count_and_other_errors_do_not():
    breaker = Breaker(on=(ConnectionError, "requests.Timeout"))
    assert breaker.counts(ConnectionRefusedError())
    assert breaker.counts("ConnectionError")
    assert not breaker.counts(ValueError())
    assert not breaker.counts(Reject())
    assert Breaker().counts(Retry())
    assert not Breaker().counts(Reject())


def test_failures_in_a_row_open_it_for_everyone_and_a_success_starts_again(bench):
    seen = []
    queue, other = bench.queue(breaker=Breaker(failures=3)), bench.queue(breaker=Breaker(failures=3), worker_id="other")
    queue.events.on("breaker.opened", seen.append)
    _fail(queue)
    _fail(queue)
    _succeed(queue)
    _fail(queue)
    _fail(other)
    assert (_state(queue), seen) == ("closed", [])
    _fail(queue)

    assert _state(queue) == "open"
    assert [(event["failures"], event["error"]) for event in seen] == [(3, "ConnectionError: down")]
    bench.clock.advance(11)
    path = queue.enqueue(b"{}")
    assert queue.claim(path) is None
    assert other.claim(path) is None
    assert 15 < queue.held_for() < 20


def test_one_message_probes_and_its_success_closes_the_breaker(bench):
    queue, other = (bench.queue(breaker=Breaker(failures=1), worker_id=name) for name in ("one", "two"))
    closed = []
    queue.events.on("breaker.closed", closed.append)
    first, second = queue.enqueue(b"{}"), queue.enqueue(b"{}")
    _succeed(other)
    _fail(queue)
    bench.clock.advance(31)

    probe = queue.claim(first)
    assert probe
    assert _state(queue) == "probing"
    assert queue.claim(second) is None
    assert other.claim(second) is None
    queue.complete(probe)

    assert (_state(queue), len(closed)) == ("closed", 1)
    assert queue.claim(second)
    bench.clock.advance(11)
    assert other.claim(other.enqueue(b"{}"))


def test_a_probe_that_fails_opens_it_for_another_pause(bench):
    queue = bench.queue(breaker=Breaker(failures=1, pause=30))
    _fail(queue)
    bench.clock.advance(31)
    _fail(queue)

    assert _state(queue) == "open"
    assert 29 <= queue.held_for() <= 31


@pytest.mark.parametrize("end", ["release", "postpone", "gone", "lost"])
def test_a_probe_that_decides_nothing_lets_another_message_probe(bench, end):
    queue, other = (bench.queue(breaker=Breaker(failures=1), worker_id=name) for name in ("one", "two"))
    path, second = queue.enqueue(b"{}"), queue.enqueue(b"{}")
    _fail(queue)
    bench.clock.advance(31)
    if end == "lost":
        assert bench.queue(worker_id="rival").claim(path)
    claim = queue.claim("messages/gone" if end == "gone" else path)
    if end in ("gone", "lost"):
        assert claim is None
    elif end == "release":
        queue.release(claim)
    else:
        queue.postpone(claim, 600)
    bench.clock.advance(1)
    assert other.claim(second)


def test_a_worker_that_dies_while_it_probes_is_followed_by_another(bench):
    queue, other = (bench.queue(breaker=Breaker(failures=1), worker_id=name) for name in ("one", "two"))
    first, second = queue.enqueue(b"{}"), queue.enqueue(b"{}")
    _fail(queue)
    bench.clock.advance(31)
    assert queue.claim(first)
    bench.clock.advance(20)
    assert other.claim(second) is None
    bench.clock.advance(20)
    assert other.claim(second)


def test_operators_force_it_open_and_closed_and_leave_it_to_itself(bench):
    queue = bench.queue(breaker=Breaker(failures=1))
    _succeed(queue)
    queue.force_breaker("open")
    bench.clock.advance(3600)
    assert queue.claim(queue.enqueue(b"{}")) is None
    queue.force_breaker("closed")
    bench.clock.advance(10)
    _fail(queue)
    _fail(queue)
    assert queue.breaker().document == BreakerDocument(is_forced=True)
    queue.force_breaker("auto")
    bench.clock.advance(10)
    _fail(queue)
    assert _state(queue) == "open"
    with pytest.raises(InvalidRequest, match="auto"):
        queue.force_breaker("ajar")


def test_the_lines_of_a_batch_count_and_the_rest_waits_without_an_attempt(bench):
    queue = bench.queue(breaker=Breaker(failures=3, pause=30), max_attempts=2)
    seen: list[int] = []
    (path,) = queue.enqueue_many([{"n": number} for number in range(10)])

    def down(body):
        seen.append(body["n"])
        raise ConnectionError("down")

    assert bench.processor(queue, down).run(path) == "postponed"
    assert seen == [0, 1, 2]
    bench.clock.advance(31)
    assert bench.processor(queue, down).run(path, read_first=True) == "postponed"
    assert seen == [0, 1, 2, 3]
    seen.clear()
    bench.settle(queue, lambda body: seen.append(body["n"]))
    assert sorted(seen) == list(range(10))


def test_a_message_that_is_wrong_is_no_failure_of_what_the_handler_calls(bench):
    queue = bench.queue(breaker=Breaker(failures=1))
    _fail(queue, Reject("not an order"))
    assert _state(queue) == "closed"


@pytest.mark.parametrize("garbage", [b"", b"[]", b'{"v":1}', b'{"v":1,"state":"ajar"}'])
def test_garbage_stops_nothing_and_is_written_over(bench, garbage):
    queue = bench.queue(breaker=Breaker(failures=1))
    bench.put(KEY, garbage)
    _fail(queue)
    assert _state(queue) == "open"


def test_a_healthy_queue_pays_one_get_in_ten_seconds_and_one_without_a_breaker_nothing(bench):
    queue = bench.queue(breaker=Breaker())
    _succeed(queue)
    bench.store.take()
    for _ in range(20):
        _succeed(queue)
    assert bench.store.take() == {"put": 60, "get": 20, "delete": 40}
    bench.clock.advance(10)
    _succeed(queue)
    # The message, queue.json, which the producer reads, and queue-breaker.json with it.
    assert bench.store.take() == {"put": 3, "get": 3, "delete": 2}
    _fail(queue)
    # The count is one PUT; a failure is three, and an enqueue one.
    assert bench.store.take() == {"put": 1 + 3 + 1, "get": 1}


def test_a_postponed_message_does_not_count(bench):
    queue = bench.queue(breaker=Breaker(failures=1))

    def later(_body):
        raise Postpone(after=5)

    assert bench.processor(queue, later).run(queue.enqueue(b"{}")) == "postponed"
    assert _state(queue) == "closed"


@pytest.mark.parametrize("every", [1, 10, 60])
def test_a_probe_that_nobody_ended_is_taken_over_however_rarely_one_looks(bench, every):
    options = {"breaker": Breaker(failures=1, pause=5), "visibility_timeout": 10, "handler_timeout": 10}
    queue, other = bench.queue(**options), bench.queue(**options, worker_id="other")
    _fail(queue)
    queue.enqueue(b"{}")
    bench.clock.advance(10)
    assert other.claim_next()  # it probes, and is never heard of again
    assert _state(queue) == "probing"

    for _ in range(600 // every):
        bench.clock.advance(every)
        if queue.claim_next():
            return
    pytest.fail("the expired probe stops the queue for ever")


def test_a_claim_that_fails_gives_its_probe_back(bench):
    queue = bench.queue(breaker=Breaker(failures=1, pause=5), visibility_timeout=3600)
    _fail(queue)
    path = queue.enqueue(b"{}")
    bench.clock.advance(10)
    queue.refresh()

    def around(operation, key, perform):
        if operation == "put" and key.startswith("orders/leases/"):
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    with pytest.raises(Unavailable):
        queue.claim(path)
    bench.around = None

    assert queue.claim(path, read_first=True)
