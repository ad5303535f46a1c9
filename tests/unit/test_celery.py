"""Celery's transport and result backend on a bucket in memory: what they ask of it, and what they refuse."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from queue import Empty
from typing import Any
from uuid import UUID

import celery
import pytest
from celery import Celery, chord, group
from celery.app.task import Context
from kombu import Connection
from kombu.exceptions import EncodeError, OperationalError

import s3queue.contrib.celery
from s3queue import DeadLetters, InvalidRequest, Queue
from s3queue.connect import lend_memory
from s3queue.contrib.celery import address
from s3queue.contrib.celery.address import Address
from s3queue.contrib.celery.intake import Intake
from s3queue.contrib.celery.naming import tail_of_task
from s3queue.contrib.celery.transport import Channel
from s3queue.documents.record import Failure
from s3queue.errors import InvalidName, QueueError, Unavailable
from s3queue.paths import due_of
from s3queue.worker.sweep_turns import SweepTurns
from support.killed_store import Killed
from support.workbench import Workbench

_numbers = count()


def intake_of(queue: Queue, slowest: float = 5.0) -> Intake:
    """Without its threads: a test lets time pass itself."""
    return Intake(queue, poll_interval=1.0, slowest=slowest, changed=lambda: None)


@pytest.fixture
def app(bench: Workbench) -> Iterator[Celery]:
    # kombu keeps connections by their URL, for the whole process: each test has its own.
    bench.memory.url = f"memory://unit-{next(_numbers)}"
    url = f"{bench.memory.url.replace('memory', 's3queue', 1)}?store=memory"
    with lend_memory(bench.memory):
        made = Celery("unit", broker=url, backend=url, set_as_current=False)

        @made.task(name="add", shared=False)
        def add(a: int, b: int) -> int:
            return a + b

        @made.task(name="total", shared=False)
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        yield made
        made.close()


def parts_of(bench: Workbench) -> list[Context]:
    """What the result backend is told of the chord's parts that were sent. Their messages are deleted."""
    parts = []
    for key in bench.keys("celery/messages/"):
        payload = json.loads(bench.read(key))
        headers, (_, _, embedded) = payload["headers"], json.loads(payload["body"])
        parts.append(Context(id=headers["id"], group=headers["group"], chord=embedded["chord"]))
        bench.memory.delete(key)
    return parts


def end(app: Celery, part: Context) -> None:
    app.backend.on_chord_part_return(part, "SUCCESS", 2)


@pytest.fixture
def errors(bench: Workbench, app: Celery) -> list[str]:
    """What the task `report`, an errback, was called with."""
    called: list[str] = []

    @app.task(name="report", shared=False)
    def report(request: Any, error: Exception, traceback: Any) -> None:
        called.append(str(error))

    app.backend._clock = bench.clock
    return called


@pytest.fixture
def failed(bench: Workbench, app: Celery, errors: list[str]) -> tuple[Any, list[Context]]:
    """A chord that fails, all of whose parts have ended and none has seen that: its result, and the parts."""
    body = app.tasks["total"].s().on_error(app.tasks["report"].s())
    result = chord([app.tasks["add"].s(n, n) for n in range(3)], body)()
    parts = parts_of(bench)
    for part in parts[1:]:
        app.backend.store_result(part.id, 2, "SUCCESS")
        bench.memory.put(f"celery/results/chord-{part.group}/{part.id}", b"")
    app.backend.store_result(parts[0].id, ValueError("no"), "FAILURE")
    return result, parts


# Addresses


def test_an_address_names_a_bucket_and_how_to_reach_it():
    found = Address.parse("s3queue://jobs?region=eu-central-1&endpoint_url=http://localhost:9000&store=direct")
    assert (found.url, found.region, found.endpoint_url) == ("s3://jobs", "eu-central-1", "http://localhost:9000")
    assert (found.store, found.results_of) == ("direct", "celery")
    assert Address.parse("s3queue://jobs/reports").results_of == "reports"
    own = Address.parse("s3queue://key:secret@minio:9000/jobs/reports")
    assert (own.url, own.results_of) == ("s3://key:secret@minio:9000/jobs", "reports")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3queue://", "names no bucket"),
        ("s3queue:///", "names no bucket"),
        ("s3queue://key:secret@minio:9000", "names no bucket"),
        ("s3queue://jobs?regoin=x", "unknown option 'regoin'; known are region, endpoint_url, store"),
        ("s3queue://jobs/a/b", "too many parts"),
        ("s3queue://key:my/secret@minio:9000/jobs", "has an @ in its path"),
        ("s3queue://key:my/secret@minio:9000", "has an @ in its path"),
        ("s3queue://jobs/Results", "queue name 'Results' is not valid"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_and_no_secret_is_repeated(url, said):
    with pytest.raises((InvalidRequest, InvalidName)) as refused:
        Address.parse(url)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value).replace("key:secret@host", "")


