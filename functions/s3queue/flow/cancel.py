"""Cancel: the outcome `cancelled` is recorded, by whoever is first [P3], and the message goes.

Who may delete the message depends on its lease. One that nobody works on is taken under a lease of the canceller's own;
if the canceller crashes, the sweeper finishes what is recorded, and gives back what is not: no handler ran, and no
attempt is used. One that is being processed belongs to its worker: the canceller only writes the record. The worker
finds it when it completes or fails the message, or when its handler asks, and deletes the message itself; if it died,
the sweeper does.  [P4] [P5] [P6]
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from s3queue.documents.lease import NEVER, Lease, StoredLease
from s3queue.documents.message import Generation
from s3queue.documents.once import is_once, was_finished
from s3queue.documents.record import Record
from s3queue.encoding import put_id_of
from s3queue.errors import Cancelled, Conflict, CorruptState, InvalidRequest, MessageNotFound, NewerFormat, Unavailable
from s3queue.paths import check_path, named_at, partition_of
from s3queue.protocol.claim import Claim
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.outcomes import Outcomes
from s3queue.store import ObjectInfo, delete_unique

#: A message that changes hands is looked at again, so often at most.
TRIES = 8


def check_cancelled(outcomes: Outcomes, claim: Claim) -> None:
    """Raises Cancelled if that is the recorded outcome of this claim's message. One GET."""
    if claim.within:
        return  # nobody but the holder of its partition may cancel it
    record = outcomes.read(claim.path)
    if record and record.outcome == "cancelled" and record.generation == claim.message.generation:
        # Its worker will delete it, so its flow is told before.  [P8]
        outcomes.perform(record)
        claim.is_cancelled = True
        raise Cancelled(f"{claim.message.queue}/{claim.path} was cancelled by {record.worker} at {record.finished_at}")


def cancel(leases: LeaseProtocol, path: str) -> Record:
    """See `Queue.cancel`."""
    queue = leases.queue
    if partition_of(check_path(path)):
        from .partition_operating import cancel_in_partition

        return cancel_in_partition(leases, path)
    record: Record | None = None
    found: Record | None = None
    for _ in range(TRIES):
        before = queue.clock.monotonic()
        stored = queue.store.head(queue.keys.message(path))
        if stored is None:
            return record or _finished(leases, path)
        generation = Generation(etag=stored.etag, put_at=stored.modified_at)
        if record is None or record.generation != generation:
            found = leases.outcomes.read(path)
            record = found if found and found.generation == generation else None
        if record and record.outcome != "cancelled":
            return record
        if record is None and found and was_finished(path, stored.metadata, found):
            return found  # a late repetition of what has run: whoever claims it deletes it
        held, is_free = _lease(leases, path)
        tried = _tried(held, found)
        if not is_free:
            lease = held.lease if held else None
            if record:
                # Under a canceller's lease nobody works, and whoever takes it over looks for the record. If the message
                # is gone by now, its worker may have run it, and that lease have come after.
                is_cancelling = lease is not None and lease.is_cancelling
                return replace(record, is_withdrawn=is_cancelling and _is_there(leases, path, generation))
            if held and _is_behind(path, held, stored):
                raise Conflict(
                    f"not cancelled: {queue.name}/{path} was PUT anew while the message before it is processed, or may "
                    "have been: its claim is of the same second, and names no ETag; try again when that is finished"
                )
            # Without a lease of the own, as a zombie's completion: it counts if nothing is recorded yet.
            record = _write(leases, path, stored, tried, lambda: False)
            # Looked at once more: its worker may have given it back before it could know.
            continue
        if held and held.lease.retry_at == NEVER:
            raise InvalidRequest(
                f"{queue.name}/{path} is dead, and cannot be read: delete or replay its dead letter instead"
            )
        until = before + queue.settings.visibility_timeout.total_seconds()
        if cancelled := _cancel_free(leases, path, stored, held, tried, until):
            return cancelled
    raise Unavailable(f"not cancelled: {queue.name}/{path} changes hands all the time; try again")


def _is_there(leases: LeaseProtocol, path: str, generation: Generation) -> bool:
    stored = leases.queue.store.head(leases.queue.keys.message(path))
    return stored is not None and generation == Generation(etag=stored.etag, put_at=stored.modified_at)


def _is_behind(path: str, held: StoredLease, stored: ObjectInfo) -> bool:
    """Whether what lies there is another message than the one at work, whose worker would replace its record."""
    if leased := held.lease.leased_etag:
        return leased != stored.etag
    if stored.modified_at == held.written_at:
        # S3's dates have whole seconds: either may have come first. Only a name that nobody uses twice tells.
        return not (named_at(path) or is_once(path, stored.metadata))
    return stored.modified_at > held.written_at


