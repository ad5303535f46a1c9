"""The state of a message of a partition: its partition's lease and journals tell it.  [P9]"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from s3queue.documents.lease import GRAIN, Lease
from s3queue.documents.message import Generation
from s3queue.documents.partition import PartitionLease, StoredPartition
from s3queue.documents.record import Record
from s3queue.errors import CorruptState, MessageNotFound
from s3queue.paths import is_partition, named_at, partition_of, partition_path
from s3queue.store import ObjectInfo, listing, open_state

from .access import QueueAccess
from .journal import find_in_journals, outcome_in
from .status import State, Status, kept_payload_of

#: Journals that are read at a time.
READERS = 16
#: How far a producer's clock may be from S3's; of one that is further off, all journals are asked.
CLOCK_ERROR = timedelta(minutes=10)


def read_partition(queue: QueueAccess, partition: str) -> StoredPartition | None:
    """The lease of a partition as it is stored now; None if there is none. One GET.

    Raises:
        CorruptState: the object is not such a lease. NewerFormat: a newer version wrote it.
    """
    found = open_state(queue.store, queue.keys.lease(partition_path(partition)))
    return StoredPartition.of(found, PartitionLease.read(found)) if found else None


def lease_of(stored: StoredPartition, path: str, present: Generation) -> Lease | None:
    """What a lease of its own would say of the message that lies there now; None if it waits for its first attempt.

    What was taken may be running: who holds a partition takes many messages at once.
    """
    lease = stored.lease
    waiting = lease.waiting.get(path)
    if waiting and not waiting.is_for(present):
        waiting = None
    if lease.state == "processing" and lease.taken.get(path) == present.etag:
        before = waiting.lease if waiting else None
        return Lease(
            state="processing",
            attempt=before.attempt + 1 if before else 1,
            owner=lease.owner,
            nonce=lease.nonce,
            timeout=lease.timeout,
            claimed_at=stored.written_at,
            generation=present,
            failure=before.failure if before else None,
            attempts=before.attempts if before else (),
        )
    return replace(waiting.lease, generation=present) if waiting else None


def busy_paths(queue: QueueAccess, paths: Iterable[str]) -> set[str]:
    """Those of these messages that a partition's lease names: taken, waiting, or ended. A LIST, a GET per lease."""
    partitions = {partition for path in paths if (partition := partition_of(path))}
    busy: set[str] = set()
    if not partitions:
        return busy
    for page in listing(queue.store, queue.keys.partition_leases):
        for entry in page.objects:
            path = queue.keys.path_under("leases", entry.key)
            if path and partition_of(path) in partitions:
                with suppress(CorruptState):
                    if stored := read_partition(queue, partition_of(path)):
                        lease = stored.lease
                        busy |= lease.taken.keys() | lease.waiting.keys() | {record.path for record in lease.ended}
    return busy


def read_partition_status(queue: QueueAccess, path: str) -> Status:
    """See `Queue.status`. HEAD message, GET lease, HEAD dead letter, a LIST and GETs of journals, the newest first,
    several at a time; of those since the message was PUT, or was named.
    """
    if is_partition(path):
        raise MessageNotFound(f"{path} is a whole partition, not a message: give the path of one of its messages")
    store, keys = queue.store, queue.keys
    message = store.head(keys.message(path))
    present = Generation(etag=message.etag, put_at=message.modified_at) if message else None
    stored, problem = None, ""
    try:
        stored = read_partition(queue, partition_of(path))
    except CorruptState as error:
        problem = str(error)
    lease = lease_of(stored, path, present) if stored and present else None
    record = outcome_in(stored.lease.ended, path) if stored else None
    if record is None or (present and record.generation != present):
        record = _journaled(queue, path, message) or record
    dead, kept = store.head(keys.dead(path)), kept_payload_of(store, keys, record)
    state = _state(path, message, lease, record, dead, problem)
    if message and record and record.generation == present:
        lease = None  # its outcome is committed, and it is about to go
    return Status(
        path=path, state=state, message=message, lease=lease, record=record, dead=dead, kept=kept, problem=problem
    )


def _journaled(queue: QueueAccess, path: str, message: ObjectInfo | None) -> Record | None:
    """Its last outcome in the journals, several of which are read at a time. One that lies there has none from before
    it was PUT; else its name tells when that was, by its producer's clock: older journals are asked last.
    """
    if message:
        return find_in_journals(queue, path, since=message.modified_at - GRAIN, readers=READERS)
    named = named_at(path)
    if named and (found := find_in_journals(queue, path, since=named - CLOCK_ERROR, readers=READERS)):
        return found
    return find_in_journals(queue, path, readers=READERS)


def _state(
    path: str,
    message: ObjectInfo | None,
    lease: Lease | None,
    record: Record | None,
    dead: ObjectInfo | None,
    problem: str,
) -> State:
    if message:
        if record and record.generation == Generation(etag=message.etag, put_at=message.modified_at):
            return record.outcome
        if problem:
            return "corrupt"
        return lease.state if lease else "pending"
    if record:
        return record.outcome
    if dead:
        return "dead"
    raise MessageNotFound(f"no message, no outcome in a journal, and no dead letter has the path {path}")
