"""What an operator decides about a message of a partition: only whoever holds the partition's lease may.  [P9]"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from s3queue.clock import whole_second
from s3queue.documents.lease import GRAIN, NEVER, Lease
from s3queue.documents.message import Generation, is_placeholder
from s3queue.documents.once import is_once, was_finished
from s3queue.documents.partition import StoredPartition, Waiting
from s3queue.documents.record import Record
from s3queue.encoding import format_instant, put_id_of
from s3queue.errors import Conflict, InvalidRequest, MessageNotFound
from s3queue.paths import is_partition, partition_of, partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.journal import find_in_journals, find_outcome, outcome_in
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.partition_status import lease_of, read_partition
from s3queue.store import ObjectInfo, put_surely

from .partition_hold import Hold
from .partitions import after_death, is_free


def cancel_in_partition(leases: LeaseProtocol, path: str) -> Record:
    """See `Queue.cancel`. HEAD message, GET lease, LIST journals; then the lease is taken, committed, given up.

    Raises:
        Conflict: someone holds the partition, and may be running the message; nothing was changed.
    """
    queue = leases.queue
    check_message(path)
    stored = queue.store.head(queue.keys.message(path))
    if stored is None:
        record = find_outcome(queue, path)
        if record is None:
            raise MessageNotFound(f"nothing to cancel: no message and no outcome in a journal has the path {path}")
        return record
    held = read_partition(queue, partition_of(path))
    if record := _outcome(queue, path, stored, held):
        return record
    waiting = held.lease.waiting.get(path) if held else None
    if waiting and waiting.retry_at == NEVER and waiting.is_for(_generation(stored)):
        raise InvalidRequest(
            f"{queue.name}/{path} is dead, and cannot be read: delete or replay its dead letter instead"
        )
    if held and not is_free(queue, partition_of(path), held):
        raise _is_held(queue, path, held, "cancelled")
    held = after_death(held)
    waiting = held.lease.waiting.get(path) if held else None
    hold = Hold(leases, partition_of(path), held)
    if not hold.begin(takes=False):
        raise Conflict(f"not cancelled: {queue.name}/{path}: a worker has just taken its partition; try again")
    try:
        record = _decide(hold, path, waiting)
    finally:
        hold.advance(stop=True)
        _hand_over(leases, path)
    if record is None:
        raise Conflict(f"not cancelled: {queue.name}/{path} was deleted or PUT anew meanwhile; try again")
    queue.events.emit(
        "message.cancelled",
        queue=queue.name,
        path=path,
        attempt=record.attempt,
        worker=record.worker,
        at=record.finished_at,
        outcome=record.outcome,
    )
    return replace(record, is_withdrawn=True)


def _decide(hold: Hold, path: str, waiting: Waiting | None) -> Record | None:
    """Cancel what lies there now: nobody else can end it while the partition is held. None if nothing does."""
    queue = hold.queue
    stored = queue.store.head(queue.keys.message(path))
    if stored is None or _outcome(queue, path, stored, None, hold.keep):
        return None
    tried = waiting.lease if waiting and waiting.is_for(_generation(stored)) else None
    record = Record(
        path=path,
        outcome="cancelled",
        generation=_generation(stored),
        finished_at=stored.at,
        attempt=tried.attempt if tried else 0,
        worker=queue.worker_id,
        attempts=tried.attempts if tried else (),
        size=stored.size,
        put_id=put_id_of(stored.metadata),
    )
    hold.end(path, record)
    return record


def _hand_over(leases: LeaseProtocol, path: str) -> None:
    """Messages that came while an operator held the partition have had their events: someone must look again."""
    queue, folder = leases.queue, partition_path(partition_of(path))
    page = queue.store.list(queue.keys.message(folder), limit=2)
    if any(not is_placeholder(info) for info in page.objects):
        leases.remind(f"{folder}next", whole_second(page.at))


def _outcome(
    queue: QueueAccess,
    path: str,
    stored: ObjectInfo,
    held: StoredPartition | None,
    keep: Callable[[], None] = lambda: None,
) -> Record | None:
    """The outcome of what lies there, if it has one: it is about to be deleted, or a repetition of what has run."""
    put_id, generation = put_id_of(stored.metadata), _generation(stored)
    record = outcome_in(held.lease.ended, path) if held else None
    if record and record.generation == generation:
        return record
    record = find_in_journals(queue, path, since=stored.modified_at - GRAIN, keep=keep)
    if record and record.generation == generation:
        return record
    record = find_outcome(queue, path, put_id, keep=keep) if is_once(path, stored.metadata) else None
    return record if was_finished(path, stored.metadata, record) else None


def retry_in_partition(leases: LeaseProtocol, path: str) -> Lease | None:
    """The lease of a message that waits, which is due now; None if it does not wait. See `Queue.retry`.

    GET lease, PUT lease `If-Match`: it stays open, so nobody finds the partition held meanwhile. PUT reminder.
    """
    queue = leases.queue
    stored, found = found_in_partition(queue, path)
    if found is None or found.state != "waiting" or stored is None:
        return None
    if found.retry_at == NEVER:
        raise InvalidRequest(f"{queue.name}/{path} is dead, and cannot be read: replay its dead letter instead")
    if stored.lease.state != "open":
        raise _is_held(queue, path, stored, "retried")
    now = whole_second(stored.read_at)
    if found.retry_at and found.retry_at > now:
        waiting = dict(stored.lease.waiting)
        waiting[path] = replace(waiting[path], lease=replace(waiting[path].lease, retry_at=now))
        lease = replace(stored.lease, waiting=waiting, nonce=queue.chance.token())
        key = queue.keys.lease(partition_path(partition_of(path)))
        try:
            put_surely(queue.store, key, lease.to_bytes(), if_match=stored.etag)
        except Conflict as conflict:
            said = f"not retried: {queue.name}/{path}: a worker has just taken its partition; try again"
            raise Conflict(said) from conflict
        leases.remind(path, now)
        found = replace(found, retry_at=now)
    return found


def found_in_partition(queue: QueueAccess, path: str) -> tuple[StoredPartition | None, Lease | None]:
    """The lease of its partition, and what that says of a message. HEAD message, GET lease.

    Raises:
        MessageNotFound: it is not in the queue.
    """
    check_message(path)
    message = queue.store.head(queue.keys.message(path))
    if message is None:
        raise MessageNotFound(f"{queue.name}/{path} is not in the queue; s3queue show tells what became of it")
    stored = read_partition(queue, partition_of(path))
    return stored, lease_of(stored, path, _generation(message)) if stored else None


def check_message(path: str) -> None:
    """Raises InvalidRequest if the path stands for a whole partition."""
    if is_partition(path):
        raise InvalidRequest(f"{path} is a whole partition: give the path of one of its messages")


def _generation(stored: ObjectInfo) -> Generation:
    return Generation(etag=stored.etag, put_at=stored.modified_at)


def _is_held(queue: QueueAccess, path: str, held: StoredPartition, what: str) -> Conflict:
    return Conflict(
        f"not {what}: {queue.name}/{path}: {held.lease.owner} holds its partition, {partition_of(path)}, and has "
        f"written its lease at {format_instant(held.written_at)}; nothing was changed. Try again when it has "
        "been given up"
    )
