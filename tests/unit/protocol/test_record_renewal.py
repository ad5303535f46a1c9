"""A message that cannot be finished keeps its outcome, however long that takes: records are deleted by their age."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from s3queue.documents.record import Record
from s3queue.documents.sends import MOST_PARTS, Send
from s3queue.errors import AccessDenied, CorruptState, NotSent, QueueError, Unavailable
from s3queue.flow.flows import Flow
from s3queue.protocol.outbox import stage

HOUR = 3600


@contextmanager
def refused(bench, *prefixes: str, operation: str = "put") -> Iterator[None]:
    def around(asked: str, key: str, perform: Callable[[], Any]) -> Any:
        if asked == operation and key.startswith(prefixes):
            raise AccessDenied(f"403 {key}")
        return perform()

    bench.around = around
    yield
    bench.around = None


def completed(bench, queue, *sends: Send) -> str:
    """A message whose completion is recorded, as far as its sends can be stored."""
    path = queue.enqueue({})
    with pytest.raises(QueueError):
        queue.complete(queue.claim(path), "done", sends=sends)
    return path


def let_pass(bench, queue, days: int, *also: Any) -> None:
    """Sweeps, and what the bucket's lifecycle deletes."""
    sweeper = bench.sweeper(queue)
    for _ in range(days * 3):
        bench.clock.advance(8 * HOUR)
        sweeper.sweep()
        for one in (queue, *also):
            one.cleanup()


def send(bench, queue: str, **options: Any) -> Send:
    return Send.of(queue, {"n": 1}, now=bench.clock.now(), **options)


def test_an_outcome_outlives_its_retention_while_a_send_is_refused(bench):
    """[P3] [P7]"""
    queue = bench.queue()
    with refused(bench, "emails/"):
        path = completed(bench, queue, send(bench, "emails"))
        let_pass(bench, queue, days=12)

        assert queue.status(path).record.result == "done"
        assert bench.keys("orders/dead/") == []

    let_pass(bench, queue, days=1)
    assert len(bench.keys("emails/messages/")) == 1
    assert bench.keys("orders/messages/") == []
    assert queue.status(path).record.outcome == "completed"


def test_an_outcome_outlives_its_retention_while_its_payload_cannot_be_kept(bench):
    """[P3]"""
    queue = bench.queue(keep_payload=True)
    with refused(bench, "orders/done/", operation="copy"):
        path = completed(bench, queue)
        let_pass(bench, queue, days=12)

        assert queue.status(path).record.result == "done"
        assert bench.keys("orders/messages/") == [f"orders/{path}"]

    let_pass(bench, queue, days=1)
    assert bench.keys("orders/messages/") == []
    assert bench.keys("orders/done/") == [f"orders/done/{path}"]


def end_member(queue, path: str, outcome: str) -> None:
    """By its worker, or by an operator; after an attempt that has failed."""
    if outcome == "cancelled":
        queue.cancel(path)
    claim = queue.claim(path, read_first=True)
    assert claim is not None
    if outcome == "completed":
        queue.complete(claim, "done")
    else:
        queue.fail(claim, ValueError("broken"), dead=True)


@pytest.mark.parametrize("outcome", ["completed", "dead", "cancelled"])
@pytest.mark.parametrize("why", [AccessDenied, Unavailable])
def test_the_outcome_of_a_member_outlives_its_retention_while_its_flow_cannot_be_told(bench, outcome, why):
    """[P3] [P8]"""
    queue = bench.queue(max_attempts=2)
    flow = Flow(queue, id="f", on_dead="continue")
    flow.add("orders", {})
    flow.start()
    path = "messages/flow-f-0000"
    queue.fail(queue.claim(path), "once")
    bench.clock.advance(60)

    def around(asked: str, key: str, perform: Callable[[], Any]) -> Any:
        if asked == "put" and key.startswith("flows/"):
            raise why(f"PUT {key}")
        return perform()

    bench.around = around
    with pytest.raises(QueueError):
        end_member(queue, path, outcome)
    let_pass(bench, queue, days=12)

    record = queue.status(path).record
    assert record.outcome == outcome
    assert (record.failure.type if record.failure else "") == ("ValueError" if outcome == "dead" else "")
    assert bench.keys("orders/messages/") == [f"orders/{path}"]
    assert bench.keys("flows/f/done/") == []

    bench.around = None
    let_pass(bench, queue, days=1)
    (done,) = bench.keys("flows/f/done/")
    assert json.loads(bench.read(done))["outcome"] == outcome
    assert flow.state().state == "completed"
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_telling_a_flow_renews_no_record(bench):
    """What can be told costs nothing more."""
    queue = bench.queue()
    flow = Flow(queue, id="f")
    flow.add("orders", {})
    flow.start()
    claim = queue.claim("messages/flow-f-0000")
    bench.store.take()

    queue.complete(claim)

    records = [operation for operation, key in bench.store.log if key.startswith("orders/records/")]
    assert records == ["put"]


def test_a_record_that_is_not_needed_any_more_expires(bench):
    queue = bench.queue()
    path = queue.enqueue({})
    queue.complete(queue.claim(path))

    let_pass(bench, queue, days=6)

    assert bench.keys("orders/records/") == []


