"""One name, PUT several times: outcomes and attempts belong to the PUT that they are about, whatever S3's dates say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from s3queue import AccessDenied, DeadLetters, Queue, Unavailable
from support.workbench import Workbench


@pytest.fixture
def bench() -> Workbench:
    return Workbench()


def upload(bench: Workbench, key: str, body: bytes, *, started: float) -> None:
    """Complete a multipart upload that was started so many seconds ago: S3 dates the object by its start."""
    bench.memory.put(key, body)
    stored = bench.memory._objects[key]
    started_at = stored.modified_at - timedelta(seconds=started)
    bench.memory._objects[key] = replace(stored, modified_at=started_at)


def test_an_upload_that_was_started_before_a_finished_put_has_an_outcome_of_its_own(bench: Workbench) -> None:
    """[P1] The record of a later date was the earlier generation's: the upload used to vanish without a trace."""
    queue = bench.queue(max_attempts=1)
    bench.clock.advance(60)
    path = queue.enqueue(b"A", name="daily.csv")
    queue.complete(queue.claim(path))
    bench.clock.advance(1)
    upload(bench, "orders/messages/daily.csv", b"B", started=30)

    record = queue.fail(queue.claim(path), "B cannot be read")

    assert record.outcome == "dead"
    assert queue.status(path).record.generation.etag == record.generation.etag
    assert [letter.error for letter in DeadLetters(queue).list()] == ["B cannot be read"]
    assert bench.keys("orders/messages/") == []


def test_a_zombie_does_not_replace_the_record_of_an_upload_that_was_dated_before_it(bench: Workbench) -> None:
    """[P3]"""
    queue = bench.queue()
    bench.clock.advance(60)
    path = queue.enqueue(b"A", name="daily.csv")
    zombie = bench.queue(worker_id="zombie")
    held = zombie.claim(path)
    bench.clock.advance(120)
    upload(bench, "orders/messages/daily.csv", b"B", started=150)
    bench.sweeper(queue).sweep()
    bench.clock.advance(2)
    newer = queue.complete(queue.claim(path, read_first=True), "B")

    assert zombie.complete(held, "A") == newer
    assert queue.status(path).record.result == "B"


