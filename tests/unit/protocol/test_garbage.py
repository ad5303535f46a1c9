"""Garbage in place of our own documents: no message is lost to it, and nothing spins."""

from __future__ import annotations

import contextlib
import json

import pytest

from s3queue import (
    CorruptState,
    DeadLetters,
    NewerFormat,
    Queue,
)
from support.workbench import CALM, Workbench


def nothing_is_lost(bench: Workbench, queue: Queue, path: str) -> None:
    """The message is pending, at work, recorded or dead: somewhere an operator finds it."""  # [P1]
    assert queue.status(path).state in ("pending", "delayed", "processing", "waiting", "completed", "dead", "corrupt")


GARBAGE = [
    b"",
    b"garbage",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"7",
    b"{}",
    b'{"v":1}',
    b'{"v":"1"}',
    b'{"v":1,"state":"dancing","attempt":1,"owner":"x","nonce":"n","timeout_seconds":30}',
    b'{"v":1,"state":"processing","attempt":"many","owner":"x","nonce":"n","timeout_seconds":30}',
    b'{"v":1,"state":"processing","attempt":1,"owner":"x","nonce":"n","timeout_seconds":1e999}',
    b'{"v":1,"state":"waiting","attempt":1,"owner":"x","nonce":"n","timeout_seconds":30,"retry_at":"soon"}',
    b'{"v":1,"state":"waiting","attempt":1,"owner":"x","nonce":"n","timeout_seconds":30,"lines":7}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_lease_overwritten_with_garbage_buries_its_message_with_the_reason(bench, queue, garbage):  # [P1] [P5]
    path = queue.enqueue(b"payload")
    claim = queue.claim(path)
    bench.memory.put(f"orders/leases/{path}", garbage)
    status = queue.status(path)
    assert status.state == "corrupt"
    assert f"orders/leases/{path}" in status.problem
    assert queue.claim(path) is None
    assert queue.claim(path, read_first=True) is None
    bench.clock.advance(60)

    report = bench.sweeper(queue).sweep()

    assert list(report.corrupt) == [f"orders/leases/{path}"]
    assert bench.read(f"orders/dead/{path}") == b"payload"
    (letter,) = DeadLetters(queue).list()
    assert letter.error_type == "CorruptState"
    assert not bench.keys("orders/leases/")
    # The worker that held it finishes late: its death stands, and nothing breaks.
    assert queue.complete(claim).outcome == "dead"


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_record_overwritten_with_garbage_is_no_outcome_and_is_replaced(bench, queue, garbage):  # [P1]
    path = queue.enqueue(b"payload")
    bench.memory.put(f"orders/records/{path}", garbage)
    assert queue.status(path).state == "corrupt"

    bench.processor(queue, lambda body: "done", should_stop=lambda: True)
    claim = queue.claim(path)
    assert queue.complete(claim, "done").result == "done"
    assert queue.status(path).record.result == "done"


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\xff", b"[]", b"7"])
def test_a_queue_json_that_makes_no_sense_changes_nothing_and_says_so_to_operators(bench, queue, garbage, caplog):
    queue.configure(max_attempts=7)
    bench.clock.advance(60)
    bench.memory.put("orders/queue.json", garbage)

    assert queue.refresh()
    assert queue.settings.max_attempts == 7
    assert "orders/queue.json" in caplog.text
    with pytest.raises(CorruptState, match=r"orders/queue\.json"):
        queue.overrides()
    with pytest.raises(CorruptState, match="correct or delete it"):
        queue.configure(max_attempts=5)
    # Work goes on meanwhile.
    path = queue.enqueue(b"x")
    assert [claim.path for claim in queue.claim_next()] == [path]
    bench.sweeper(queue).sweep()


@pytest.mark.parametrize("garbage", [b"garbage", b"{}", b'{"v":1,"worker":7}', b'{"v":1,"holds":3}'])
def test_a_heartbeat_or_count_overwritten_with_garbage_counts_as_none(bench, queue, garbage):
    path = queue.enqueue(b"x")
    queue.claim(path)
    bench.memory.put(f"orders/workers/{queue.worker_id}", garbage)
    bench.memory.put("orders/stats.json", garbage)
    assert queue.published_stats() is None
    bench.clock.advance(60)

    assert bench.sweeper(bench.queue(worker_id="sweeper")).sweep().endings == {"retried": 1}


def test_a_lease_of_a_future_version_is_never_touched(bench, queue):
    path = queue.enqueue(b"x")
    queue.claim(path)
    body = json.dumps({"v": 2, "state": "hibernating", "owner": "future"}).encode()
    bench.memory.put(f"orders/leases/{path}", body)
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    for _ in range(5):
        bench.clock.advance(600)
        bench.store.take()
        report = sweeper.sweep()
        assert "upgrade this side" in report.corrupt[f"orders/leases/{path}"]
        assert sum(bench.store.take().values()) < CALM

    assert queue.claim(path, read_first=True) is None
    assert queue.claim_next() == []
    assert bench.read(f"orders/leases/{path}") == body
    assert bench.read(f"orders/{path}") == b"x"
    assert not bench.keys("orders/dead/")


def test_a_record_of_a_future_version_counts_as_the_outcome_that_it_names(bench, queue):  # [P3] [P4]
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    record = queue.complete(queue.claim(queue.enqueue(b"y")))
    generation = claim.message.generation
    future = {
        "v": 3,
        "outcome": "completed",
        "message_etag": generation.etag,
        "enqueued_at": generation.put_at.isoformat(),
        "poem": ["something", "new"],
    }
    bench.memory.put(f"orders/records/{path}", json.dumps(future).encode())
    assert record.outcome == "completed"

    assert queue.complete(claim, "mine").result is None
    assert json.loads(bench.read(f"orders/records/{path}")) == future
    assert not bench.keys("orders/messages/")


@pytest.mark.parametrize("when", ["first attempt", "retry", "expired"])
def test_a_record_of_a_future_version_that_cannot_be_placed_stops_its_message_only(bench, queue, when):  # [P1]
    path = queue.enqueue(b"1")
    others = [queue.enqueue(b"2") for _ in range(3)]
    if when == "retry":
        queue.fail(queue.claim(path), "once")
    elif when == "expired":
        queue.claim(path)
    bench.memory.put(f"orders/records/{path}", b'{"v":99,"fate":"unknown"}')
    bench.clock.advance(60)
    dispatched: list[str] = []
    ran: list[int] = []
    processor, sweeper = bench.processor(queue, ran.append), bench.sweeper(queue, dispatched)
    bench.store.take()

    for _ in range(10):
        sweeper.sweep()
        while dispatched:
            with contextlib.suppress(NewerFormat):
                processor.run(dispatched.pop(0), read_first=True)
        bench.clock.advance(60)

    assert [queue.status(other).state for other in others] == ["completed"] * 3
    assert ran.count(1) <= 1
    assert bench.read(f"orders/{path}") == b"1"
    assert bench.read(f"orders/records/{path}") == b'{"v":99,"fate":"unknown"}'
    nothing_is_lost(bench, queue, path)
    # Ten sweeps of LISTs and a look at one lease each; no message is claimed again and again.
    assert bench.store.take()["put"] < 40
