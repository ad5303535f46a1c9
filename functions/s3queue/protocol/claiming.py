"""Claiming: how a worker gets a message. It writes the lease first, then reads the message.

A worker claims a message without a lease, takes over a waiting lease that is due, or adopts a lease that was taken in
its name elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from datetime import timedelta

from s3queue.clock import as_positive_duration
from s3queue.documents.batch import Lines
from s3queue.documents.lease import Lease, StoredLease
from s3queue.documents.message import Generation, Message, is_placeholder
from s3queue.documents.once import is_once, may_be_finished, told_by, was_finished
from s3queue.documents.record import Failure
from s3queue.errors import (
    AccessDenied,
    Conflict,
    CorruptState,
    InvalidRequest,
    LeaseLost,
    NewerFormat,
    NotSent,
    QueueError,
)
from s3queue.paths import check_path, due_of, partition_of
from s3queue.store import Written, delete_unique

from .access import QueueAccess
from .backlog import Backlog, Candidate
from .claim import Claim
from .expire import expire, restart
from .gate import Permit
from .lease_protocol import LeaseProtocol
from .liveness import LiveOwners
from .misnamed import bury_misnamed
from .opening import described_metadata, message_of

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Taken:
    """The lease of a claim as it stands: it is written a second time if the name of its message was PUT anew."""

    lease: Lease
    written: Written
    #: The one that was taken over; None for the first claim of a message.
    former: Lease | None


@dataclass(frozen=True, slots=True)
class Claiming:
    """Takes leases for one worker."""

    queue: QueueAccess
    leases: LeaseProtocol

    def claim(
        self, path: str, *, timeout: float | timedelta | None = None, read_first: bool = False, etag: str = ""
    ) -> Claim | None:
        """Take the message at `path`; None if someone else has it, it is finished, or it is not due.  [P2]

        After an event, nothing is read before the lease is written: most messages are free, and a lost try costs only
        one PUT.
        """
        problem = self.queue.keys.problem(check_path(path))
        if partition_of(path):
            name, way_out = self.queue.name, "run it with Worker(queue, handler), or `s3queue work {}`"
            if self.queue.settings.engine == "spark":
                way_out = "a Spark run does that, which its event or the sweeper of {} starts"
            raise InvalidRequest(
                f"{name}/{path} is claimed with its partition, whose one lease keeps the order: {way_out.format(name)}"
            )
        limit = self.queue.settings.visibility_timeout
        if timeout is not None:
            limit = as_positive_duration(timeout, "the timeout of a claim")
        if path.endswith("/") and is_placeholder(self.queue.find_message(path)[0]):
            return None
        if problem:
            bury_misnamed(self.leases, path, problem)
            return None
        if (gate := self.queue.gate) and gate.wait(path) > 0:
            self.queue.held_back += 1
            return None
        due_at = due_of(path)
        # A delayed message is always read first: S3's clock decides whether it is due.
        if not read_first and due_at is None:
            return self._claim_first(path, limit, etag)
        before = self.queue.clock.monotonic()
        try:
            held = self.queue.read_lease(path)
        except CorruptState:
            return None  # the sweeper buries the message once the unreadable lease is old enough to have run out
        if held is None:
            stored, _ = self.queue.find_message(path)
            is_due = stored is not None and (due_at is None or due_at <= stored.at)
            return self._claim_first(path, limit, stored.etag) if stored and is_due else None
        if not held.is_due():
            return None
        mine = replace(
            held.lease,
            state="processing",
            attempt=held.lease.attempt + 1,
            owner=self.queue.worker_id,
            timeout=limit,
            claimed_at=held.read_at,
            retry_at=None,
            progress=None,
            fence="",
            is_cancelling=False,
        )
        return self._take_permitted(path, mine, before, held)

    def claim_next(self, limit: int, *, timeout: float | timedelta | None = None) -> list[Claim]:
        """See `Queue.claim_next`, which checks for a pause first."""
        backlog = Backlog(self.queue, competes=False, overdue=True)
        owners = LiveOwners(self.queue)
        claims: list[Claim] = []
        for candidate in backlog.drain():
            if partition_of(candidate.path):
                continue  # a Worker's, or a Spark run's, with its partition
            held_back = self.queue.held_back
            try:
                if candidate.is_overdue:
                    self._expire(candidate, owners)
                claim = self.claim(
                    candidate.path, timeout=timeout, read_first=candidate.read_first, etag=candidate.etag
                )
            except (CorruptState, NotSent) as error:
                _log.warning("claim failed, message kept: %s/%s: %s", self.queue.name, candidate.path, error)
                claim = None  # one message that needs an operator must not stop the others
            except QueueError:
                if not claims:
                    raise
                break  # return the claims so far: if they were lost here, nobody would work on them until they run out
            else:
                if claim or self.queue.held_back == held_back:
                    self.leases.forget(candidate.reminder)
            backlog.report(won=claim is not None, is_hint=candidate.is_hint)
            if claim:
                claims.append(claim)
            if len(claims) >= limit:
                break
        if not claims and self.queue.settings.partitions:
            raise InvalidRequest(
                f"queue {self.queue.name!r} has partitions={self.queue.settings.partitions}: claim_next does not see "
                f"their messages; run them with Worker(queue, handler), or `s3queue work {self.queue.name}`"
            )
        return claims

    def _expire(self, candidate: Candidate, owners: LiveOwners) -> None:
        """End a lease that has run out, or waits for a former message, as the sweeper does: there may be none.  [P6]"""
        path = candidate.path
        held = self.queue.read_lease(path)
        if held is None:
            return
        with contextlib.suppress(Conflict):
            if held.lease.state == "waiting":
                put_at = candidate.put_at or candidate.since
                if not held.lease.waits_for(Generation(etag=candidate.etag, put_at=put_at)):
                    restart(self.leases, path, held)
            elif held.is_over() and not owners.keep(held.lease.owner, path, over_at=held.over_at, now=held.read_at):
                expire(self.leases, path, held)

    def adopt(self, path: str) -> Claim | None:
        """See `Queue.adopt`.  [P2] [P5]

        It is the same attempt, because the worker that claimed the message started nothing. The lease is written
        again, so that a sweeper that has just judged it to be over cannot take it as well.
        """
        before = self.queue.clock.monotonic()
        try:
            held = self.queue.read_lease(path)
        except CorruptState:
            return None
        if held is None or held.lease.state != "processing" or held.lease.owner != self.queue.worker_id:
            return None
        mine = replace(held.lease, claimed_at=held.lease.claimed_at or held.written_at)
        return self._take(path, mine, before, held)

    def _claim_first(self, path: str, timeout: timedelta, etag: str) -> Claim | None:
        before = self.queue.clock.monotonic()
        lease = Lease(
            state="processing",
            attempt=1,
            owner=self.queue.worker_id,
            nonce="",
            timeout=timeout,
            expected_etag=etag,
        )
        return self._take_permitted(path, lease, before, None)

    def _take_permitted(self, path: str, lease: Lease, before: float, held: StoredLease | None) -> Claim | None:
        """Take the lease if the queue's limits permit it; a permit that is not used is given back."""
        gate = self.queue.gate
        if gate is None:
            return self._take(path, lease, before, held)
        permit = gate.enter(path)
        if permit is None:
            self.queue.held_back += 1
            return None
        # From here on: getting the permit may have taken a while.
        before = self.queue.clock.monotonic()
        claim: Claim | None = None
        try:
            claim = self._take(path, lease, before, held, permit)
        finally:
            if claim is None:
                permit.cancel()
        return claim

    def _take(
        self, path: str, lease: Lease, before: float, held: StoredLease | None, permit: Permit | None = None
    ) -> Claim | None:
        """Write the lease, then read the message. The deadline counts from before the request.  [P2] [P4]"""
        try:
            lease, written = self.leases.put_lease(path, lease, if_match=held.etag if held else None)
        except Conflict:
            _log.debug("claim lost: %s/%s: someone else has it", self.queue.name, path)
            self.queue.events.emit("claim.lost", queue=self.queue.name, path=path)
            return None
        if self._is_late(path, lease, written, permit):
            return None
        taken = _Taken(lease, written, held.lease if held else None)
        try:
            return self._read_message(path, taken, before, permit)
        except Conflict:
            return None  # it took so long that someone else has the lease by now
        except (NewerFormat, NotSent):
            # Only a newer version, or more permissions, can decide: a lease that was given back would be claimed again
            # and again.
            raise
        except QueueError:
            # Nothing ran yet: give the lease back if possible; otherwise it runs out, and the sweeper continues.
            with contextlib.suppress(QueueError):
                self.leases.give_back(path, taken.lease, taken.written.etag, taken.written.at)
            raise

    def _is_late(self, path: str, lease: Lease, written: Written, permit: Permit | None) -> bool:
        """Whether the lease was written so late that the limit counts this call no more; then it was given back."""
        if permit is None or permit.confirm(written.at, lease.fence):
            return False
        self.queue.held_back += 1
        with contextlib.suppress(LeaseLost):
            self.leases.give_back(path, lease, written.etag, written.at)
        return True

    def _read_message(self, path: str, taken: _Taken, before: float, permit: Permit | None) -> Claim | None:
        try:
            found = self.queue.store.open(self.queue.keys.message(path))
        except AccessDenied as refused:
            self._fail_unreadable(path, taken, before, refused)
            self.queue.in_vain += 1  # not before: a claim that is given back is found again at once
            return None
        if found is None:
            self._end_vanished(path, taken, before)
            return None
        message = message_of(self.queue, path, found)
        expected = taken.lease.leased_etag
        if expected and expected != message.generation.etag:
            # The name was PUT anew, and attempts belong to a generation.  [P5]
            self._write(path, taken, taken.lease.anew(message))
            if self._is_late(path, taken.lease, taken.written, permit):
                return None
        claim = self._claimed(message, taken.lease, taken.written, before)
        must_look = taken.former is not None or is_once(path, message.metadata)
        record = self.leases.outcomes.read(path) if must_look else None
        if record and record.generation == message.generation:
            self.leases.finish(claim, record)
            return None
        if record and was_finished(path, message.metadata, record):
            self.leases.clear_repeated(claim, record)
            return None
        if taken.lease.generation not in (None, message.generation):
            # Equal bytes were PUT anew. They are one message, with its attempts, unless that has its outcome.  [P1]
            # Named from now on: should that still come, by a zombie, these attempts are not what ended with it.  [P5]
            lease = taken.lease.on(message, claim.lease.claimed_at or claim.claimed_at)
            if record and taken.former and taken.former.is_ended_by(record):
                self.queue.perform(record)
                lease = taken.lease.anew(message)
            self._write(path, taken, lease)
            if self._is_late(path, taken.lease, taken.written, permit):
                return None
            claim = self._claimed(message, taken.lease, taken.written, before)
        self.leases.log_step("claimed", claim, claim.lease.owner)
        self.leases.emit("message.claimed", claim)
        return claim

    def _write(self, path: str, taken: _Taken, lease: Lease) -> None:
        taken.lease, taken.written = self.leases.put_lease(path, lease, if_match=taken.written.etag)

    def _claimed(self, message: Message, lease: Lease, written: Written, before: float) -> Claim:
        lease = lease.on(message, lease.claimed_at or written.at)
        return Claim(
            message=message,
            lease=lease,
            lease_etag=written.etag,
            claimed_at=written.at,
            since=before,
            leased_until=before + lease.timeout.total_seconds(),
            clock=self.queue.clock,
            fence=lease.fence,
            lines=lease.lines or Lines(),
        )

    def _end_vanished(self, path: str, taken: _Taken, before: float) -> None:
        """The message is gone: someone deleted it, or finished it and died before its lease was deleted.  [P1] [P7]"""
        lease, written = taken.lease, taken.written
        if taken.former:
            until = before + lease.timeout.total_seconds()
            self.leases.record_vanished(path, lease, written.at, lambda: self.queue.clock.monotonic() < until)
        delete_unique(self.queue.store, self.queue.keys.lease(path), if_match=written.etag)

    def _fail_unreadable(self, path: str, taken: _Taken, before: float, refused: AccessDenied) -> None:
        """A message whose GET is refused has had an attempt: it would be claimed and given back for ever.  [P5]"""
        _log.error("message cannot be read, attempt failed: %s/%s: %s", self.queue.name, path, refused)
        info = self.queue.list_message(path)
        if info is None:
            self._end_vanished(path, taken, before)
            return
        lease, generation = taken.lease, Generation(etag=info.etag, put_at=info.modified_at)
        # Its put id says who has to know what becomes of it: a flow, or whoever stores it a second time.  [P8]
        metadata = described_metadata(self.queue, path, generation.etag)
        message = Message(queue=self.queue.name, path=path, generation=generation, size=info.size)
        if metadata is not None:
            message = replace(message, metadata=metadata)
        known = told_by(lease, generation) if metadata is None else metadata
        if lease.leased_etag not in ("", generation.etag):
            # The name was PUT anew; the attempt is its first. What becomes of it is written with the failure.  [P5]
            lease = replace(lease.anew(message), fence=lease.fence)
        claim = self._claimed(message, lease, taken.written, before)
        record = self.leases.outcomes.read(path)
        if record and record.generation == generation:
            self.leases.finish(claim, record)
            return
        if record and known is not None and was_finished(path, known, record):
            # A late repetition. Its death would take the place of the outcome.  [P3]
            self.leases.clear_repeated(claim, record)
            return
        if record and taken.former and taken.former.is_ended_by(record):
            # Equal bytes that were PUT after the outcome: the attempt is their first, too.
            self.queue.perform(record)
            lease = replace(lease.anew(message), fence=lease.fence)
            claim = self._claimed(message, lease, taken.written, before)
        is_last = not self.queue.settings.retry.can_retry(claim.attempt)
        if is_last and known is None and may_be_finished(path, record):
            self.leases.put_off(claim, Failure.of(refused))
        else:
            self.leases.fail(claim, refused)