@pytest.mark.parametrize("hint", [True, False], ids=["with its ETag", "by its date"])
def test_a_message_put_anew_is_not_charged_with_the_attempt_of_a_worker_that_died_at_once(
    bench: Workbench, hint: bool
) -> None:
    """[P5] The first lease of a worker names no generation; with one attempt, the new message was buried unrun."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"A", name="daily.csv")
    etag = bench.memory.head("orders/messages/daily.csv").etag if hint else ""
    die_after_the_lease(bench, bench.queue(worker_id="dies", max_attempts=1), path, etag)
    bench.clock.advance(0.5 if hint else 5)
    queue.enqueue(b"B", name="daily.csv")

    bench.clock.advance(60)
    report = bench.sweeper(queue).sweep()

    assert report.endings == {"restarted": 1}
    bench.clock.advance(2)
    assert queue.claim(path, read_first=True).attempt == 1


def test_a_claim_that_finds_another_put_than_it_expected_says_so_in_its_lease(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"A", name="daily.csv")
    expected = bench.memory.head("orders/messages/daily.csv").etag
    queue.enqueue(b"B", name="daily.csv")

    claim = queue.claim(path, etag=expected)

    assert claim.message.body == b"B"
    assert queue.read_lease(path).lease.generation == claim.message.generation


def die_after_the_lease(bench: Workbench, worker: Queue, path: str, etag: str) -> None:
    class Died(BaseException):
        pass

    def die(operation: str, key: str, perform):
        if operation == "get" and key == f"orders/{path}":
            raise Died
        return perform()

    bench.around = die
    with pytest.raises(Died):
        worker.claim(path, etag=etag)
    bench.around = None


def test_a_put_does_not_wait_for_the_retry_of_the_one_before_it(bench: Workbench) -> None:
    queue = bench.queue()
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    path = queue.enqueue(b"A", name="daily.csv")
    queue.fail(queue.claim(path), "try tomorrow", retry_after=86400)
    bench.clock.advance(60)
    assert sweeper.sweep().endings == {}
    queue.enqueue(b"B", name="daily.csv")
    bench.clock.advance(30)

    assert sweeper.sweep().endings == {"restarted": 1}

    assert dispatched == [path]
    assert queue.claim(path, read_first=True).attempt == 1


def test_a_waiting_lease_is_read_once_however_often_its_message_is_listed(bench: Workbench) -> None:
    queue = bench.queue()
    sweeper = bench.sweeper(queue)
    path = queue.enqueue(b"A", name="daily.csv")
    queue.fail(queue.claim(path), "try tomorrow", retry_after=86400)
    for _ in range(5):
        bench.clock.advance(60)
        sweeper.sweep()

    assert len([key for operation, key in bench.store.log if (operation, key) == ("get", f"orders/leases/{path}")]) == 1


def test_a_list_that_is_outdated_restarts_nothing(bench: Workbench) -> None:
    """[P5] Between the LIST of the messages and the check of the leases, the former bytes may have been PUT again."""
    queue = bench.queue()
    sweeper = bench.sweeper(queue)
    path = queue.enqueue(b"A", name="daily.csv")
    queue.fail(queue.claim(path), "try tomorrow", retry_after=86400)
    queue.enqueue(b"B", name="daily.csv")
    bench.clock.advance(60)

    def put_before_the_lease_is_read(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "get" and key == f"orders/leases/{path}":
            bench.around = None
            queue.enqueue(b"A", name="daily.csv")
        return perform()

    bench.around = put_before_the_lease_is_read

    assert sweeper.sweep().endings == {}

    assert queue.status(path).lease.attempt == 1


@pytest.mark.parametrize("is_known", [True, False], ids=["one GET fails", "all do"])
@pytest.mark.parametrize("waits", [True, False], ids=["a retry", "a first attempt"])
def test_a_claim_that_fails_after_its_name_was_put_anew_leaves_no_lease_and_no_attempt(
    bench: Workbench, waits: bool, is_known: bool
) -> None:
    """[P5] The lease was written a second time, for what lies there now: that is the one to give back."""
    queue = bench.queue(max_attempts=1 if not waits else 2)
    # Of one that counts once, the record is looked for also before a first attempt.
    path = queue.enqueue(b"a", dedup_id="x", dedup_for=60)
    found = bench.memory.head(f"orders/{path}")
    assert found is not None
    if waits:
        queue.fail(queue.claim(path, etag=found.etag), "once", retry_after=0)
        bench.clock.advance(5)
    bench.put(f"orders/{path}", b"b", metadata=found.metadata)
    failures = 1 if is_known else 99

    def around(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        nonlocal failures
        if operation == "get" and key == f"orders/records/{path}" and failures:
            failures -= 1
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    with pytest.raises(Unavailable):
        queue.claim(path, etag=found.etag, read_first=waits)
    bench.around = None

    held = queue.read_lease(path)
    assert held is None if is_known else (held is not None and (held.lease.state, held.lease.attempt) == ("waiting", 0))
    claim = queue.claim(path, read_first=True)
    assert claim is not None
    assert (claim.attempt, claim.message.body) == (1, b"b")


class Crash(BaseException):
    """Not an Exception: nothing catches it and goes on."""


def crash_before_the_delete(
    bench: Workbench, queue: Queue, path: str, handler: Callable[..., Any], **options: Any
) -> None:
    """A worker records the outcome of a message, and dies before it has deleted it."""
    etag = bench.memory.head(f"orders/{path}").etag

    def around(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "delete" and key == f"orders/{path}":
            raise Crash
        return perform()

    bench.around = around
    with pytest.raises(Crash):
        bench.processor(queue, handler, **options).run(path, etag=etag)
    bench.around = None


def settled(bench: Workbench, queue: Queue) -> list[tuple[Any, int]]:
    """What runs from now on, and as which attempt."""
    ran: list[tuple[Any, int]] = []
    bench.settle(queue, lambda body, context: ran.append((body, context.attempt)))
    return ran


@pytest.mark.parametrize("max_attempts", [1, 3])
@pytest.mark.parametrize("started", [0, 90], ids=["PUT", "upload that was started before the claim"])
@pytest.mark.parametrize("is_named", [False, True], ids=["first lease", "extended"])
def test_equal_bytes_that_are_put_after_an_outcome_have_all_their_attempts(
    bench: Workbench, max_attempts: int, started: float, is_named: bool
) -> None:
    """[P1] [P5] With one attempt, what was PUT was dead, and had never been started."""
    queue = bench.queue(worker_id="dies", max_attempts=max_attempts)
    bench.clock.advance(120)
    bench.put("orders/messages/daily", b"1")

    def handler(body: int, context: Any) -> None:
        bench.clock.advance(3)
        if is_named:
            context.extend()

    crash_before_the_delete(bench, queue, "messages/daily", handler)
    bench.clock.advance(5)
    upload(bench, "orders/messages/daily", b"1", started=started)
    put_at = bench.memory.head("orders/messages/daily").modified_at

    bench.clock.advance(60)
    report = bench.sweeper(queue).sweep()

    assert report.endings == {"restarted": 1}
    assert settled(bench, bench.queue(max_attempts=max_attempts)) == [(1, 1)]
    record = queue.status("messages/daily").record
    assert (record.outcome, record.attempt, record.generation.put_at) == ("completed", 1, put_at)


def test_equal_bytes_that_are_put_in_the_second_of_the_claim_have_all_their_attempts(bench: Workbench) -> None:
    """[P1] The dates of lease and PUT are equal: only the fence in the record tells what it is about."""
    queue = bench.queue(worker_id="dies", max_attempts=1)
    bench.put("orders/messages/daily", b"1")
    bench.clock.advance(1)
    crash_before_the_delete(bench, queue, "messages/daily", lambda body: None)
    bench.put("orders/messages/daily", b"1")

    bench.clock.advance(60)

    assert settled(bench, bench.queue(max_attempts=1)) == [(1, 1)]


def test_a_worker_that_dies_with_what_was_put_after_an_outcome_is_charged_with_its_attempt(bench: Workbench) -> None:
    """[P5] The record is of equal bytes, but not of the claim that ran out."""
    queue = bench.queue(worker_id="first")
    bench.put("orders/messages/daily", b"1")
    queue.complete(queue.claim("messages/daily"))
    bench.put("orders/messages/daily", b"1")
    bench.clock.advance(1)
    bench.put("orders/messages/daily", b"1")
    assert bench.queue(worker_id="dies").claim("messages/daily")

    bench.clock.advance(60)

    assert settled(bench, queue) == [(1, 2)]


def test_the_lines_of_a_batch_that_is_put_after_an_outcome_run(bench: Workbench) -> None:
    """[P1] Those whose progress was stored were recorded as completed, and had not run."""
    queue = bench.queue(worker_id="dies")
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")
    bench.clock.advance(1)

    def slow(body: int) -> None:
        bench.clock.advance(9)  # it extends its lease, with its progress, at half of the visibility timeout

    crash_before_the_delete(bench, queue, "messages/day.ndjson", slow)
    bench.clock.advance(2)
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")

    bench.clock.advance(60)

    assert settled(bench, bench.queue()) == [(1, 1), (2, 1), (3, 1), (4, 1)]


def zombie_that_completes(bench: Workbench, queue: Queue, before: Callable[[], None]) -> None:
    """A worker stands still in the last line; its message is given back, and it completes it nevertheless."""
    sweeper = bench.sweeper(bench.queue())

    def slow(body: int) -> None:
        bench.clock.advance(9)
        if body == 4:
            bench.clock.advance(60)
            sweeper.sweep()
            bench.clock.advance(2)
            before()

    bench.processor(queue, slow).run("messages/day.ndjson", etag=bench.memory.head("orders/messages/day.ndjson").etag)
    assert queue.status("messages/day.ndjson").record.outcome == "completed"


def test_what_is_put_after_a_zombies_completion_runs_as_a_whole(bench: Workbench) -> None:
    """[P1] The lease that waits has the progress of what has its outcome by now."""
    queue = bench.queue(worker_id="zombie")
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")
    bench.clock.advance(1)
    zombie_that_completes(bench, queue, lambda: None)
    bench.clock.advance(2)
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")

    claim = queue.claim("messages/day.ndjson", read_first=True)

    assert (claim.attempt, claim.lines.done, claim.lease.attempts) == (1, type(claim.lines.done)(), ())
    lease = queue.read_lease("messages/day.ndjson").lease
    assert (lease.generation, lease.attempt, lease.lines) == (claim.message.generation, 1, None)


def test_what_is_cancelled_after_a_zombies_completion_has_no_attempts_of_it(bench: Workbench) -> None:
    """[P5] Nobody has started what was PUT since, and no line of it."""
    queue = bench.queue(worker_id="zombie")
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")
    bench.clock.advance(1)
    zombie_that_completes(bench, queue, lambda: None)
    bench.clock.advance(2)
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")
    assert queue.read_lease("messages/day.ndjson").lease.attempts

    record = bench.queue(worker_id="operator").cancel("messages/day.ndjson")

    assert (record.outcome, record.attempt, record.attempts, record.lines) == ("cancelled", 0, (), None)
    assert bench.keys("orders/messages/") + bench.keys("orders/leases/") == []


def test_a_canceller_that_dies_after_a_zombies_completion_gives_no_attempts_back(bench: Workbench) -> None:
    """[P5] What is given back for it is what it has found: a message that nobody has started."""
    queue = bench.queue(worker_id="zombie")
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")
    bench.clock.advance(1)
    zombie_that_completes(bench, queue, lambda: None)
    bench.clock.advance(2)
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")

    def around(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "put" and key.startswith("orders/records/"):
            raise Crash
        return perform()

    bench.around = around
    with pytest.raises(Crash):
        bench.queue(worker_id="operator").cancel("messages/day.ndjson")
    bench.around = None
    bench.clock.advance(60)
    bench.sweeper(bench.queue()).sweep()

    lease = queue.read_lease("messages/day.ndjson").lease
    assert (lease.state, lease.attempt, lease.attempts, lease.lines) == ("waiting", 0, (), None)


@pytest.mark.parametrize("by", ["worker", "another canceller"])
def test_what_is_cancelled_under_the_lease_of_an_outcome_has_no_attempts_of_it(bench: Workbench, by: str) -> None:
    """[P5] The lease of whoever died before its message was deleted is still there, and so are its attempts."""
    queue = bench.queue(worker_id="dies")
    bench.put("orders/messages/daily", b"1")
    bench.clock.advance(1)
    if by == "worker":
        crash_before_the_delete(bench, queue, "messages/daily", lambda body: None)
    else:
        assert queue.claim("messages/daily", etag=bench.memory.head("orders/messages/daily").etag)
        assert bench.queue(worker_id="operator").cancel("messages/daily").attempt == 1
    bench.clock.advance(1)
    bench.put("orders/messages/daily", b"1")
    put_at = bench.memory.head("orders/messages/daily").modified_at

    record = bench.queue(worker_id="operator").cancel("messages/daily")

    assert (record.outcome, record.attempt, record.generation.put_at) == ("cancelled", 0, put_at)
    bench.clock.advance(60)
    bench.sweeper(bench.queue()).sweep()
    assert bench.keys("orders/messages/") + bench.keys("orders/leases/") == []


def test_what_is_put_before_a_zombies_completion_keeps_its_attempts(bench: Workbench) -> None:
    """[P5] Equal bytes are one message while it is at work, and whoever claims it says which of the two he has."""
    queue = bench.queue(max_attempts=2)
    bench.put("orders/messages/daily", b"1")
    zombie = bench.queue(worker_id="zombie")
    held = zombie.claim("messages/daily")
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    bench.clock.advance(2)
    bench.put("orders/messages/daily", b"1")
    dies = bench.queue(worker_id="dies", max_attempts=2)
    claim = dies.claim("messages/daily", read_first=True)
    assert (claim.attempt, dies.read_lease("messages/daily").lease.generation) == (2, claim.message.generation)
    zombie.complete(held)

    bench.clock.advance(60)
    report = bench.sweeper(queue).sweep()

    assert report.endings == {"dead": 1}


@pytest.mark.parametrize("by", ["sweeper", "claim"])
def test_what_a_message_has_sent_is_stored_before_it_begins_anew(bench: Workbench, by: str) -> None:
    """[P7]"""
    queue = bench.queue(worker_id="dies", max_attempts=2)
    queue.sends_to = ("emails",)
    bench.put("orders/messages/daily", b"1")

    def around(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if key.startswith("emails/"):
            raise Crash
        return perform()

    def handler(body: int, context: Any) -> None:
        context.send("emails", {"to": "ada"})
        if by == "claim":
            bench.clock.advance(60)
            bench.sweeper(queue).sweep()
        bench.around = around

    etag = bench.memory.head("orders/messages/daily").etag
    with pytest.raises(Crash):
        bench.processor(queue, handler, sends_to=["emails"]).run("messages/daily", etag=etag)
    bench.around = None
    assert bench.keys("emails/") == []
    bench.clock.advance(2)
    bench.put("orders/messages/daily", b"1")
    if by == "sweeper":
        bench.clock.advance(60)
        assert bench.sweeper(queue).sweep().endings == {"restarted": 1}
    else:
        assert queue.claim("messages/daily", read_first=True).attempt == 1

    assert len(bench.keys("emails/messages/")) == 1


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_the_second_put_of_a_dedup_id_that_is_finished_is_cleared_by_its_lease(
    bench: Workbench, max_attempts: int
) -> None:
    """[P4] Equal put ids are one message, however often it is PUT."""
    queue = bench.queue(worker_id="dies", max_attempts=max_attempts)
    path = queue.enqueue(b"1", dedup_id="x", dedup_for=60)
    metadata = bench.memory.head(f"orders/{path}").metadata
    crash_before_the_delete(bench, queue, path, lambda body: None)
    bench.clock.advance(2)
    bench.put(f"orders/{path}", b"1", metadata=metadata)

    bench.clock.advance(60)

    assert settled(bench, bench.queue(max_attempts=max_attempts)) == []
    assert queue.status(path).record.outcome == "completed"


def test_a_cancellation_of_what_was_at_work_does_not_end_what_is_put_after_it(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    bench.put("orders/messages/daily", b"1")
    bench.clock.advance(2)
    etag = bench.memory.head("orders/messages/daily").etag
    bench.queue(worker_id="dies", max_attempts=1).claim("messages/daily", etag=etag)
    bench.clock.advance(2)
    assert queue.cancel("messages/daily").outcome == "cancelled"
    bench.clock.advance(2)
    bench.put("orders/messages/daily", b"1")

    bench.clock.advance(60)

    assert settled(bench, queue) == [(1, 1)]


def test_what_nobody_can_read_has_all_its_attempts_if_it_was_put_after_an_outcome(bench: Workbench) -> None:
    """[P5]"""
    queue = bench.queue(max_attempts=2)
    bench.put("orders/messages/daily", b"1")
    zombie = bench.queue(worker_id="zombie", max_attempts=2)
    held = zombie.claim("messages/daily")
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    bench.clock.advance(2)
    zombie.complete(held)
    bench.put("orders/messages/daily", b"1")

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "get" and key == "orders/messages/daily":
            raise AccessDenied("a foreign key")
        return perform()

    bench.around = refuse

    assert queue.claim("messages/daily", read_first=True) is None
    lease = queue.read_lease("messages/daily").lease
    assert (lease.state, lease.attempt, len(lease.attempts)) == ("waiting", 1, 1)


def test_lines_that_have_sent_something_begin_again_for_equal_bytes_that_are_put_while_they_are_at_work(
    bench: Workbench,
) -> None:
    """[P7] Both could be completed, the first by a zombie, and each would store these sends under its own name."""
    queue = bench.queue(worker_id="dies")
    queue.sends_to = ("emails",)
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")

    def handler(body: int, context: Any) -> None:
        if body == 4:
            raise Crash
        context.send("emails", {"line": body})
        bench.clock.advance(9)

    with pytest.raises(Crash):
        bench.processor(queue, handler, sends_to=["emails"]).run("messages/day.ndjson")
    assert queue.read_lease("messages/day.ndjson").lease.lines.has_sends
    bench.put("orders/messages/day.ndjson", b"1\n2\n3\n4\n")

    bench.clock.advance(60)

    assert settled(bench, bench.queue()) == [(1, 2), (2, 2), (3, 2), (4, 2)]


def test_an_upload_that_cannot_be_told_from_a_finished_batch_has_no_second_letter(bench: Workbench) -> None:
    """[P3] Equal bytes, with the date of what has its outcome: one of its lines was completed, and dead as well."""
    queue = bench.queue(max_attempts=2)
    put_at = bench.put("orders/messages/b.ndjson", b"1\n2\n").at

    def fail_the_second(body: int) -> None:
        if body == 2:
            raise ValueError("no")

    bench.settle(queue, fail_the_second)
    letters = [letter.path for letter in DeadLetters(queue).list()]
    age = (bench.clock.now() - put_at).total_seconds() // 1
    upload(bench, "orders/messages/b.ndjson", b"1\n2\n", started=age)
    assert bench.memory.head("orders/messages/b.ndjson").modified_at == put_at

    def fail(body: int) -> None:
        raise ValueError("no")

    bench.settle(queue, fail)

    assert [letter.path for letter in DeadLetters(queue).list()] == letters == ["messages/b.ndjson.lines"]
    assert queue.status("messages/b.ndjson").record.lines["completed"] == 1
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