@pytest.mark.parametrize("large", [False, True], ids=["inline", "staged"])
def test_what_is_stored_is_not_stored_again_because_another_send_is_refused(bench, large):
    """[P7] The record of its own message expires, and nobody could tell that it has run."""
    queue, emails = bench.queue(), bench.queue(name="emails")
    body = b"x" * (70_000 if large else 10)
    sends = [Send.of(name, body, now=bench.clock.now()) for name in ("audit", "emails", "emails")]
    with refused(bench, "audit/"):
        completed(bench, queue, *sends)
        claims = emails.claim_next(5)
        assert len(claims) == 2
        for claim in claims:
            emails.complete(claim)

        let_pass(bench, queue, 12, emails)

        assert bench.keys("emails/") == []
    let_pass(bench, queue, 1, emails)
    assert len(bench.keys("audit/messages/")) == 1
    assert bench.keys("emails/messages/") == bench.keys("orders/messages/") == bench.keys("orders/outbox/") == []


def test_what_two_processes_have_stored_is_noted_together(bench):
    queue, other = bench.queue(), bench.queue()
    sends = [send(bench, name) for name in ("a", "b", "c")]
    path = queue.enqueue({})
    claim = queue.claim(path)
    with refused(bench, "b/", "c/"), pytest.raises(NotSent):
        queue.complete(claim, sends=sends)
    record = Record.from_bytes(bench.read(f"orders/records/{path}"), "")
    assert record.stored.objects == {0}

    with refused(bench, "a/", "c/"), pytest.raises(NotSent):
        other.perform(record)

    assert Record.from_bytes(bench.read(f"orders/records/{path}"), "").stored.objects == {0, 1}


def test_one_records_sends_do_not_use_up_a_sweep(bench):
    """[P6] They are stored over several sweeps, each of which has time for the other messages."""
    queue = bench.queue()
    path = queue.enqueue({})
    claim = queue.claim(path)
    sends = [send(bench, "emails", delay=number) for number in range(1, 201)]

    def around(asked: str, key: str, perform: Callable[[], Any]) -> Any:
        if asked == "put" and key.startswith("emails/"):
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    with pytest.raises(Unavailable):
        queue.complete(claim, sends=sends)
    bench.around = None

    sweeper = bench.sweeper(queue)
    stored = [0]
    while bench.keys("orders/messages/"):
        bench.clock.advance(60)
        report = sweeper.sweep(requests=60)
        assert report.budget.spent <= 90
        stored.append(len(bench.keys("emails/delayed/")))
        assert stored[-1] > stored[-2] or stored[-1] == 200
        assert len(stored) < 30
    assert stored[-1] == 200
    assert len(stored) > 4


def test_very_many_staged_parts_do_not_use_up_a_sweep_either(bench):
    queue = bench.queue()
    path = queue.enqueue({})
    claim = queue.claim(path)
    claim.lines.outbox = [stage(queue, [send(bench, "emails")]) for _ in range(50)]
    with refused(bench, "emails/"), pytest.raises(NotSent):
        queue.complete(claim)

    sweeper, sweeps = bench.sweeper(queue), 0
    while bench.keys("orders/messages/"):
        bench.clock.advance(60)
        assert sweeper.sweep(requests=60).budget.spent <= 90
        sweeps += 1
    assert len(bench.keys("emails/messages/")) == 50
    assert 2 < sweeps < 30
    assert bench.keys("orders/outbox/") == []


@pytest.mark.parametrize(
    "forged",
    [
        {"outbox": ["a/b"]},
        {"outbox": [""]},
        {"outbox": [f"{n}" for n in range(MOST_PARTS + 1)]},
        {"stored": {"part": 0, "objects": [-1]}},
        {"stored": {"part": 10**9, "objects": []}},
        {"stored": {"part": 0, "objects": list(range(1001))}},
        {"stored": {"part": 0}},
        {"stored": [1]},
    ],
)
def test_a_record_that_nobody_here_can_have_written_is_refused(bench, forged):
    queue = bench.queue()
    path = queue.enqueue({})
    queue.complete(queue.claim(path))
    document = json.loads(bench.read(f"orders/records/{path}"))

    with pytest.raises(CorruptState):
        Record.from_bytes(json.dumps(document | forged).encode(), "orders/records/x")


def test_a_part_that_a_record_names_twice_counts_once(bench):
    queue = bench.queue()
    path = queue.enqueue({})
    queue.complete(queue.claim(path))
    document = json.loads(bench.read(f"orders/records/{path}")) | {"outbox": ["a", "b", "a"]}

    assert Record.from_bytes(json.dumps(document).encode(), "").outbox == ("a", "b")


def test_a_batch_cannot_send_more_parts_than_its_record_can_name(bench):
    queue = bench.queue()
    (path,) = queue.enqueue_many([{"n": 1}])

    def handler(body: dict, context: Any) -> None:
        context.claim.lines.outbox = [f"{n}" for n in range(MOST_PARTS)]
        context.send("emails", body)

    bench.processor(queue, handler, sends_to=["emails"]).run(path)

    assert "use smaller batches" in queue.status(path).lease.failure.message
