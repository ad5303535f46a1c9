"""How the holder of a partition reads a message that it has taken: it runs, or there is a reason why not.  [P9]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from s3queue.documents.lease import NEVER
from s3queue.documents.message import Generation, Message
from s3queue.documents.once import is_once, may_be_finished, told_by, was_finished
from s3queue.documents.partition import Waiting
from s3queue.documents.record import Failure, Record
from s3queue.errors import AccessDenied, Unavailable
from s3queue.paths import is_batch
from s3queue.protocol.claim import Claim
from s3queue.protocol.journal import find_outcome
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.opening import described_metadata
from s3queue.store import ObjectInfo

from .partition_clearing import Clearing
from .partition_journals import HeldJournals
from .read_ahead import ReadAhead

if TYPE_CHECKING:
    from .partition_hold import Hold


@dataclass(slots=True)
class PartitionReading:
    """Reads the messages of one held partition. Safe for threads, as the hold is, to which it tells what it finds."""

    _hold: Hold
    _clearing: Clearing
    _journals: HeldJournals
    _ahead: ReadAhead

    def open(self, path: str, info: ObjectInfo) -> Claim | None:
        """Read a message; None if it does not have to run, or may not now."""
        queue = self._hold.queue
        permit = None
        queue.follow_limits()
        if gate := queue.gate:
            permit = None if gate.wait(path) > 0 else gate.enter(path)
            if permit is None:
                self._hold_back(path)
                return None
        before = queue.clock.monotonic()
        claim: Claim | None = None
        try:
            claim = self._read(path, info, before)
            if claim and permit and not permit.confirm(claim.claimed_at, claim.fence):
                queue.hold_back(path)
                self._hold.put_back(path)
                claim = None
        finally:
            if permit and claim is None:
                permit.cancel()
        if claim:
            self._hold.leases.log_step("claimed", claim, claim.lease.owner)
            LeaseProtocol.emit(self._hold.leases, "message.claimed", claim)
        return claim

    def _hold_back(self, path: str) -> None:
        """The gate does not permit it now. With a rate for each folder, the messages of other folders may still run."""
        gate = self._hold.queue.gate
        self._hold.queue.hold_back(path)
        if gate and self._hold.messages.is_by_folder and gate.wait(path) > 0 and not gate.wait_for_any():
            self._hold.skip(path)
        else:
            self._hold.put_back(path)

    def _read(self, path: str, info: ObjectInfo, before: float) -> Claim | None:
        try:
            return self._look(path, info, before)
        except AccessDenied as refused:
            self._refuse(path, info, before, refused)
        except Unavailable as problem:
            # Also without an answer an attempt counts: who cannot be read must not hold the others up for ever.
            claim = self._unread(path, info, before)
            if self._hold.waiting(path) is None:
                # Nobody knows yet that it is there: the LIST may be older than the lease, and another holder may have
                # finished the message in between, and deleted its own lease. It waits, and what a LIST shows while a
                # lease names it so is there.  [P3]
                after = self._hold.queue.settings.retry.delay(claim.attempt, self._hold.queue.chance)
                self._hold.leases.postpone(claim, after, is_asked=False)
            else:
                self._fail_unread(claim, problem)
            self._hold.close()
        return None

    def _refuse(self, path: str, info: ObjectInfo, before: float, refused: AccessDenied) -> None:
        """Its GET was refused: an attempt of what lies there, which may be another message than the LIST has shown."""
        found = self._hold.queue.list_message(path)
        if found is None:
            self._hold.miss(path)
        elif found.etag != info.etag:
            self._hold.look_again(path)
        else:
            metadata = described_metadata(self._hold.queue, path, found.etag)
            claim = self._unread(path, found, before, metadata)
            if metadata is None:
                self._fail_unread(claim, refused)
            elif not self._is_repeated(claim.message):
                self._hold.leases.fail(claim, refused)

    def _fail_unread(self, claim: Claim, problem: Unavailable | AccessDenied) -> None:
        """An attempt of a message that nobody could describe. Not its last one if it may be a late repetition: its
        death would take the place of the outcome. It waits until someone can tell.  [P3] [P5]
        """
        retry, waiting = self._hold.queue.settings.retry, self._hold.waiting(claim.path)
        known = told_by(waiting.lease, claim.message.generation) if waiting else None
        if known is not None and self._is_repeated(replace(claim.message, metadata=known)):
            return
        if known is None and not retry.can_retry(claim.attempt) and self._may_be_repeated(claim.path):
            after = retry.delay(claim.attempt, self._hold.queue.chance)
            self._hold.leases.postpone(claim, after, is_asked=False)
        else:
            self._hold.leases.fail(claim, problem)

    def _may_be_repeated(self, path: str) -> bool:
        try:
            record = self._hold.ended_here(path, "") or find_outcome(self._hold.queue, path, keep=self._journals.keep)
        except Unavailable:
            return True
        return may_be_finished(path, record)

    def _unread(self, path: str, info: ObjectInfo, before: float, metadata: Mapping[str, str] | None = None) -> Claim:
        """The claim of a message of which no more is known than a LIST shows, and its metadata at best."""
        generation = Generation(etag=info.etag, put_at=info.modified_at)
        message = Message(queue=self._hold.queue.name, path=path, generation=generation, size=info.size)
        message = message if metadata is None else replace(message, metadata=metadata)
        known = self._clearing.read.get(path)
        if known is None or known.etag != info.etag:
            self._clearing.read[path] = info
        return self._hold.leases.claim(message, self._hold.waiting(path), info.at, before)

    def _look(self, path: str, info: ObjectInfo, before: float) -> Claim | None:
        read = self._ahead.read(path, info, before)
        if read is None:
            self._hold.miss(path)
            return None
        message = read.message
        if message.generation.etag != info.etag:
            # The lease does not name what lies there now: should its worker die of it, nobody would know.  [P5]
            self._hold.look_again(path)
            return None
        self._clearing.read[path] = message.stored(info.key, read.at)
        # The attempt begins now, however early the message was read.
        claim = self._hold.leases.claim(message, self._hold.waiting(path), read.at_time(before), before)
        if self._is_repeated(message):
            return None
        if is_batch(path):
            said = "a batch cannot belong to a partition: put it under messages/, or enqueue its lines one by one"
            self._hold.leases.bury(claim, Failure("InvalidName", said))
            return None
        if claim.attempt > self._hold.queue.settings.max_attempts:
            # It is charged with the death of its last worker.
            claim.lease = replace(claim.lease, state="burying", attempt=claim.attempt - 1)
            failure = claim.lease.failure or Failure("LeaseExpired", "its workers died")
            self._hold.leases.bury(claim, failure)
            return None
        return claim

    def _is_repeated(self, message: Message) -> bool:
        """Whether it was finished before, and was PUT again since: the next commit deletes it."""
        path = message.path
        if not is_once(path, message.metadata):
            return False
        record = self._hold.ended_here(path, message.put_id) or self._journals.find(message)
        if not was_finished(path, message.metadata, record):
            return False
        self._hold.delete_repeated(path)
        return True


def vanished(waiting: Waiting, at: datetime, worker: str) -> Record | None:
    """The outcome of a message that waited, and that someone deleted; None if it has one, or had no attempt, or was
    being purged.
    """
    lease = waiting.lease
    # One that is parked for ever has its record.
    if lease.generation is None or not lease.attempt or lease.is_cancelling or waiting.retry_at == NEVER:
        return None
    return lease.vanished(waiting.path, at, worker)
