"""What the sweeper does with a lease that ran out: delete a message that is finished, fail one that is not.  [P6]"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Literal

from s3queue.clock import whole_second
from s3queue.documents.batch import Lines
from s3queue.documents.lease import Lease, StoredLease
from s3queue.documents.message import Generation, Message
from s3queue.documents.once import may_be_finished, told_by, was_finished
from s3queue.documents.record import Failure, Record
from s3queue.encoding import decode_metadata
from s3queue.errors import Conflict, CorruptState, LeaseLost
from s3queue.store import ObjectInfo, delete_unique

from .claim import Claim
from .lease_protocol import LeaseProtocol
from .liveness import has_not_started

LeaseEnding = Literal["gone", "finished", "retried", "dead", "restarted", "undecided"]


def expire(leases: LeaseProtocol, path: str, held: StoredLease, *, because: Failure | None = None) -> LeaseEnding:
    """Do what the owner of this lease would have done. The lease was read just now, and it has run out.  [P1] [P6]

    A finished message is deleted; a burial is continued; anything else is a failed attempt. `because` says why the
    owner ended, if that is known.

    Raises:
        LeaseLost: someone else got to it first.
        NewerFormat: a newer version wrote its record; only that version can decide.
    """
    queue, lease = leases.queue, held.lease
    before = queue.clock.monotonic()
    stored, is_described = queue.find_message(path)
    if stored is None:
        _record_vanished(leases, path, held)
        return "gone"
    generation = Generation(etag=stored.etag, put_at=stored.modified_at)
    claim = _claim(leases, path, held, stored, before)
    if _is_another(held, generation):
        _perform(leases, path)
        _restart(leases, claim, held)
        return "restarted"
    claim.lease = lease.on(claim.message, claim.claimed_at)
    claim.lines = claim.lease.lines or Lines()
    record = leases.outcomes.read(path)
    if record and record.generation == generation:
        # Take the lease over first: two sweepers must not delete at different times. It says why its message died, and
        # nothing if it did not: should its record be gone one day, that is all that is known.
        leases.write(claim, replace(claim.lease, state="burying", failure=record.failure))
        leases.finish(claim, record)
        leases.log_step("cleared by another than its worker", claim, record.outcome)
        return "finished"
    metadata = stored.metadata if is_described else told_by(lease, generation)
    if record and metadata is not None and was_finished(path, metadata, record):
        # A late repetition of what has run: see `Claiming`.
        leases.clear_repeated(claim, record)
        return "finished"
    if record and lease.is_ended_by(record):
        # Equal bytes, PUT after the message of this lease had its outcome, and before that was deleted.  [P1] [P5] [P7]
        queue.perform(record)
        _restart(leases, claim, held)
        return "restarted"
    is_unstarted = because is None and lease.state == "processing" and has_not_started(queue, lease.owner, path)
    if lease.is_cancelling or (lease.state == "burying" and lease.failure is None) or is_unstarted:
        # The operator's process had recorded nothing yet; or the lease was taken over to clear what had an outcome, not
        # a death, whose record has expired since: to call it dead would be wrong.  [P3] Or a Spark run had not begun
        # it. The message is as it was, and no attempt is used.  [P5] It waits, so that its next claim looks for a
        # record, should someone only be slow.  [P4]
        due_at, attempt = whole_second(held.read_at), max(0, lease.attempt - 1)
        leases.write(
            claim, replace(claim.lease, state="waiting", attempt=attempt, retry_at=due_at, is_cancelling=False)
        )
        leases.remind(path, due_at)
        return "retried"
    silence = f"{lease.owner} stopped renewing its lease in attempt {lease.attempt}: it crashed or ran out of time"
    failure = because or Failure("LeaseExpired", silence)
    leases.log_step("lease ran out", claim, f"{failure.type}, {lease.owner}")
    dies_of = lease.failure if lease.state == "burying" else None
    is_last = dies_of is not None or not queue.settings.retry.can_retry(lease.attempt)
    if is_last and metadata is None and may_be_finished(path, record):
        leases.put_off(claim, dies_of or failure)
        return "undecided"
    if dies_of:
        leases.bury(claim, dies_of)
        return "dead"
    # At once: the visibility timeout was the wait. A second less, because due times are rounded up to whole seconds.
    return "dead" if isinstance(leases.fail(claim, failure, retry_after=-1.0), Record) else "retried"


def restart(leases: LeaseProtocol, path: str, held: StoredLease) -> LeaseEnding | None:
    """Let a message run whose name was PUT anew while the former one waits; None if nothing else lies there.  [P1]

    Otherwise it would have to wait for the other's retry: for ever, if the other could not be read.

    Raises:
        LeaseLost: someone else got to it first.
    """
    before = leases.queue.clock.monotonic()
    stored = leases.queue.list_message(path)
    if stored is None or held.lease.waits_for(Generation(etag=stored.etag, put_at=stored.modified_at)):
        return None
    _restart(leases, _claim(leases, path, held, stored, before), held)
    return "restarted"


def _perform(leases: LeaseProtocol, path: str) -> None:
    """The lease's message may have been completed before its name was PUT anew: its sends are due.  [P7]"""
    record = leases.outcomes.read(path)
    if record:
        leases.queue.perform(record)


