"""Events: what happened is told, in order, with its fields, and a listener can do no harm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from s3queue import Definition, Events, InvalidRequest, Processor, Worker, define
from s3queue.events import NAMES, publish_to


@pytest.fixture
def queue(bench):
    return bench.queue(max_attempts=2)


@pytest.fixture
def heard(queue):
    told: list[dict[str, Any]] = []
    queue.events.on("*", lambda fields: told.append(dict(fields)))
    return told


def names(heard) -> list[str]:
    return [fields["event"] for fields in heard]


def test_a_happy_life_is_told_step_by_step(bench, queue, heard):
    path = queue.enqueue(b"1", priority=3)
    bench.clock.advance(2)
    bench.processor(queue, lambda body: None).run(path)

    assert names(heard) == ["message.enqueued", "message.claimed", "message.processing", "message.completed"]
    enqueued, claimed, _, completed = heard
    assert enqueued == {"event": "message.enqueued", "queue": "orders", "path": path, "size": 1, "priority": 3}
    assert (claimed["attempt"], claimed["worker"]) == (1, queue.worker_id)
    assert (completed["outcome"], completed["path"]) == ("completed", path)
    assert (completed["claimed_at"] - completed["enqueued_at"]).total_seconds() == 2


def test_a_failure_and_a_death_are_told_with_their_error(bench, queue, heard):
    path = queue.enqueue(b"1")

    def handler(body: int) -> None:
        raise ValueError("no luck")

    processor = bench.processor(queue, handler)
    processor.run(path)
    bench.clock.advance(5)
    processor.run(path, read_first=True)

    retry = next(fields for fields in heard if fields["event"] == "message.retry")
    dead = next(fields for fields in heard if fields["event"] == "message.dead")
    assert (retry["error_type"], retry["error"], retry["attempt"]) == ("ValueError", "no luck", 1)
    assert retry["retry_at"] > retry["at"]
    assert (dead["error_type"], dead["attempt"], dead["outcome"]) == ("ValueError", 2, "dead")


def test_a_lost_claim_and_a_release_are_told(bench, queue, heard):
    path = queue.enqueue(b"1")
    claim = queue.claim(path)
    queue.claim(path)
    queue.release(claim)

    assert names(heard) == ["message.enqueued", "message.claimed", "claim.lost", "message.released"]


def test_a_message_that_cannot_be_named_is_told_as_dead(bench, queue, heard):
    path = "messages/" + "n" * 1000
    bench.memory.put(f"orders/{path}", b"x")
    queue.claim(path)

    assert names(heard) == ["message.dead"]


def test_a_worker_tells_its_start_and_its_stop(bench, queue, heard):
    Worker(queue, lambda body: None, concurrency=2, sweep=False).run_until_empty()

    assert names(heard) == ["workers.started", "workers.stopped"]
    assert heard[0]["concurrency"] == 2
    assert heard[1]["processed"] == 0


def test_a_listener_that_raises_is_logged_and_does_no_harm(bench, queue, caplog):
    def broken(fields: Any) -> None:
        raise RuntimeError("pager is down")

    after: list[Any] = []
    queue.events.on("message.completed", broken)
    queue.events.on("message.completed", after.append)
    path = queue.enqueue(b"1")

    assert bench.processor(queue, lambda body: None).run(path) == "completed"
    assert len(after) == 1
    assert "pager is down" in caplog.text


def test_an_unknown_event_is_refused_with_those_that_there_are(queue):
    with pytest.raises(InvalidRequest, match=r"message\.enqueued"):
        queue.events.on("message.exploded", print)


def test_the_documented_events_all_exist():
    assert {
        "message.enqueued",
        "message.claimed",
        "message.processing",
        "message.completed",
        "message.retry",
        "message.dead",
        "workers.started",
        "workers.stopped",
    } <= set(NAMES)


def test_the_hooks_of_a_definition_hear_its_queue(bench, queue):
    definition = define("orders")
    failed: list[str] = []
    completed: list[str] = []

    @definition.handler
    def handler(body: int) -> None:
        if body == 1:
            raise ValueError("one")

    @definition.on_error
    def note_error(fields: Any) -> None:
        failed.append(fields["error"])

    @definition.on_complete
    def note_completion(fields: Any) -> None:
        completed.append(fields["path"])

    bad, good = queue.enqueue(b"1"), queue.enqueue(b"2")
    Worker(queue, definition, concurrency=1, sweep=False).run_until_empty()

    assert failed == ["one"]
    assert completed == [good]
    assert queue.status(bad).state == "waiting"


def test_two_workers_of_one_definition_tell_it_once(bench, queue):
    definition = Definition("orders", queue.settings)
    definition.handler(lambda body: None)
    told: list[Any] = []
    definition.events.on("message.completed", told.append)
    for _ in range(2):
        Worker(queue, definition, sweep=False)
    path = queue.enqueue(b"1")

    Processor(queue=queue, definition=definition).run(path)

    assert len(told) == 1


class _Bus:
    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        self.entries += Entries
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "x"}]}


@pytest.mark.parametrize(
    ("which", "published"),
    [
        ("off", []),
        ("failures", ["message.retry", "message.dead"]),
        (
            "all",
            [
                "message.enqueued",
                "message.claimed",
                "message.processing",
                "message.retry",
                "message.claimed",
                "message.processing",
                "message.dead",
            ],
        ),
    ],
)
def test_eventbridge_gets_what_the_queue_is_set_to(bench, queue, which, published):
    bus = _Bus()
    queue.events.on("*", publish_to("jobs-bus", bus, which))
    path = queue.enqueue(b"1")

    def handler(body: int) -> None:
        raise ValueError("no")

    processor = bench.processor(queue, handler)
    processor.run(path)
    bench.clock.advance(5)
    processor.run(path, read_first=True)

    assert [entry["DetailType"] for entry in bus.entries] == published
    for entry in bus.entries:
        assert (entry["EventBusName"], entry["Source"]) == ("jobs-bus", "s3queue")
        assert json.loads(entry["Detail"])["path"] == path


class _FullBus(_Bus):
    def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        refused = {"ErrorCode": "ThrottlingException", "ErrorMessage": "Rate exceeded"}
        return {"FailedEntryCount": len(Entries), "Entries": [refused]}


def test_what_eventbridge_refuses_is_logged_and_stops_no_message(caplog):
    events = Events()
    events.on("*", publish_to("jobs-bus", _FullBus(), "failures"))

    events.emit("message.dead", queue="orders", path="messages/x")

    assert "event hook failed, continuing: message.dead" in caplog.text
    assert "ThrottlingException: Rate exceeded" in caplog.text


def test_events_pass_on_to_several_listeners():
    source, first, second = Events(), Events(), Events()
    told: list[str] = []
    first.on("message.dead", lambda fields: told.append("first"))
    second.on("*", lambda fields: told.append("second"))
    for listener in (first, second, first):
        listener.pass_on(source)

    source.emit("message.dead", path="x")

    assert told == ["first", "second"]
