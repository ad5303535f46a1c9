"""Under KMS an ETag is not a hash of the bytes, and two equal PUTs have two: nothing may compute it or count on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from s3queue import DeadLetters, Queue, QueueSettings, Reject
from s3queue.protocol.locks import Lock
from s3queue.store import Written
from s3queue.stores.memory import MemoryStore
from support.workbench import Workbench


class KmsStore(MemoryStore):
    """Numbers its ETags."""

    _writes = 0

    def _write(self, key: str, body: bytes, metadata: Mapping[str, str], content_type: str) -> Written:
        written = super()._write(key, body, metadata, content_type)
        self._writes += 1
        self._objects[key] = replace(self._objects[key], etag=f"{self._writes:032x}")
        return replace(written, etag=self._objects[key].etag)


@pytest.fixture
def queue(bench: Workbench) -> Queue:
    store = KmsStore(clock=bench.clock)
    settings = QueueSettings.of(max_attempts=2, retry_jitter=False)
    return Queue(store=store, name="orders", settings=settings, clock=bench.clock, chance=bench.chance)


def test_a_message_is_completed_and_leaves_its_record_alone(bench: Workbench, queue: Queue) -> None:
    path = queue.enqueue({"id": 1})
    assert bench.processor(queue, lambda body: None).run(path) == "completed"
    assert queue.status(path).state == "completed"
    assert [entry.key for entry in queue.store.list("orders/").objects] == [f"orders/records/{path}"]


def test_failures_are_retried_buried_and_replayed(bench: Workbench, queue: Queue) -> None:
    path = queue.enqueue({"id": 1})

    def fail(body: object) -> None:
        raise ValueError("again")

    assert bench.processor(queue, fail).run(path) == "retried"
    bench.clock.advance(60)
    assert bench.processor(queue, fail).run(path, read_first=True) == "dead"
    assert len(DeadLetters(queue).replay_all()) == 1
    (again,) = [queue.keys.path(entry.key) for entry in queue.store.list("orders/messages/").objects]
    assert again
    assert bench.processor(queue, lambda body: None).run(again, read_first=True) == "completed"


def test_a_batch_buries_the_line_that_was_rejected(bench: Workbench, queue: Queue) -> None:
    def reject(body: dict[str, int]) -> None:
        if body["id"] == 1:
            raise Reject("no")

    (path,) = queue.enqueue_many([{"id": 0}, {"id": 1}, {"id": 2}])
    bench.processor(queue, reject).run(path)
    assert queue.stats().dead == 1


def test_an_expired_lease_is_taken_over_and_its_zombie_changes_nothing(bench: Workbench, queue: Queue) -> None:
    path = queue.enqueue({"id": 1})
    zombie = queue.claim(path)
    bench.clock.advance(600)
    bench.sweeper(queue).sweep()
    claim = queue.claim(path, read_first=True)
    assert claim
    assert zombie
    queue.complete(claim, "second")
    assert queue.complete(zombie, "first").result == "second"


def test_a_lock_is_held_extended_and_released(bench: Workbench, queue: Queue) -> None:
    def lock(owner: str) -> Lock:
        return Lock(queue.store, queue.keys.lock("report"), owner=owner, clock=bench.clock, chance=bench.chance)

    with lock("first"):
        assert not lock("second").acquire()
    assert lock("second").acquire()


def test_equal_bytes_that_are_put_again_are_a_new_message(bench: Workbench, queue: Queue) -> None:
    key = "orders/messages/report"
    queue.store.put(key, b"same")
    claim = queue.claim("messages/report")
    assert claim
    bench.clock.advance(5)
    queue.store.put(key, b"same")
    queue.complete(claim)
    # As with other bytes: whoever PUT it last is served.
    assert queue.store.head(key)