def _lease(leases: LeaseProtocol, path: str) -> tuple[StoredLease | None, bool]:
    """The lease, and whether nobody works under it. One that cannot be read may be somebody's: the sweeper ends it."""
    try:
        held = leases.queue.read_lease(path)
    except NewerFormat:
        raise
    except CorruptState:
        return None, False
    return held, held is None or held.lease.state == "waiting"


def _tried(held: StoredLease | None, found: Record | None) -> Lease | None:
    """The lease, without attempts and lines if they are those of an outcome: equal bytes were PUT after it.  [P5]"""
    if held is None or found is None or not held.lease.is_ended_by(found):
        return held.lease if held else None
    begun = replace(held.lease, attempt=0, failure=None, attempts=(), lines=None, postponed=0)
    return replace(begun, is_cancelling=False)  # a canceller's counts itself


def _cancel_free(
    leases: LeaseProtocol, path: str, stored: ObjectInfo, held: StoredLease | None, tried: Lease | None, until: float
) -> Record | None:
    """Take the message, record, delete; None if someone else was faster, or another message lies there by now."""
    queue = leases.queue
    try:
        lease, written = leases.put_lease(path, _own(leases, stored, tried), if_match=held.etag if held else None)
    except Conflict:
        return None
    present = queue.store.head(queue.keys.message(path))
    if present is None or (present.etag, present.modified_at) != (stored.etag, stored.modified_at):
        # Finished, deleted or PUT anew before the lease was ours.
        if held is None and present is None:
            delete_unique(queue.store, queue.keys.lease(path), if_match=written.etag)
            return None
        with suppress(Conflict):
            leases.give_back(path, replace(lease, is_cancelling=False), written.etag, written.at)
        return None

    def is_alive() -> bool:
        return queue.clock.monotonic() < until

    record = _write(leases, path, present, lease, is_alive)
    # Written under the own lease: whoever takes that over looks for the record.
    is_withdrawn = record.outcome == "cancelled" and record.generation == lease.generation and is_alive()
    is_cleared = record.outcome == "cancelled" or (record.outcome == "completed" and not record.dead_lines)
    if record.generation == lease.generation:
        # A completion that was first may have sent something; and a flow is told before the message goes.  [P7] [P8]
        queue.perform(record)
    if is_cleared and record.generation == lease.generation and is_alive():
        leases.outcomes.clear(path, record.generation, written.etag, is_alive)
    elif is_alive():
        # A zombie's death: whoever claims the message next writes its letter.
        leases.give_back(path, replace(lease, is_cancelling=False), written.etag, written.at)
    return replace(record, is_withdrawn=is_withdrawn)


def _own(leases: LeaseProtocol, stored: ObjectInfo, tried: Lease | None) -> Lease:
    """As a worker claims it, but for a while only, and marked: no handler runs."""
    fresh = Lease(
        state="processing",
        attempt=1,
        owner=leases.queue.worker_id,
        nonce="",
        timeout=leases.queue.settings.visibility_timeout,
        generation=Generation(etag=stored.etag, put_at=stored.modified_at),
        put_id=put_id_of(stored.metadata),
        is_cancelling=True,
    )
    if tried is None or tried.leased_etag not in ("", stored.etag):
        return fresh
    return replace(
        fresh,
        attempt=tried.attempt + 1,
        failure=tried.failure,
        attempts=tried.attempts,
        lines=tried.lines,
        postponed=tried.postponed,
    )


def _write(
    leases: LeaseProtocol, path: str, stored: ObjectInfo, lease: Lease | None, is_alive: Callable[[], bool]
) -> Record:
    queue = leases.queue
    record = Record(
        path=path,
        outcome="cancelled",
        generation=Generation(etag=stored.etag, put_at=stored.modified_at),
        finished_at=stored.at,
        # Its own lease counts none.
        attempt=lease.attempt - lease.is_cancelling if lease else 0,
        worker=queue.worker_id,
        attempts=lease.attempts if lease else (),
        lines=lease.lines.summary() if lease and lease.lines else None,
        size=stored.size,
        put_id=put_id_of(stored.metadata),
        fence=lease.fence if lease else "",
    )
    written = leases.outcomes.write_record(record, is_alive)
    if written.outcome == "cancelled" and written.worker == queue.worker_id:
        _emit(leases, written)
    return written


def _emit(leases: LeaseProtocol, record: Record) -> None:
    leases.queue.events.emit(
        "message.cancelled",
        queue=leases.queue.name,
        path=record.path,
        attempt=record.attempt,
        worker=record.worker,
        at=record.finished_at,
        outcome=record.outcome,
    )


def _finished(leases: LeaseProtocol, path: str) -> Record:
    record = leases.outcomes.read(path)
    if record is None:
        raise MessageNotFound(f"nothing to cancel: no message and no record has the path {path}")
    return record
