"""What a handler sends exists if and only if its completion does, and runs once.  [P7]"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from s3queue import Context, DeadLetters, InvalidRequest, Reject, define
from s3queue.documents.sends import INLINE_SENDS, MERGED_FROM, MOST_BYTES, Send, is_repeatable
from s3queue.errors import AccessDenied, LeaseLost, NotSent, QueueError, Unavailable
from s3queue.protocol.outbox import stage
from s3queue.sweeper.sweeper import Sweeper
from s3queue.worker.processor import Processor


@pytest.fixture
def target(bench):
    return bench.queue(name="emails")


def processor(queue, handler, **options) -> Processor:
    definition = define(queue.name, **({"sends_to": ["emails"]} | options))
    definition.handler(handler)
    queue.sends_to = definition.sends_to
    return Processor(queue=queue, definition=definition)


def welcome(body: dict, context: Context) -> str:
    context.send("emails", {"to": body["customer"]})
    return "ok"


def paths(bench, queue: str) -> list[str]:
    """The messages that lie in a queue."""
    keys = bench.keys(f"{queue}/messages/") + bench.keys(f"{queue}/delayed/")
    return [key.removeprefix(f"{queue}/") for key in keys]


def body(bench, queue: str, path: str) -> bytes:
    return bench.read(f"{queue}/{path}")


@contextmanager
def failing(bench, operation: str, prefix: str, error: BaseException) -> Iterator[None]:
    """Every such request fails, and does nothing."""

    def around(asked: str, key: str, perform: Callable[[], Any]) -> Any:
        if asked == operation and key.startswith(prefix):
            raise error
        return perform()

    bench.around = around
    yield
    bench.around = None


def test_a_send_is_stored_when_the_message_is_completed(bench, queue, target):
    path = queue.enqueue({"customer": "ada"})

    assert processor(queue, welcome).run(path) == "completed"

    (sent,) = paths(bench, "emails")
    assert sent.startswith("messages/sent-")
    assert json.loads(body(bench, "emails", sent)) == {"to": "ada"}
    claim = target.claim(sent)
    assert (claim.message.content_type, claim.message.metadata) == ("application/json", {})


@pytest.mark.parametrize("error", [ValueError("first try"), Reject("never")])
def test_an_attempt_that_fails_sends_nothing(bench, queue, error):
    path = queue.enqueue({"customer": "ada"})

    def fails(body: dict, context: Context) -> None:
        context.send("emails", {"to": "ada"})
        raise error

    processor(queue, fails).run(path)

    assert paths(bench, "emails") == []


def test_delay_priority_metadata_and_content_type_are_as_in_enqueue(bench, queue, target):
    path = queue.enqueue({})

    def sends(body: dict, context: Context) -> None:
        context.send("emails", b"\xff\x00", delay=90, priority=7, metadata={"From": "é"}, content_type="image/x")

    processor(queue, sends).run(path)

    (sent,) = paths(bench, "emails")
    assert sent.startswith("delayed/")
    assert "/p007/sent-" in sent
    assert target.claim(sent) is None
    bench.clock.advance(91)
    claim = target.claim(sent)
    assert claim.message.body == b"\xff\x00"
    assert (claim.message.metadata, claim.message.content_type) == ({"from": "é"}, "image/x")


def test_a_queue_that_the_definition_does_not_name_is_an_error_that_names_it(bench, queue):
    path = queue.enqueue({})

    def sends(body: dict, context: Context) -> None:
        context.send("invoices", {})

    assert processor(queue, sends).run(path) == "retried"

    said = queue.status(path).lease.failure.message
    assert "'orders' may not send to 'invoices'" in said
    assert "sends_to=['emails']" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"body": object()}, "must be bytes, str, JSON"),
        ({"body": {}, "priority": 256}, "priority must be"),
        ({"body": {}, "delay": "soon"}, "delay"),
        ({"body": {}, "metadata": {"a": "x" * 1990}}, "has more than 1936 bytes"),
        ({"body": {}, "metadata": {"Från": "x"}}, "has the name 'från'"),
        ({"body": b"x" * (MOST_BYTES + 1)}, "at most"),
    ],
)
def test_a_send_that_cannot_be_stored_fails_the_attempt_and_writes_nothing(bench, queue, options, said):
    path = queue.enqueue({})
    processor(queue, lambda body, context: context.send("emails", options.pop("body"), **options)).run(path)

    assert said in queue.status(path).lease.failure.message
    assert paths(bench, "emails") == []
    assert bench.keys("orders/outbox/") == []


def test_results_go_to_the_next_queue_in_one_line(bench, queue):
    path = queue.enqueue({"n": 3})

    assert (
        processor(queue, lambda body: {"n": body["n"] + 1}, results_to="emails", sends_to=[]).run(path) == "completed"
    )

    (sent,) = paths(bench, "emails")
    assert json.loads(body(bench, "emails", sent)) == {"n": 4}
    assert queue.status(path).record.result == {"n": 4}


def test_no_result_is_no_message(bench, queue):
    processor(queue, lambda body: None, results_to="emails").run(queue.enqueue({}))

    assert paths(bench, "emails") == []


def test_what_the_lines_of_a_batch_send_is_one_batch_for_each_queue(bench, queue):
    (path,) = queue.enqueue_many([{"customer": name} for name in ("ada", "bob", "cyd")])

    def sends(body: dict, context: Context) -> None:
        context.send("emails", {"to": body["customer"]})
        context.send("texts", {"to": body["customer"]})
        if body["customer"] == "bob":
            raise Reject("left")

    assert processor(queue, sends, sends_to=["emails", "texts"]).run(path) == "completed"

    for name in ("emails", "texts"):
        (sent,) = paths(bench, name)
        assert sent.endswith(".ndjson")
        assert body(bench, name, sent) == b'{"to":"ada"}\n{"to":"cyd"}\n'


def test_a_batch_sends_once_for_all_its_attempts(bench, queue):
    (path,) = queue.enqueue_many([{"customer": name} for name in ("ada", "bob")])
    tried = []

    def sends(body: dict, context: Context) -> None:
        tried.append(body["customer"])
        context.send("emails", {"to": body["customer"], "attempt": context.attempt})
        if tried == ["ada", "bob"]:
            raise ValueError("once")

    worker = processor(queue, sends)
    assert worker.run(path) == "retried"
    assert paths(bench, "emails") == []
    bench.clock.advance(60)
    assert worker.run(path, read_first=True) == "completed"

    (sent,) = paths(bench, "emails")
    assert body(bench, "emails", sent) == b'{"to":"ada","attempt":1}\n{"to":"bob","attempt":2}\n'


@pytest.mark.parametrize("size", [10, INLINE_SENDS])
def test_whoever_completes_a_batch_that_others_began_sends_what_they_sent_as_well(bench, queue, size):
    """Once each, also if the completion has to be asked for again."""
    path = queue.enqueue_many([{"n": 1}, {"n": 2}])[0]

    def first_line_only(body: dict, context: Context) -> None:
        if body["n"] == 2:
            raise ValueError("not today")
        context.send("emails", {"n": 1, "text": "x" * size})

    processor(queue, first_line_only).run(path)
    bench.clock.advance(600)
    claim = queue.claim(path, read_first=True)
    assert claim
    sends = [Send.of("emails", {"n": 2, "text": "y" * size}, now=claim.now())]
    with failing(bench, "put", "orders/records/", Unavailable("no answer")), pytest.raises(Unavailable):
        queue.complete(claim, sends=sends)
    queue.complete(claim, sends=sends)
    sent = b"".join(body(bench, "emails", one) + b"\n" for one in paths(bench, "emails"))
    assert sorted(json.loads(line)["n"] for line in sent.split(b"\n") if line) == [1, 2]
    assert not bench.keys("orders/outbox/")


def test_binary_sends_of_a_batch_have_objects_of_their_own(bench, queue):
    (path,) = queue.enqueue_many([{}, {}])

    processor(queue, lambda body, context: context.send("emails", b"two\nlines")).run(path)

    assert [body(bench, "emails", sent) for sent in paths(bench, "emails")] == [b"two\nlines"] * 2


def test_very_many_sends_of_one_message_are_one_batch(bench, queue):
    path = queue.enqueue({})

    def sends(body: dict, context: Context) -> None:
        for number in range(MERGED_FROM):
            context.send("emails", {"number": number})

    processor(queue, sends).run(path)

    (sent,) = paths(bench, "emails")
    assert body(bench, "emails", sent).count(b"\n") == MERGED_FROM


def test_large_sends_are_staged_before_the_record_and_cleared_away(bench, queue):
    path = queue.enqueue({})
    bench.store.take()

    processor(queue, lambda body, context: context.send("emails", "x" * INLINE_SENDS)).run(path)

    written = [key.split("/")[1] for operation, key in bench.store.log if operation == "put"]
    assert written == ["leases", "outbox", "records", "messages"]
    assert bench.keys("orders/outbox/") == []
    assert len(body(bench, "emails", paths(bench, "emails")[0])) == INLINE_SENDS
    assert len(bench.read(f"orders/records/{path}")) < 1000


def test_a_completion_that_is_repeated_sends_once(bench, queue):
    claim = queue.claim(queue.enqueue({}))
    send = Send.of("emails", {"to": "ada"}, now=bench.clock.now())
    queue.complete(claim, sends=[send], clear=False)
    queue.complete(claim, sends=[send])

    assert len(paths(bench, "emails")) == 1


def test_the_sweeper_stores_what_a_crash_left(bench, queue):
    path = queue.enqueue({})
    claim = queue.claim(path)
    with failing(bench, "put", "emails/", Unavailable("no answer")), pytest.raises(Unavailable):
        queue.complete(claim, sends=[Send.of("emails", {"to": "ada"}, now=bench.clock.now())])
    assert paths(bench, "emails") == []

    bench.clock.advance(60)
    Sweeper(queue=bench.queue(), dispatch=lambda paths: None).sweep()

    assert len(paths(bench, "emails")) == 1
    assert paths(bench, "orders") == []


def test_a_send_that_may_not_be_stored_keeps_the_message(bench, queue):
    path = queue.enqueue({})
    with failing(bench, "put", "emails/", AccessDenied("403 PUT emails/…")):
        assert processor(queue, lambda body, context: context.send("emails", {})).run(path) == "lost"

    assert queue.status(path).record.outcome == "completed"
    assert paths(bench, "orders") == [path]
    bench.clock.advance(60)
    Sweeper(queue=bench.queue(), dispatch=lambda paths: None).sweep()
    assert (len(paths(bench, "emails")), paths(bench, "orders")) == (1, [])


def test_a_record_cannot_make_a_sweeper_send_where_the_definition_does_not(bench, queue):
    """Whoever may write the records of one queue must not reach another one through the sweeper."""
    path = queue.enqueue({})
    claim = queue.claim(path)
    with failing(bench, "put", "secrets/", Unavailable("no answer")), pytest.raises(Unavailable):
        queue.complete(claim, sends=[Send.of("secrets", {"forged": True}, now=bench.clock.now())])
    bench.clock.advance(60)
    sweeping = bench.queue()
    sweeping.sends_to = ("emails",)

    Sweeper(queue=sweeping, dispatch=lambda paths: None).sweep()

    assert paths(bench, "secrets") == []
    assert paths(bench, "orders") == [path]


@pytest.mark.parametrize("history", [True, False])
def test_a_send_that_is_repeated_after_its_message_was_finished_does_not_run(bench, queue, history):
    processor(queue, welcome).run(queue.enqueue({"customer": "ada"}))
    target = bench.queue(name="emails", history=history)
    (sent,) = paths(bench, "emails")
    stored = bench.store.open(f"emails/{sent}")
    repeated = stored.read(), {"metadata": stored.metadata, "content_type": stored.content_type}
    target.complete(target.claim(sent))
    bench.clock.advance(5)

    bench.store.put(f"emails/{sent}", repeated[0], if_absent=True, **repeated[1])

    assert target.claim(sent) is None
    assert paths(bench, "emails") == []
    assert bench.keys("emails/leases/") == []


def test_a_repeated_send_whose_worker_crashed_is_cleared_by_the_sweeper(bench, queue, target):
    processor(queue, welcome).run(queue.enqueue({"customer": "ada"}))
    (sent,) = paths(bench, "emails")
    stored = bench.store.open(f"emails/{sent}")
    content = stored.read()
    target.complete(target.claim(sent))
    bench.clock.advance(5)
    bench.store.put(f"emails/{sent}", content, metadata=stored.metadata)
    # It dies between its lease and the look at the record.
    with failing(bench, "get", f"emails/{sent}", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        target.claim(sent)

    bench.clock.advance(60)
    Sweeper(queue=bench.queue(name="emails"), dispatch=lambda paths: None).sweep()

    assert paths(bench, "emails") == []
    assert target.status(sent).record.outcome == "completed"


@pytest.mark.parametrize("clears", ["sweeper", "worker"])
def test_a_repeated_send_that_is_half_cleared_is_not_called_vanished(bench, queue, target, clears):  # [P1]
    """Its sweeper, or the worker that claims it again, dies between the deletes of message and lease."""
    processor(queue, welcome).run(queue.enqueue({"customer": "ada"}))
    (sent,) = paths(bench, "emails")
    stored = bench.store.open(f"emails/{sent}")
    content = stored.read()
    target.fail(target.claim(sent), "bounced", dead=True)
    sweeper = Sweeper(queue=bench.queue(name="emails"), dispatch=lambda paths: None)
    bench.clock.advance(5)
    bench.store.put(f"emails/{sent}", content, metadata=stored.metadata)
    with failing(bench, "get", f"emails/records/{sent}", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        target.claim(sent)
    bench.clock.advance(60)
    if clears == "worker":
        # The sweeper dies before the first delete, and the next one gives the message back.
        with failing(bench, "delete", f"emails/{sent}", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            sweeper.sweep()
        bench.clock.advance(60)
        sweeper.sweep()
    with failing(bench, "delete", f"emails/leases/{sent}", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        target.claim(sent, read_first=True) if clears == "worker" else sweeper.sweep()
    assert paths(bench, "emails") == []

    bench.clock.advance(60)
    sweeper.sweep()

    assert target.status(sent).record.failure.message == "bounced"
    assert bench.keys("emails/leases/") == []


def test_a_sent_message_that_died_can_be_replayed(bench, queue, target):
    processor(queue, welcome).run(queue.enqueue({"customer": "ada"}))
    (sent,) = paths(bench, "emails")
    target.fail(target.claim(sent), "bounced", dead=True)
    bench.clock.advance(5)

    DeadLetters(target).replay(sent)

    claim = target.claim(sent)
    assert not is_repeatable(sent, claim.message.metadata)
    target.complete(claim)
    assert target.status(sent).record.outcome == "completed"


def test_a_name_that_was_put_anew_does_not_take_the_sends_of_its_predecessor(bench, queue):
    path = queue.enqueue({"a": 1}, name="daily")
    claim = queue.claim(path)
    with failing(bench, "put", "emails/", Unavailable("no answer")), pytest.raises(Unavailable):
        queue.complete(claim, sends=[Send.of("emails", {"to": "ada"}, now=bench.clock.now())])
    bench.clock.advance(60)
    queue.enqueue({"b": 2}, name="daily")

    Sweeper(queue=bench.queue(), dispatch=lambda paths: None).sweep()

    assert len(paths(bench, "emails")) == 1


def test_without_history_a_late_completion_sends_nothing(bench):
    queue = bench.queue(history=False)
    claim = queue.claim(queue.enqueue({}))
    bench.clock.advance(60)

    with pytest.raises(LeaseLost):
        queue.complete(claim, sends=[Send.of("emails", {}, now=bench.clock.now())])

    assert paths(bench, "emails") == []


def test_without_history_what_is_sent_is_still_recorded(bench):
    queue = bench.queue(history=False)
    path = queue.enqueue({})

    processor(queue, lambda body, context: context.send("emails", {})).run(path)

    assert len(paths(bench, "emails")) == 1
    assert queue.status(path).record.outcome == "completed"


def test_sends_too_many_to_finish_are_refused(bench, queue):
    def sends(body: dict, context: Context) -> None:
        for number in range(1001):
            context.send("emails", {}, delay=number + 1)

    path = queue.enqueue({})
    processor(queue, sends).run(path)

    assert "1001 objects; at most 1000" in queue.status(path).lease.failure.message


def test_a_send_is_checked_for_its_arguments_when_it_is_made():
    with pytest.raises(InvalidRequest, match="not a place"):
        Send(queue="emails", place="leases/", body=b"")
    with pytest.raises(InvalidRequest, match="queue name"):
        Send(queue="E mails", place="messages/", body=b"")


@pytest.mark.parametrize("body", [b"," * 9_000_000, b"\0" * 11_000_000], ids=["commas", "zeros"])
def test_whatever_is_staged_can_be_read_back(bench, queue, body):
    """[P7] A reader bounds the length and the parts of a document: nothing of the kind may be in the way of a send."""
    processor(queue, lambda _body, context: context.send("emails", body)).run(queue.enqueue({}))

    assert [len(bench.read(f"emails/{sent}")) for sent in paths(bench, "emails")] == [len(body)]


def test_metadata_counts_as_bytes_of_a_send(bench, queue):
    def sends(body: dict, context: Context) -> None:
        for number in range(10_000):
            context.send("emails", {"n": number}, metadata={"note": "x" * 1800})

    path = queue.enqueue({})
    processor(queue, sends).run(path)

    assert "at most" in queue.status(path).lease.failure.message


def test_lines_that_may_each_send_do_not_hinder_each_other(bench, queue):
    (path,) = queue.enqueue_many([{"from": 0, "to": 10}, {"from": 10, "to": 1005}])

    def sends(body: dict, context: Context) -> None:
        # Each at a time of its own: none shares an object with another.
        for number in range(body["from"], body["to"]):
            context.send("emails", {"n": number}, delay=number + 1)

    assert processor(queue, sends).run(path) == "completed"

    assert len(bench.keys("emails/delayed/")) == 1005
    assert bench.keys("orders/outbox/") == []


def test_merged_sends_are_batches_of_a_hundred(bench, queue):
    def sends(body: dict, context: Context) -> None:
        for number in range(250):
            context.send("emails", {"n": number})

    processor(queue, sends).run(queue.enqueue({}))

    assert sorted(body(bench, "emails", sent).count(b"\n") for sent in paths(bench, "emails")) == [50, 100, 100]


def test_whoever_goes_on_with_the_parts_does_not_begin_anew(bench, queue):
    path = queue.enqueue({})
    claim = queue.claim(path)
    now = bench.clock.now()
    claim.lines.outbox = [stage(queue, [Send.of("emails", {"n": n}, now=now)]) for n in range(3)]
    stored: list[str] = []

    def around(asked: str, key: str, perform: Callable[[], Any]) -> Any:
        if asked == "put" and key.startswith("emails/"):
            if len(stored) == 2:
                raise Unavailable("no answer")
            stored.append(key)
        return perform()

    bench.around = around
    with pytest.raises(Unavailable):
        queue.complete(claim)
    bench.around = None

    assert len(bench.keys("orders/outbox/")) == 1
    queue.complete(claim)
    assert len(paths(bench, "emails")) == 3


def test_a_message_whose_sends_cannot_be_stored_does_not_hold_up_the_others(bench, queue):
    stuck = queue.enqueue({}, name="a")
    claim = queue.claim(stuck)
    with failing(bench, "put", "emails/", AccessDenied("403")), pytest.raises(NotSent):
        queue.complete(claim, sends=[Send.of("emails", {}, now=bench.clock.now())])
    bench.clock.advance(60)
    other = bench.queue()

    with failing(bench, "put", "emails/", AccessDenied("403")):
        assert other.claim_next(5) == []
        bench.clock.advance(60)
        queue.enqueue({}, name="b")
        assert [found.path for found in other.claim_next(5)] == ["messages/b"]

    assert paths(bench, "orders") == [stuck, "messages/b"]


def test_sends_are_stored_also_if_someone_deletes_the_message_by_hand(bench, queue):
    path = queue.enqueue({})
    claim = queue.claim(path)
    with failing(bench, "put", "emails/", Unavailable("no answer")), pytest.raises(Unavailable):
        queue.complete(claim, sends=[Send.of("emails", {}, now=bench.clock.now())])
    bench.store.delete(f"orders/{path}")

    bench.clock.advance(60)
    Sweeper(queue=bench.queue(), dispatch=lambda paths: None).sweep()

    assert len(paths(bench, "emails")) == 1


@pytest.mark.parametrize("history", [True, False])
def test_sends_are_stored_also_if_a_late_delete_of_equal_bytes_takes_the_message(bench, history):
    """[P7] S3 cannot tell equal bytes apart, so nothing stops a DELETE that was sent in time, and comes too late."""
    slow, other = bench.queue(worker_id="slow", history=history), bench.queue(worker_id="other", history=history)
    path = slow.enqueue({}, name="daily")
    sweeper = Sweeper(queue=bench.queue(history=history), dispatch=lambda paths: None)

    def stand_still(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "delete" and key == f"orders/{path}":
            bench.around = None
            bench.clock.advance(60)
            sweeper.sweep()
            claim = other.claim(path, read_first=True)
            with failing(bench, "put", "emails/", Unavailable("no answer")), pytest.raises(Unavailable):
                other.complete(claim, sends=[Send.of("emails", {}, now=bench.clock.now())])
        return perform()

    first = slow.claim(path)
    bench.clock.advance(2)
    slow.enqueue({}, name="daily")
    bench.around = stand_still
    slow.complete(first)
    assert (paths(bench, "orders"), paths(bench, "emails")) == ([], [])

    bench.clock.advance(60)
    sweeper.sweep()

    assert len(paths(bench, "emails")) == 1
    assert bench.keys("orders/leases/") == []
    assert other.status(path).record.outcome == "completed"


def test_an_operator_who_cancels_sends_nothing_that_a_forged_record_asks_for(bench):
    queue = bench.queue()
    path = queue.enqueue({"a": 1}, name="m")
    claim = queue.claim(path)
    with failing(bench, "put", "payments/", Unavailable("no answer")), pytest.raises(Unavailable):
        queue.complete(claim, sends=[Send.of("payments", {}, now=bench.clock.now())])
    bench.clock.advance(60)
    queue.enqueue({"b": 2}, name="m")
    operator = bench.queue()
    operator.sends_to = ()

    with contextlib.suppress(QueueError):
        operator.cancel(path)

    assert paths(bench, "payments") == []


def test_a_late_repetition_that_is_cancelled_keeps_its_outcome(bench, queue, target):
    """[P3]"""
    processor(queue, welcome).run(queue.enqueue({"customer": "ada"}))
    (sent,) = paths(bench, "emails")
    stored = bench.store.open(f"emails/{sent}")
    content = stored.read()
    target.complete(target.claim(sent), "done")
    bench.clock.advance(5)
    bench.store.put(f"emails/{sent}", content, metadata=stored.metadata)

    assert target.cancel(sent).outcome == "completed"

    assert target.status(sent).record.result == "done"


def test_results_of_lists_are_not_passed_on():
    definition = define("orders", results_to="emails")

    with pytest.raises(InvalidRequest, match="results_to needs one result a message"):

        @definition.handler
        def many(bodies: list[dict]) -> None: ...
