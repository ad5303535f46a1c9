"""Partitions: one lease for many messages.  [P9]

Whoever holds the lease of a partition takes its messages, and commits up to a hundred outcomes with one conditional
write of that lease. What follows from a commit (sends, dead letters, the journal, the deletions) is done after it, and
may be repeated by anyone: whoever takes the lease over does it first.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from s3queue.documents.lease import NEVER, Lease
from s3queue.documents.partition import PartitionLease, StoredPartition, Waiting
from s3queue.documents.record import Attempt, Failure
from s3queue.errors import CorruptState, NewerFormat
from s3queue.paths import is_ordered, partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.liveness import LiveOwners
from s3queue.store import Object, open_state

from .partition_hold import Hold
from .partition_window import PartitionWindow
from .read_ahead import Readers

_log = logging.getLogger(__name__)


def hold_partition(leases: LeaseProtocol, partition: str, readers: Readers | None = None) -> Hold | None:
    """Take a partition; None if someone else has it, or there is nothing to do in it now.  [P2]

    With `readers`, its next messages are read while handlers run.

    Raises:
        Unavailable: unknown whether it was taken; its lease runs out, and the next holder goes on.
        NewerFormat: a newer version wrote its lease, and only that version can go on.
    """
    stored = _stored(leases.queue, partition)
    if stored and not is_free(leases.queue, partition, stored):
        return None
    hold = Hold(leases, partition, after_death(stored), readers)
    return hold if hold.begin() else None


def has_work(leases: LeaseProtocol, partition: str, *, finishes: bool = False) -> bool:
    """Whether a holder of this version would have something to do in it now: for whoever launches one, which takes a
    minute and costs more than a look. GET lease, and if it is free a LIST, or more while nothing on the first page can
    be taken. A group that waits for a retry has nothing to do before that is due.

    With `finishes`: if the last holder died, its messages are charged with that, and what it had committed is finished
    here. No message is taken.

    Raises:
        NotSent, AccessDenied: with `finishes`, something is left to do; whoever holds the partition next tries again.
        Unavailable: unknown.
    """
    queue = leases.queue
    try:
        stored = _stored(queue, partition)
        if stored and not is_free(queue, partition, stored):
            return False
        if stored and stored.is_over() and finishes:
            hold = Hold(leases, partition, after_death(stored))
            if not hold.begin(takes=False):
                return False  # someone else was first
            hold.give_up()
            stored = _stored(queue, partition)
    except NewerFormat as error:
        _log.error("partition left to a newer version: %s", error)
        return False
    if stored and (stored.lease.ended or stored.lease.state == "processing"):
        return True
    next_at = stored.lease.next_at if stored else None
    if stored and next_at and next_at > stored.read_at and is_ordered(partition):
        return False
    window = PartitionWindow(queue, partition, dict(stored.lease.waiting) if stored else {})
    window.look()
    # What waited and is gone has to be recorded.
    return bool(window.find({})) or any(one.retry_at != NEVER for one in window.gone.values())


def _stored(queue: QueueAccess, partition: str) -> StoredPartition | None:
    found = open_state(queue.store, queue.keys.lease(partition_path(partition)))
    return _read(queue, found) if found else None


def after_death(stored: StoredPartition | None) -> StoredPartition | None:
    """The lease as whoever takes it over finds it; one that has run out charges its messages with that."""
    if stored and stored.is_over():
        return replace(stored, lease=replace(stored.lease, waiting=_after_death(stored)))
    return stored


def _read(queue: QueueAccess, found: Object) -> StoredPartition:
    try:
        return StoredPartition.of(found, PartitionLease.read(found))
    except NewerFormat:
        raise
    except CorruptState as error:
        # It keeps others off for as long as a lease that was written then, and is replaced.
        _log.error("lease of a partition cannot be read: %s", error)
        lease = PartitionLease(state="processing", owner="unknown", timeout=queue.settings.visibility_timeout)
        return StoredPartition.of(found, lease)


def is_free(queue: QueueAccess, partition: str, stored: StoredPartition) -> bool:
    """Whether nobody works under this lease."""
    if stored.lease.state == "open":
        return True
    if not stored.is_over():
        return False
    path, owners = partition_path(partition), LiveOwners(queue)
    return not owners.keep(stored.lease.owner, path, over_at=stored.over_at, now=stored.read_at)


def _after_death(stored: StoredPartition) -> dict[str, Waiting]:
    """What waits after its worker died: of one message it surely died, or of none. Of several, each is tried alone."""
    lease, waiting = stored.lease, dict(stored.lease.waiting)
    silence = f"{lease.owner} stopped renewing the lease of its partition: it crashed or ran out of time"
    failure = Failure("LeaseExpired", silence)
    finished = {record.path: record.generation.etag for record in lease.ended}
    taken = {path: etag for path, etag in lease.taken.items() if finished.get(path) != etag}
    for path, etag in taken.items():
        known = waiting.get(path)
        if known and known.lease.leased_etag == etag:
            before = known.lease
        else:
            before = Lease(
                state="waiting", attempt=0, owner=lease.owner, nonce="", timeout=lease.timeout, expected_etag=etag
            )
        if len(lease.taken) == 1:
            attempt = Attempt(
                number=before.attempt + 1,
                worker=lease.owner,
                started_at=stored.written_at,
                ended_at=stored.read_at,
                failure=failure,
            )
            before = replace(before, attempt=before.attempt + 1, failure=failure, attempts=(*before.attempts, attempt))
        waiting[path] = Waiting(path, replace(before, retry_at=stored.read_at), is_suspect=True)
    return waiting
