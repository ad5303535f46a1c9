"""Leases: read back as written, small, and over only when whole seconds cannot deceive."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.documents.batch import LineNumbers, Lines
from s3queue.documents.lease import ATTEMPTS_KEPT, GRAIN, Lease, StoredLease
from s3queue.documents.record import Attempt, Record
from s3queue.errors import CorruptState, NewerFormat
from support.drawn_documents import AT, FULL_LEASE, FULL_RECORD, described, junk, leases, reads_or_says_corrupt


@given(leases)
def test_a_lease_is_read_back_as_it_was_written(lease):
    found = Lease.from_bytes(lease.to_bytes(), "key")

    assert (found.lines is None) == (lease.lines is None)
    if lease.lines is not None:
        assert described(found.lines) == described(lease.lines)
    for name in Lease.__slots__:
        if name != "lines":
            assert getattr(found, name) == getattr(lease, name)


@given(some.data())
def test_a_lease_with_a_field_of_nonsense_is_a_lease_or_corrupt_and_nothing_else(data):
    document = json.loads(FULL_LEASE.to_bytes())
    target = data.draw(some.sampled_from([document, document["lines"], document["failure"]]))
    target[data.draw(some.sampled_from(sorted(target)))] = data.draw(junk)

    reads_or_says_corrupt(Lease.from_bytes, document)


@pytest.mark.parametrize("progress", [[], [0.5], ["x", "y"], 7])
def test_progress_that_makes_no_sense_is_corrupt_and_no_crash(progress):
    body = json.dumps(json.loads(FULL_LEASE.to_bytes()) | {"progress": progress or [[]]}).encode()

    with pytest.raises(CorruptState):
        Lease.from_bytes(body, "key")


def test_a_line_whose_error_is_missing_is_corrupt_and_no_crash():
    document = json.loads(FULL_LEASE.to_bytes())
    document["lines"]["errors"] = []

    with pytest.raises(CorruptState):
        Lease.from_bytes(json.dumps(document).encode(), "key")


def test_a_lease_of_a_newer_format_is_left_alone_and_a_record_of_one_still_tells_the_outcome():
    lease = json.loads(FULL_LEASE.to_bytes()) | {"v": 2}
    with pytest.raises(NewerFormat, match="upgrade"):
        Lease.from_bytes(json.dumps(lease).encode(), "key")

    record = {"v": 3, "outcome": "dead", "message_etag": "e", "enqueued_at": "2026-11-16T10:15:00Z", "new": [1]}
    found = Record.from_bytes(json.dumps(record).encode(), "key")
    assert (found.outcome, found.generation) == ("dead", FULL_RECORD.generation)

    with pytest.raises(NewerFormat):
        Record.from_bytes(b'{"v":3,"outcome":"undecided"}', "key")


def test_a_lease_is_over_only_when_s3s_whole_seconds_cannot_deceive():
    def is_over(lease: Lease, age: timedelta) -> bool:
        written_at = datetime(2026, 11, 16, tzinfo=UTC)
        return StoredLease(lease=lease, key="k", etag="e", written_at=written_at, read_at=written_at + age).is_over()

    for state in ("processing", "burying"):
        held = Lease(state=state, attempt=1, owner="w", nonce="n", timeout=timedelta(seconds=30))
        assert not is_over(held, held.timeout + GRAIN)
        assert is_over(held, held.timeout + GRAIN + timedelta(seconds=1))
    assert not is_over(FULL_LEASE, timedelta(days=1000))


def test_a_lease_with_thousands_of_attempts_stays_small():
    many = tuple(Attempt(number=n, worker="w", started_at=AT, ended_at=AT) for n in range(5000))
    lease = Lease(state="waiting", attempt=5000, owner="w", nonce="n", timeout=timedelta(1), attempts=many)

    found = Lease.from_bytes(lease.to_bytes(), "key")

    assert found.attempts == many[-ATTEMPTS_KEPT:]
    assert found.attempt == 5000


def test_a_lease_with_a_million_lines_done_stays_small():
    found = Lines(done=LineNumbers(set(range(1, 1_000_001)) - {500_000}))

    assert found.to_json()["done"] == [[1, 499_999], [500_001, 1_000_000]]