def _claim(leases: LeaseProtocol, path: str, held: StoredLease, stored: ObjectInfo, before: float) -> Claim:
    """What is stored there, claimed in the place of the lease's owner."""
    queue, lease = leases.queue, held.lease
    claimed_at = lease.claimed_at or held.written_at
    return Claim(
        message=Message(
            queue=queue.name,
            path=path,
            generation=Generation(etag=stored.etag, put_at=stored.modified_at),
            size=stored.size,
            metadata=decode_metadata(stored.metadata),
            content_type=stored.content_type,
        ),
        lease=lease,
        lease_etag=held.etag,
        claimed_at=claimed_at,
        since=before - (held.read_at - claimed_at).total_seconds(),
        leased_until=before + lease.timeout.total_seconds(),
        clock=queue.clock,
        fence="",
        lines=lease.lines or Lines(),
    )


def _is_another(held: StoredLease, generation: Generation) -> bool:
    """Whether the lease was another generation's: what lies there now was PUT after it was taken.

    Equal bytes are the same message while it is at work; one that is being buried may have been replayed since, and one
    that is being cancelled or purged may be gone.
    """
    lease = held.lease
    if lease.generation:
        is_at_work = lease.state != "burying" and not lease.is_cancelling
        return lease.generation.etag != generation.etag if is_at_work else lease.generation != generation
    if lease.expected_etag:
        return lease.expected_etag != generation.etag
    # Whoever claimed it without a hint died before it knew what it had: only S3's dates can tell.
    return lease.state == "processing" and generation.put_at > held.written_at


def unreadable_lease(error: CorruptState, timeout: timedelta) -> Lease:
    """A lease for an object that cannot be read: its attempts and owner are unknown, so the message is buried with this
    reason.  [P5]
    """
    return Lease(state="burying", attempt=0, owner="unknown", nonce="", timeout=timeout, failure=Failure.of(error))


def _record_vanished(leases: LeaseProtocol, path: str, held: StoredLease) -> None:
    """Under a lease of its own: whoever is slow must not replace the record of what was PUT there since.  [P3] Such a
    lease is `burying`: who acts for the same owner, as two watches of a Spark run do, leaves it alone.  [P2]

    Not if an operator was cancelling or purging it: he deleted it.
    """
    queue, etag = leases.queue, held.etag
    if held.lease.generation and queue.settings.history and not held.lease.is_cancelling:
        until = queue.clock.monotonic() + held.lease.timeout.total_seconds()
        try:
            lease, written = leases.put_lease(path, replace(held.lease, state="burying"), if_match=etag)
        except Conflict as conflict:
            raise LeaseLost(str(conflict)) from conflict
        leases.record_vanished(path, lease, held.read_at, lambda: queue.clock.monotonic() < until)
        etag = written.etag
    else:
        _perform(leases, path)
    delete_unique(queue.store, held.key, if_match=etag)


def _restart(leases: LeaseProtocol, claim: Claim, held: StoredLease) -> None:
    """The name was PUT anew: those attempts were another generation's, this one has had none.  [P5]"""
    due_at = whole_second(held.read_at)
    fresh = Lease(
        state="waiting",
        attempt=0,
        owner=claim.lease.owner,
        nonce="",
        timeout=claim.lease.timeout,
        # Named, so that whoever claims it next, and dies, does not leave its attempt to yet another PUT.
        generation=claim.message.generation,
        put_id=claim.message.put_id,
        retry_at=due_at,
    )
    leases.write(claim, fresh)
    leases.remind(claim.path, due_at)
