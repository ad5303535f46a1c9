"""A message that nobody may read (archived, a foreign key) is tried, dies, and is lost by nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from s3queue import DeadLetters, MessageNotFound, Queue
from s3queue.errors import AccessDenied, Unreadable
from support.workbench import Workbench


def lock(bench: Workbench, path: str, error: AccessDenied) -> None:
    """From now on, the message can be listed and described, but neither read nor copied."""

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation in ("get", "copy") and key in (f"orders/{path}", f"orders/dead/{path}"):
            raise error
        return perform()

    bench.around = refuse


ARCHIVED = Unreadable("GET s3://b/orders/messages/x: InvalidObjectState: the object is archived")
FORBIDDEN = AccessDenied("GET s3://b/orders/messages/x: AccessDenied; allow s3:GetObject")


def die(bench: Workbench, queue: Queue, path: str) -> None:
    for _ in range(queue.settings.max_attempts):
        assert queue.claim(path, read_first=True) is None
        bench.clock.advance(10)


@pytest.mark.parametrize("error", [ARCHIVED, FORBIDDEN], ids=["archived", "forbidden"])
def test_a_refused_get_is_an_attempt_and_the_last_one_is_a_death_with_its_cause(
    bench: Workbench, error: AccessDenied
) -> None:
    queue = bench.queue(max_attempts=3)
    path = queue.enqueue(b"payload", name="x")
    lock(bench, path, error)

    die(bench, queue, path)

    status = queue.status(path)
    assert (status.state, status.record.attempt) == ("dead", 3)
    assert str(error) in status.record.failure.message
    (letter,) = DeadLetters(queue).list()
    assert letter.is_unreadable
    bench.around = None
    assert bench.read(f"orders/{path}") == b"payload", "the payload stays where it was PUT"


def test_a_dead_message_that_cannot_be_moved_is_never_claimed_or_read_again(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"payload", name="x")
    lock(bench, path, ARCHIVED)
    die(bench, queue, path)
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    sweeper.sweep()

    bench.store.take()
    for _ in range(3):
        bench.clock.advance(600)
        sweeper.sweep()
        assert queue.claim_next() == []

    assert dispatched == []
    assert not [key for operation, key in bench.store.log if operation == "get" and key == f"orders/{path}"]


def test_once_it_can_be_read_a_replay_runs_it_where_it_lies(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"payload", name="x", metadata={"customer": "42"})
    lock(bench, path, ARCHIVED)
    die(bench, queue, path)
    with pytest.raises(Unreadable):
        DeadLetters(queue).replay(path)

    bench.around = None
    assert DeadLetters(queue).replay(path) == path

    claim = queue.claim(path)
    assert (claim.message.body, claim.message.metadata) == (b"payload", {"customer": "42"})
    assert queue.complete(claim).outcome == "completed"
    assert queue.status(path).state == "completed"
    assert bench.keys("orders/dead/") == []


def test_deleting_its_letter_deletes_the_message_that_it_stands_for(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"payload", name="x")
    lock(bench, path, ARCHIVED)
    die(bench, queue, path)

    DeadLetters(queue).delete(path)

    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == bench.keys("orders/dead/") == []
    with pytest.raises(MessageNotFound):
        DeadLetters(queue).describe(path)


def test_a_burial_that_was_interrupted_is_gone_on_with_by_the_sweeper(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"payload", name="x")
    lock(bench, path, ARCHIVED)
    refuse = bench.around

    class Died(BaseException):
        pass

    def die_before_the_letter(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "put" and key.startswith("orders/dead/"):
            raise Died
        return refuse(operation, key, perform) if refuse else perform()

    bench.around = die_before_the_letter
    with pytest.raises(Died):
        queue.claim(path)
    bench.around = refuse
    bench.clock.advance(60)

    bench.sweeper(queue).sweep()

    (letter,) = DeadLetters(queue).list()
    assert letter.is_unreadable
    assert queue.status(path).state == "dead"
    bench.around = None
    assert bench.read(f"orders/{path}") == b"payload"


@pytest.mark.parametrize("rest", ["", "x" * 995], ids=["archived", "named so that no lease can be"])
def test_what_cannot_run_hides_nothing_that_can(bench: Workbench, rest: str) -> None:
    queue = bench.queue(max_attempts=3)
    for number in range(50):
        bench.put(f"orders/messages/p255/{number:03d}{rest}", b"{}")
    path = queue.enqueue(b"ordinary")

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "get" and key.startswith("orders/messages/p255/"):
            raise ARCHIVED
        return perform()

    bench.around = refuse
    assert [claim.path for claim in queue.claim_next()] == [path]


@pytest.mark.parametrize("is_new_process", [False, True])
@pytest.mark.parametrize("body", [b"payload", b"another"], ids=["equal bytes", "other bytes"])
def test_a_readable_put_of_its_name_runs(bench: Workbench, body: bytes, is_new_process: bool) -> None:
    """[P1] The lease that waits for ever belongs to what could not be read, not to whatever is PUT there since."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"payload", name="x")
    lock(bench, path, ARCHIVED)
    die(bench, queue, path)
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    bench.clock.advance(60)
    sweeper.sweep()
    bench.around = None
    queue.enqueue(body, name="x")
    if is_new_process:
        sweeper = bench.sweeper(queue, dispatched)
    bench.clock.advance(30)

    assert sweeper.sweep().endings == {"restarted": 1}

    assert dispatched == [path]
    claim = queue.claim(path, read_first=True)
    assert (claim.attempt, claim.message.body) == (1, body)
    assert queue.complete(claim).outcome == "completed"


