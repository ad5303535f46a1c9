"""Every document that is read from the bucket: whatever lies there, it is the document or CorruptState with its key."""

from __future__ import annotations

import json
import tracemalloc
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.clock import RandomChance
from s3queue.documents.batch import ERRORS_KEPT, Lines
from s3queue.documents.breaker_document import BreakerDocument, StoredBreaker
from s3queue.documents.heartbeat import HEARTBEAT_BYTES, Heartbeat
from s3queue.documents.lease import BATCH_LEASE_BYTES, LEASE_BYTES, Lease, StoredLease
from s3queue.documents.limit_document import LimitDocument
from s3queue.documents.lock_document import LOCK_BYTES, LockDocument
from s3queue.documents.partition import PartitionLease, Waiting, journal_bytes, journal_from_bytes
from s3queue.documents.record import RECORD_BYTES, Attempt, Failure, Record
from s3queue.documents.run_documents import MANIFEST_BYTES, SLOT_BYTES, Manifest, Slot
from s3queue.encoding import LATEST, LONGEST, MOST_LINES, RESULT_BYTES, storable
from s3queue.errors import CorruptState
from s3queue.limits import Rate
from s3queue.protocol.stats import Stats
from s3queue.stores.memory import MemoryStore
from support.drawn_documents import AT, FULL_LEASE, FULL_RECORD
from support.forged_documents import HUGE, ForgedStore, drawn_forgeries, forgeries

HEARTBEAT = Heartbeat(
    worker="w",
    started_at=AT,
    ttl=timedelta(seconds=30),
    nonce="n",
    holds=("messages/a",),
    run="run-1",
    stats={"succeeded": 3},
    progress={"messages/a": (0.5, "half")},
)
LOCK = LockDocument(7, "w", timedelta(seconds=30), AT)
SLOT = Slot(run="run-1", state="started", nonce="n", job="job-1", reason="none")
MANIFEST = Manifest(
    run="run-1",
    slot=0,
    state="running",
    opened_at=AT,
    nonce="n",
    paths=("messages/a", "messages/b"),
    started=1,
    rounds=2,
    counts={"completed": 3},
    note="x",
)
BREAKER = BreakerDocument(
    state="open", failures=3, is_forced=True, lasts=timedelta(seconds=30), owner="w", opened_at=AT, error="x"
)
PARTITION = PartitionLease(
    state="processing",
    owner="w",
    timeout=timedelta(seconds=30),
    nonce="n",
    taken={"messages/@a/1": "e"},
    waiting={"messages/@a/2": Waiting("messages/@a/2", FULL_LEASE, is_suspect=True)},
    ended=(FULL_RECORD,),
    journal="j-1",
)
STATS = Stats(pending=3, oldest_seconds=7.5, at=AT)
KINDS = {
    "lease": (Lease.from_bytes, FULL_LEASE.to_bytes()),
    "record": (Record.from_bytes, FULL_RECORD.to_bytes()),
    "heartbeat": (Heartbeat.from_bytes, HEARTBEAT.to_bytes()),
    "lock": (LockDocument.from_bytes, LOCK.to_bytes("n")),
    "slot": (Slot.from_bytes, SLOT.to_bytes()),
    "manifest": (Manifest.from_bytes, MANIFEST.to_bytes()),
    "stats": (Stats.from_bytes, STATS.to_bytes()),
    "limit": (LimitDocument.from_bytes, LimitDocument(1, ((1794824100, 3), (1794824101, 7))).to_bytes("n")),
    "breaker": (BreakerDocument.from_bytes, BREAKER.to_bytes("n")),
    "partition": (PartitionLease.from_bytes, PARTITION.to_bytes()),
    "journal": (journal_from_bytes, journal_bytes((FULL_RECORD, FULL_RECORD))),
}


def reads(read, forged: bytes) -> object | None:
    """What is read; None if it is CorruptState, whose text names the key and is short."""
    said = ""
    try:
        return read(forged, "orders/its-key")
    except CorruptState as error:
        said = str(error)
    assert "orders/its-key" in said
    assert len(said) < 5000
    return None


def is_usable(found: object) -> None:
    """Whatever was read can be reckoned with, and written back."""
    if isinstance(found, Lease):
        stored = StoredLease(lease=found, key="k", etag="e", written_at=AT, read_at=AT)
        assert stored.over_at >= AT
        _ = stored.is_over(), stored.is_due()
        if found.lines:
            json.dumps(found.lines.summary())
            assert len(found.lines.done) <= MOST_LINES + 1
    elif isinstance(found, Heartbeat):
        found.is_fresh(timedelta(days=1))
    elif isinstance(found, Record):
        _ = found.dead_lines
    elif isinstance(found, LimitDocument):
        for rate in (Rate(5, 1), Rate(5, 60), Rate(5, 3600)):
            _ = found.free(rate, 1794824101), found.free_at(rate, 1794824101)
            found.granted(rate, found.latest, 1).without(rate, found.latest, 1).to_bytes("n")
    elif isinstance(found, BreakerDocument):
        _ = StoredBreaker(document=found, etag="e", written_at=AT).until
        found.to_bytes("n")
    elif isinstance(found, Stats):
        json.dumps(found.to_json(), allow_nan=False)
        _ = found.total
    if isinstance(found, (Lease, Record, Heartbeat, Slot, Manifest)):
        found.to_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_of_a_document_may_be_any_extreme(kind):
    read, body = KINDS[kind]
    assert reads(read, body) is not None
    for forged in forgeries(body):
        is_usable(reads(read, forged))