def test_a_url_is_shown_without_its_secret():
    shown = Connection("s3queue://key:hidden@localhost:9000/jobs").as_uri()
    assert "hidden" not in shown
    assert "hidden" not in repr(Address.parse("s3queue://key:hidden@localhost:9000/jobs"))
    assert shown.endswith("@localhost:9000/jobs")


def test_a_pools_child_waits_for_no_thread_that_it_does_not_have():
    with address._mutex:
        child = os.fork()
        if child == 0:
            os._exit(0 if address._mutex.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_two_channels_that_consume_one_queue_keep_what_each_of_them_holds(bench):  # [P2]
    queue = bench.queue("celery")
    first, second = intake_of(queue), intake_of(queue)
    assert first.queue.worker_id == queue.worker_id != second.queue.worker_id


# Sending


def test_a_task_is_one_put_and_is_readable_in_the_bucket(bench, app):
    # The app uses the memory behind the counting store: count there.
    asked: list[tuple[str, str]] = []
    bench.around = lambda operation, key, perform: (asked.append((operation, key)), perform())[1]
    sent = app.tasks["add"].apply_async((1, 2), priority=7)
    ((operation, key),) = asked
    assert operation == "put"
    assert key.startswith("celery/messages/p007/")
    assert key.endswith(f".{sent.id}")
    payload = json.loads(bench.read(key))
    assert payload["headers"]["task"] == "add"
    assert json.loads(payload["body"])[0] == [1, 2]


def test_a_task_with_a_countdown_is_put_among_the_delayed(bench, app):
    sent = app.tasks["add"].apply_async((1, 2), countdown=3600)
    (key,) = bench.keys("celery/")
    assert key.startswith("celery/delayed/")
    assert key.endswith(sent.id)


def test_bytes_of_another_serializer_survive(bench, app):
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.basic_publish(channel.prepare_message(b"\xff\x00", content_type="x/y"), "", "raw")
        assert channel.basic_get("raw", no_ack=True).body == b"\xff\x00"
    assert bench.keys("raw/messages/") == []


@pytest.mark.parametrize("task_id", ["order/17", "..", "ä ö", "x" * 3000], ids=["slash", "dots", "umlauts", "long"])
def test_a_task_may_have_any_id(bench, app, task_id):
    app.tasks["add"].apply_async((1, 2), task_id=task_id)
    (key,) = bench.keys("celery/messages/")
    assert key.endswith(tail_of_task(task_id))
    assert s3queue.contrib.celery.revoke(app, task_id) == "revoked"
    assert app.AsyncResult(task_id).state == "REVOKED"


def test_a_task_that_was_taken_and_acknowledged_while_it_was_revoked_is_called_running(bench, app):
    sent = app.tasks["add"].delay(1, 2)
    (claim,) = bench.queue("celery").claim_next()

    def acknowledge(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        answer = perform()
        if operation == "put" and "/records/" in key:
            bench.around = None
            bench.queue("celery").complete(claim)
        return answer

    bench.around = acknowledge
    assert s3queue.contrib.celery.revoke(app, sent.id) == "running"
    assert bench.keys("celery/messages/") == []
    assert sent.state == "PENDING"


def test_only_tasks_of_a_bucket_can_be_revoked_in_it():
    with pytest.raises(InvalidRequest, match="not s3queue, but memory://"):
        s3queue.contrib.celery.revoke(Celery("other", broker="memory://", set_as_current=False), "some-id")


def test_queues_have_a_prefix_if_it_is_wanted(bench, app):
    app.conf.broker_transport_options = {"queue_name_prefix": "shop-"}
    app.tasks["add"].apply_async((1, 2), queue="emails")
    (key,) = bench.keys("shop-emails/messages/")
    assert key


@pytest.mark.parametrize(
    "ask",
    [
        lambda app: app.control.ping(),
        lambda app: app.control.broadcast("shutdown"),
        lambda app: app.control.inspect().active(),
        lambda app: app.control.revoke("some-id"),
        lambda app: app.events.Receiver(app.connection_for_read(), {}).capture(limit=1, timeout=1),
    ],
)
def test_what_needs_a_broadcast_is_refused(app, ask):
    with pytest.raises((InvalidRequest, OperationalError), match="S3 has no broadcast"):
        ask(app)


def test_messages_can_be_counted_and_purged(bench, app):
    for _ in range(3):
        app.tasks["add"].delay(1, 2)
    app.tasks["add"].apply_async((1, 2), countdown=3600)
    with app.connection_for_read() as connection, connection.channel() as channel:
        assert channel.queue_declare("celery", passive=True).message_count == 3
        assert channel.queue_purge("celery") == 4
    assert bench.keys("celery/messages/") + bench.keys("celery/delayed/") == []


# Receiving


def test_an_idle_queue_is_asked_less_and_less(bench):
    intake = intake_of(bench.queue("celery"))
    for _ in range(3600):
        assert intake.take(8) == []
        bench.clock.advance(1.0)
    asked = bench.store.take()
    # A LIST every five seconds or so, and `queue.json` every ten: nothing else.
    assert asked.keys() == {"list", "get"}
    assert asked["list"] <= 725
    assert asked["get"] <= 360


def test_a_delayed_task_is_asked_for_when_it_is_due(bench):
    queue = bench.queue("celery")
    intake = intake_of(queue, slowest=600)
    queue.enqueue(b"{}", delay=100)
    while not (claims := intake.take(8)):
        bench.clock.advance(max(intake.seconds_to_poll(), 0.5))
    due_at = due_of(claims[0].path)
    assert due_at is not None
    assert due_at <= bench.clock.now() <= due_at + timedelta(seconds=1)


def test_several_tasks_are_claimed_at_once_and_each_is_ended_in_its_way(bench):
    queue = bench.queue("celery")
    sent = [queue.enqueue({"n": n}) for n in range(3)]
    intake = intake_of(queue)
    claims = intake.take(8)
    paths = [claim.path for claim in claims]
    assert sorted(paths) == sorted(sent)
    assert intake.take(8) == []
    intake.complete(claims[0])
    intake.release(claims[1])
    intake.bury(claims[2], Failure("Reject", "no"))
    intake.stop()
    assert queue.status(paths[0]).state == "completed"
    assert queue.status(paths[1]).state == "pending"
    assert [letter.error_type for letter in DeadLetters(queue).list()] == ["Reject"]


def test_a_paused_queue_delivers_nothing_and_is_asked_rarely(bench):
    queue = bench.queue("celery")
    queue.enqueue({"n": 1})
    queue.pause()
    intake = intake_of(queue)
    bench.store.take()
    for _ in range(100):
        assert intake.take(8) == []
        assert intake.seconds_to_poll() > 0
        bench.clock.advance(max(1.0, intake.seconds_to_poll()))
    assert bench.store.take().keys() == {"get"}
    queue.resume()
    bench.clock.advance(11)
    assert len(intake.take(8)) == 1


def test_a_store_without_an_answer_is_no_reason_to_end(bench):
    queue = bench.queue("celery")
    queue.enqueue({"n": 1})
    intake = intake_of(queue)

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        raise QueueError("no answer")

    bench.around = refuse
    assert intake.take(8) == []
    bench.around = None
    bench.clock.advance(5)
    assert len(intake.take(8)) == 1


@pytest.mark.parametrize("settings", [{"partitions": 2}, {"engine": "spark"}])
def test_a_queue_whose_messages_are_others_is_refused(bench, settings):
    with pytest.raises(InvalidRequest, match="a Celery worker claims each task by itself"):
        intake_of(bench.queue("celery", **settings)).start()


@pytest.fixture
def channel(app: Celery) -> Iterator[Channel]:
    with app.connection_for_read() as connection, connection.channel() as made:
        yield made


def consume(channel: Channel, callback: Callable[[Any], Any], *, no_ack: bool = False) -> None:
    """Let it have what the queue `celery` has now."""
    channel.basic_consume("celery", no_ack, callback, "consumer")
    channel.drain_events()


def test_who_takes_nothing_any_more_leaves_sweeping_to_others(bench):
    queue = bench.queue("celery", max_attempts=2)
    intake, turns = intake_of(queue), SweepTurns(queue)
    path = queue.enqueue({"n": 1})
    failed = bench.queue("celery").claim(path)
    assert failed
    queue.fail(failed, ValueError("no"), retry_after=1)
    bench.clock.advance(5)
    intake._sweep_once(turns)
    assert turns.lock.is_held
    assert len(intake._inbox) == 1
    intake.rest()
    intake._sweep_once(turns)
    assert not turns.lock.is_held
    # Also what it had found for itself.
    other = intake_of(bench.queue("celery"))
    bench.clock.advance(5)
    other._sweep_once(SweepTurns(other.queue))
    assert [claim.path for claim in other.take(8)] == [path]
    other.stop()
    intake.stop()


def test_a_consumer_that_is_cancelled_takes_nothing_until_it_consumes_again(bench, app, channel):
    channel.basic_consume("celery", False, pytest.fail, "consumer")
    intake = channel._intakes["celery"]
    channel.basic_cancel("consumer")
    assert intake._accept(["messages/m"]) == 0
    channel.basic_consume("celery", False, pytest.fail, "another")
    assert intake._accept(["messages/m"]) == 1


FORGED = {
    "not JSON": b"\xff{",
    "nested deeper than any parser goes": b"[" * 200_000,
    "no properties": b'{"headers": {}}',
    "properties that are a list": b'{"headers": {}, "properties": []}',
    "a body that is not base64": b'{"headers": {}, "body": "x", "properties": '
    b'{"delivery_info": {}, "body_encoding": "base64"}}',
    "an unknown encoding": b'{"headers": {}, "body": "x", "properties": '
    b'{"delivery_info": {}, "body_encoding": "rot13"}}',
    "a type that kombu does not know": b'{"headers": {"a": {"__type__": "x", "__value__": 1}}, "properties": {}}',
}


@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED.keys())
def test_what_is_no_task_is_dead_at_once_and_the_next_is_delivered(bench, channel, body):
    queue = bench.queue("celery")
    queue.enqueue(body, name="0-forged")
    queue.enqueue(b'{"headers": {}, "properties": {"delivery_info": {}}}', name="1-real")
    seen: list[Any] = []
    consume(channel, seen.append)
    assert len(seen) == 1
    assert [letter.error_type for letter in DeadLetters(queue).list()] == ["NotCelery"]


def test_a_message_that_is_too_large_is_dead_and_not_read(bench, app, channel):
    queue = bench.queue("celery")
    bench.memory.put("celery/messages/huge", b"[" * (queue.settings.max_message_size + 1))
    with pytest.raises(Empty):
        consume(channel, pytest.fail)
    (letter,) = DeadLetters(queue).list()
    assert "too large" in letter.error


def test_what_celery_cannot_accept_is_a_failed_attempt_and_not_the_end_of_the_worker(bench, app):
    queue = bench.queue("celery")
    # Celery looks for the task by this name, and a list is no key of a dict.
    path = queue.enqueue(b'{"headers": {"task": ["x"], "id": "1"}, "properties": {"delivery_info": {}}}')
    seen: list[Any] = []

    def accept(message: Any) -> None:
        seen.append(message)
        {}[message.headers["task"]]

    with app.connection_for_read() as connection, connection.channel() as channel:
        channel.basic_qos(prefetch_count=1)
        consume(channel, accept)
        assert channel.qos.can_consume()
    assert len(seen) == 1
    lease = queue.read_lease(path)
    assert lease is not None
    assert (lease.lease.state, lease.lease.attempt) == ("waiting", 1)
    assert lease.lease.failure is not None
    assert lease.lease.failure.type == "TypeError"


def test_a_lost_connection_is_told_and_what_was_claimed_is_free(bench, app, channel):
    queue = bench.queue("celery")
    for _ in range(3):
        app.tasks["add"].delay(1, 2)

    def break_off(message: Any) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        consume(channel, break_off)
    channel.close()
    assert len(queue.claim_next(8)) == 3


def test_a_consumer_that_acknowledges_nothing_has_each_message_once(bench, app, channel):
    queue = bench.queue("celery")
    app.tasks["add"].delay(1, 2)
    seen: list[Any] = []
    consume(channel, seen.append, no_ack=True)
    assert len(seen) == 1
    assert channel.qos.can_consume_max_estimate() is None
    channel.close()
    assert bench.keys("celery/messages/") == []
    assert queue.claim_next(8) == []


def test_a_message_that_another_channel_has_received_is_acknowledged_all_the_same(bench, app):
    app.tasks["add"].delay(1, 2)
    seen: list[Any] = []
    with app.connection_for_read() as connection, connection.channel() as first, connection.channel() as second:
        first.basic_consume("celery", False, seen.append, "first")
        second.basic_consume("celery", False, seen.append, "second")
        first.drain_events()
        (message,) = seen
        assert message.channel is second
        message.ack()
    assert bench.keys("celery/messages/") == []


def test_headers_may_hold_what_other_brokers_take(bench, app, channel):
    headers = {"order": UUID(int=17), "at": datetime(2026, 11, 17, tzinfo=UTC)}
    app.tasks["add"].apply_async((1, 2), headers=headers)
    message = channel.basic_get("celery", no_ack=True)
    assert message.headers["order"] == headers["order"]
    assert message.headers["at"] == headers["at"]


# Results


def test_a_result_that_is_too_large_is_refused_as_one_that_cannot_be_encoded(bench, app, monkeypatch):
    monkeypatch.setattr("s3queue.contrib.celery.backend.RESULT_BYTES", 1000)
    with pytest.raises(EncodeError, match="not at most 1000"):
        app.backend.store_result("17", "x" * 1000, "SUCCESS")
    assert bench.keys("celery/results/") == []


@pytest.mark.parametrize("forged", [b"\xff", b"[]", b"{}", b"5"])
def test_a_result_that_nobody_can_read_is_replaced(bench, app, forged):
    bench.memory.put("celery/results/task-17", forged)
    app.backend.store_result("17", 42, "SUCCESS")
    assert app.backend.get_result("17") == 42


def test_the_end_of_a_chords_part_is_noted_although_s3_was_away(bench, app):
    chord([app.tasks["add"].s(1, 1)], app.tasks["total"].s())()
    (key,) = bench.keys("celery/messages/")
    payload = json.loads(bench.read(key))
    request = Context(
        id=payload["headers"]["id"],
        group=payload["headers"]["group"] or "alone",
        chord=app.tasks["total"].s() | {"chord_size": 1},
    )
    app.backend._clock = bench.clock
    away = [Unavailable("no answer")] * 6

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if "/chord-" in key and away:
            raise away.pop()
        return perform()

    bench.around = refuse
    app.backend.on_chord_part_return(request, "SUCCESS", 2)
    assert any("/chord-" in key for key in bench.keys("celery/results/"))


def test_a_chord_fails_with_a_part_that_is_revoked(bench, app):
    add, total = app.tasks["add"], app.tasks["total"]
    result = chord([add.s(1, 1), add.s(2, 2)], total.s())()
    first, second = result.parent.results
    payload = next(
        json.loads(bench.read(key)) for key in bench.keys("celery/messages/") if key.endswith(tail_of_task(second.id))
    )
    request = Context(id=second.id, group=payload["headers"]["group"], chord=json.loads(payload["body"])[2]["chord"])
    app.backend.mark_as_done(second.id, 4, request)
    assert s3queue.contrib.celery.revoke(app, first.id) == "revoked"
    assert result.state == "FAILURE"
    assert "revoked" in str(result.result)


def test_nothing_replaces_a_success_not_even_what_looked_before_it_came(bench, app):
    backend = app.backend
    came: list[str] = []

    def success_comes_between(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "put" and not came:
            came.append(key)
            backend.store_result("17", 42, "SUCCESS")
        return perform()

    bench.around = success_comes_between
    backend.store_result("17", ValueError("late"), "FAILURE")
    assert came == ["celery/results/task-17"]
    assert backend.get_task_meta("17")["status"] == "SUCCESS"
    assert backend.get_result("17") == 42


def test_results_older_than_they_are_kept_are_deleted(bench, app):
    app.backend.store_result("old", 1, "SUCCESS")
    bench.clock.advance(app.backend.expires + 10)
    app.backend.store_result("new", 2, "SUCCESS")
    app.backend.cleanup()
    assert bench.keys("celery/results/") == ["celery/results/task-new"]


def test_the_body_of_a_chord_is_sent_once_although_several_parts_saw_the_end(bench, app):
    add, total = app.tasks["add"], app.tasks["total"]
    chord([add.s(1, 1), add.s(2, 2)], total.s())()
    parts = []
    for key in bench.keys("celery/messages/"):
        payload = json.loads(bench.read(key))
        args, _, embedded = json.loads(payload["body"])
        headers = payload["headers"]
        parts.append((Context(id=headers["id"], group=headers["group"], chord=embedded["chord"]), sum(args)))
    for request, result in parts:
        app.backend.store_result(request.id, result, "SUCCESS")
        app.backend.on_chord_part_return(request, "SUCCESS", result)
    # As if the one that sent the body had crashed before it noted that: its task is run again, and sends it again.
    (joined,) = [key for key in bench.keys("celery/results/chord-") if key.endswith("~joined")]
    bench.memory.delete(joined)
    app.backend.on_chord_part_return(parts[0][0], "SUCCESS", 2)
    assert joined in bench.keys("celery/results/chord-")
    sent = [json.loads(bench.read(key)) for key in bench.keys("celery/messages/")]
    (body,) = [one for one in sent if one["headers"]["task"] == "total"]
    assert sorted(json.loads(body["body"])[0][0]) == [2, 4]


BODIES: dict[str, Callable[[Callable[[str], Any]], Any]] = {
    "task": lambda total: total("a"),
    "chain": lambda total: total("a") | total("not sent yet"),
    "group": lambda total: group(total("a"), total("b")),
    "chord": lambda total: chord([total("a"), total("b")], total("not sent yet")),
}


@pytest.mark.parametrize("kind", BODIES)
def test_each_task_of_a_chords_body_keeps_its_own_headers_and_is_sent_once(bench, app, monkeypatch, kind):
    # The tasks of a chain that was received know no other app.
    monkeypatch.setattr(celery._state._tls, "current_app", app)
    body = BODIES[kind](lambda tenant: app.tasks["total"].s().set(headers={"tenant": tenant}))
    chord([app.tasks["add"].s(1, 1), app.tasks["add"].s(2, 2)], body)()
    parts = parts_of(bench)
    for part in parts:
        app.backend.store_result(part.id, 2, "SUCCESS")
    for part in parts:
        end(app, part)
    (joined,) = [key for key in bench.keys("celery/results/chord-") if key.endswith("~joined")]
    bench.memory.delete(joined)
    end(app, parts[0])
    sent = [json.loads(bench.read(key))["headers"] for key in bench.keys("celery/messages/")]
    assert sorted(headers["tenant"] for headers in sent) == (["a", "b"] if kind in ("group", "chord") else ["a"])
    # It would be handed on to whatever the task sends with its own headers.
    assert not any("s3queue" in header for headers in sent for header in headers)


@pytest.mark.parametrize("away", ["celery/results/group-", "celery/results/task-", "celery/messages/", "celery/dedup/"])
def test_a_chord_does_not_fail_because_s3_was_away_at_its_end(bench, app, away):
    add, total = app.tasks["add"], app.tasks["total"]
    result = chord([add.s(1, 1)], total.s())()
    (key,) = bench.keys("celery/messages/")
    payload = json.loads(bench.read(key))
    bench.memory.delete(key)
    request = Context(
        id=payload["headers"]["id"],
        group=payload["headers"]["group"] or "alone",
        chord=(total.s().set(task_id=result.id) | {"chord_size": 1}),
    )
    app.backend.save_group(request.group, app.GroupResult(request.group, [app.AsyncResult(request.id)]))
    app.backend.store_result(request.id, 2, "SUCCESS")
    app.backend._clock = bench.clock
    refused: list[str] = []

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if key.startswith(away) and len(refused) < 5:
            refused.append(key)
            raise Unavailable("no answer")
        return perform()

    bench.around = refuse
    app.conf.task_publish_retry = False
    app.backend.on_chord_part_return(request, "SUCCESS", 2)
    bench.around = None

    assert refused
    assert app.backend.get_state(result.id) != "FAILURE"
    sent = [json.loads(bench.read(key)) for key in bench.keys("celery/messages/")]
    assert [one["headers"]["task"] for one in sent] == ["total"]


# Chords that fail


def test_an_errback_of_a_chord_is_called_once_although_several_parts_saw_the_end(bench, app, errors, failed):
    result, parts = failed
    others = parts[1:]

    def meet(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "put" and key.endswith(result.id) and others:
            end(app, others.pop())
        return perform()

    bench.around = meet
    end(app, parts[0])
    assert not others
    assert errors == ["ValueError('no')"]
    assert result.state == "FAILURE"


def test_a_chord_whose_body_is_a_group_calls_the_errback_of_each_task_once(bench, app, errors):
    report, total = app.tasks["report"].s(), app.tasks["total"]
    body = group([total.s().on_error(report), total.s().on_error(report)])
    result = chord([app.tasks["add"].s(n, n) for n in range(2)], body)()
    parts = parts_of(bench)
    for part in parts:
        app.backend.store_result(part.id, ValueError("no"), "FAILURE")
    end(app, parts[0])
    end(app, parts[1])
    (joined,) = [key for key in bench.keys("celery/results/chord-") if key.endswith("~joined")]
    bench.memory.delete(joined)
    end(app, parts[0])
    assert [one.state for one in result.results] == ["FAILURE", "FAILURE"]
    assert len(errors) == 2


def test_a_part_that_dies_before_it_calls_the_errbacks_calls_them_when_it_is_run_again(bench, app, errors, failed):
    result, parts = failed

    def die(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        answer = perform()
        if operation == "put" and key.endswith("~failed"):
            raise Killed
        return answer

    bench.around = die
    with pytest.raises(Killed):
        end(app, parts[0])
    bench.around = None
    bench.memory.delete(f"celery/results/task-{result.id}")
    end(app, parts[1])
    # Nobody waits for ever, although the one that would call them is dead.
    assert (result.state, errors) == ("FAILURE", [])
    end(app, parts[0])
    assert len(errors) == 1
    end(app, parts[0])
    assert len(errors) == 1


@pytest.mark.parametrize("lost", ["~failed", "~joined", "task-"])
def test_an_errback_is_called_once_although_answers_are_lost(bench, app, errors, failed, lost):
    _, parts = failed
    answers = [Unavailable("no answer")] * 12

    def lose(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        answer = perform()
        if lost in key and answers:
            raise answers.pop()
        return answer

    bench.around = lose
    for part in parts:
        end(app, part)
    assert len(answers) < 12
    assert len(errors) == 1


def test_an_errback_is_called_if_s3_says_nothing_until_the_end(bench, app, errors, failed):
    result, parts = failed

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if "/chord-" in key:
            raise Unavailable("no answer")
        return perform()

    bench.around = refuse
    end(app, parts[0])
    assert len(errors) == 1
    assert "unknown whether its body was sent" in errors[0]
    assert result.state == "FAILURE"


def test_a_part_that_gave_up_is_not_counted_twice(bench, app, errors):
    chord([app.tasks["add"].s(n, n) for n in range(2)], app.tasks["total"].s())()
    parts = parts_of(bench)
    app.backend.store_result(parts[0].id, 2, "SUCCESS")
    away = [Unavailable("no answer")] * 7

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "list" and away:
            raise away.pop()
        return perform()

    bench.around = refuse
    end(app, parts[0])
    assert not away
    end(app, parts[0])
    assert not any(key.endswith("~joined") for key in bench.keys("celery/results/"))
    app.backend.store_result(parts[1].id, 2, "SUCCESS")
    end(app, parts[1])
    assert len(bench.keys("celery/messages/")) == 1


# Costs


def test_a_task_costs_what_docs_celery_says(bench, app):
    asked: list[str] = []

    def count(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        asked.append(operation)
        return perform()

    bench.around = count
    for n in range(100):
        app.tasks["add"].delay(n, n)
    # A process that goes on sending looks into `queue.json` every ten seconds.
    assert Counter(asked) in ({"put": 100}, {"put": 100, "get": 1})
    asked.clear()
    with app.connection_for_read() as connection:
        intake = intake_of(connection.transport.queue("celery"))
        ended = 0
        while claims := intake.take(8):
            for claim in claims:
                intake.complete(claim)
                ended += 1
        intake.stop()
    assert ended == 100
    counts = Counter(asked)
    # Lease and record; the message; its deletion and its lease's, which are free. The rest is shared by all of them.
    assert (counts["put"], counts["delete"]) == (200, 200)
    assert counts["get"] <= 101
    assert counts["list"] <= 8
    asked.clear()
    app.backend.store_result("17", 1, "SUCCESS")
    assert Counter(asked) == {"get": 1, "put": 1}
