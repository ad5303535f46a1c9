"""One name, PUT several times: outcomes and attempts belong to the PUT that they are about, whatever S3's dates say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from s3queue import DeadLetters, Queue, Unavailable
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