@pytest.mark.parametrize("kind", KINDS)
@given(some.data())
def test_a_document_that_was_changed_in_several_places_is_itself_or_corrupt(kind, data):
    read, body = KINDS[kind]
    is_usable(reads(read, data.draw(drawn_forgeries(body))))


@pytest.mark.parametrize(
    "kind", [Lease, Record, Heartbeat, LockDocument, Slot, Manifest, LimitDocument, BreakerDocument]
)
def test_an_object_of_gigabytes_is_corrupt_and_not_read(kind):
    store = ForgedStore()
    store.put("orders/leases/messages/a.ndjson", HUGE)

    with pytest.raises(CorruptState, match=r"orders/leases/messages/a\.ndjson has 5368709120 bytes"):
        kind.read(store.open("orders/leases/messages/a.ndjson"))


def test_the_longest_documents_that_are_written_can_be_read():
    awkward = "\x00" * 2000
    failure = Failure("E" * 50, awkward, awkward)
    attempts = tuple(
        Attempt(number=number, worker="w" * 100, started_at=AT, ended_at=AT, failure=failure) for number in range(20)
    )
    single = Lease(
        state="waiting", attempt=20, owner="w", nonce="n", timeout=LONGEST, failure=failure, attempts=attempts
    )
    assert len(single.to_bytes()) < LEASE_BYTES
    result = ["é" * (RESULT_BYTES // 8)]
    assert storable(result)[1] == ""
    lines = Lines()
    for line in range(1, 201):
        lines.fail(line, 1, Failure("E", f"{line}{awkward}"), dead=True)
        lines.complete(1000 + line, "x" * 300)
    record = Record(
        path="messages/a",
        outcome="dead",
        generation=FULL_RECORD.generation,
        finished_at=AT,
        attempts=attempts,
        result=result,
        failure=failure,
        lines=lines.summary(),
    )
    assert len(record.to_bytes()) < RECORD_BYTES
    assert Record.from_bytes(record.to_bytes(), "key").result == result
    assert max(LOCK_BYTES, SLOT_BYTES) < HEARTBEAT_BYTES < MANIFEST_BYTES


def test_a_million_lines_that_fail_for_a_million_reasons_fit_into_a_lease_that_can_be_read():
    lines = Lines()
    for line in range(1, MOST_LINES + 1):
        lines.fail(line, 3, Failure("ValueError", f"{line} \x00 {'x' * 200}"), dead=line % 2 == 0)
    body = Lease(state="waiting", attempt=3, owner="w", nonce="n", timeout=LONGEST, lines=lines).to_bytes()

    assert len(body) < BATCH_LEASE_BYTES
    found = Lease.from_bytes(body, "key").lines
    assert len(found.failed) + len(found.dead) == MOST_LINES
    assert len(set(found.dead.values())) <= ERRORS_KEPT + 1


def test_a_forged_lease_of_the_largest_size_takes_memory_within_bounds():
    forged = b'{"v":1,"state":[' + b"[]," * (BATCH_LEASE_BYTES // 3 - 10) + b"[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptState):
            Lease.from_bytes(forged, "key")
        assert tracemalloc.get_traced_memory()[1] < 300 * 2**20
    finally:
        tracemalloc.stop()


def test_a_timeout_or_a_retry_beyond_all_dates_is_written_so_that_it_can_be_read():
    lease = Lease(
        state="waiting", attempt=1, owner="w", nonce="n", timeout=timedelta.max, retry_at=LATEST + timedelta(hours=12)
    )
    found = Lease.from_bytes(lease.to_bytes(), "key")
    assert (found.timeout, found.retry_at) == (LONGEST, LATEST)


def test_a_result_that_is_nested_too_deeply_is_left_out_with_the_reason():
    deep: list = []
    for _ in range(150):
        deep = [deep]
    assert storable(deep) == (
        None,
        "the handler returned list, which is not JSON: lists and objects are nested more than 100 deep",
    )


def test_put_surely_does_not_read_what_someone_else_wrote():
    from s3queue.errors import Conflict, Unavailable
    from s3queue.store import put_surely

    class Losing(ForgedStore):
        def put(self, key, body, **options):
            super().put(key, HUGE)
            raise Unavailable("no answer")

    with pytest.raises(Conflict):
        put_surely(Losing(), "orders/leases/messages/a", b"mine", if_absent=True)
    store = MemoryStore()
    assert put_surely(store, "orders/x", RandomChance().token().encode(), if_absent=True).etag