@pytest.mark.parametrize("body", [b"payload", b"another"], ids=["equal bytes", "other bytes"])
def test_claim_next_finds_a_readable_put_of_its_name_without_a_sweeper(bench: Workbench, body: bytes) -> None:
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"payload", name="x")
    lock(bench, path, ARCHIVED)
    die(bench, queue, path)
    bench.around = None
    queue.enqueue(body, name="x")
    bench.clock.advance(60)

    (claim,) = queue.claim_next()

    assert (claim.attempt, claim.message.body) == (1, body)


def test_another_unreadable_put_of_its_name_has_all_its_attempts(bench: Workbench) -> None:  # [P5]
    queue = bench.queue(max_attempts=2)
    path = queue.enqueue(b"payload", name="x")
    lock(bench, path, ARCHIVED)
    queue.claim(path)
    queue.enqueue(b"another", name="x")
    bench.clock.advance(10)

    assert queue.claim(path, read_first=True) is None

    lease = queue.status(path).lease
    assert (lease.state, lease.attempt, len(lease.attempts)) == ("waiting", 1, 1)


@pytest.mark.parametrize("group", [None, "a"], ids=["a lease of its own", "a group"])
def test_a_late_repetition_that_cannot_be_read_is_cleared_and_keeps_its_outcome(
    bench: Workbench, group: str | None
) -> None:
    """[P3] Its attempts, and at last its death, would take the place of what became of the message."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue({}, dedup_id="order-17", dedup_for=300, group=group)
    stored = bench.memory.head(f"orders/{path}")
    assert stored is not None
    processor = bench.processor(queue, lambda body: "shipped")
    processor.run(path)
    bench.clock.advance(10)
    bench.put(f"orders/{path}", b"{}", metadata=stored.metadata)
    lock(bench, path, ARCHIVED)

    processor.run(path)

    bench.around = None
    record = queue.outcome_of(path)
    assert record is not None
    assert (record.outcome, record.result) == ("completed", "shipped")
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == bench.keys("orders/dead/") == []


def test_what_was_moved_back_and_can_neither_be_read_nor_described_is_not_taken_for_a_repetition(
    bench: Workbench,
) -> None:
    """[P1] [P3] Nobody can tell: it waits where it is, and what stands is the outcome that is known."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue({}, dedup_id="order-17", dedup_for=300)
    stored = bench.memory.head(f"orders/{path}")
    assert stored is not None
    bench.processor(queue, lambda body: "shipped").run(path)
    bench.clock.advance(10)
    bench.put(f"orders/{path}", b"{}", metadata=stored.metadata)

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "copy" or (operation in ("get", "head") and key == f"orders/{path}"):
            raise FORBIDDEN
        return perform()

    bench.around = refuse
    assert queue.claim(path) is None

    bench.around = None
    record = queue.outcome_of(path)
    assert record is not None
    assert record.outcome == "completed"
    assert not bench.keys("orders/dead/")
    assert bench.read(f"orders/{path}") == b"{}"


def test_one_that_is_deleted_by_hand_between_two_attempts_is_recorded(bench: Workbench) -> None:
    """[P1] Its GET is refused, and a LIST shows that it is gone: the record says so, as it does of any other."""
    queue = bench.queue(max_attempts=3)
    path = queue.enqueue(b"payload", name="x")
    lock(bench, path, FORBIDDEN)
    assert queue.claim(path) is None
    bench.memory.delete(f"orders/{path}")
    bench.clock.advance(10)

    assert queue.claim(path, read_first=True) is None

    record = queue.outcome_of(path)
    assert record is not None
    assert record.failure is not None
    assert (record.outcome, record.failure.type, record.attempt) == ("dead", "MessageVanished", 2)
    assert bench.keys("orders/leases/") == []
