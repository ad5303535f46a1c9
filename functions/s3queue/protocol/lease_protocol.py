"""LeaseProtocol: what PROTOCOL.md does with a message once it is claimed: complete, fail, bury, extend, release.

Every write is conditional or safe to repeat; after an unknown answer the object is read (`store.put_surely`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from s3queue.clock import as_duration, as_positive_duration, whole_second
from s3queue.documents.lease import NEVER, Lease
from s3queue.documents.message import Generation
from s3queue.documents.record import Failure, Outcome, Record
from s3queue.encoding import storable
from s3queue.errors import Conflict, LeaseLost, NewerFormat, QueueError, Reject, Unavailable
from s3queue.events import Event
from s3queue.store import ObjectInfo, Written, delete_unique, put_surely

from .access import QueueAccess
from .claim import Claim
from .outcomes import Outcomes

_ENDED: dict[Outcome, Event] = {
    "completed": "message.completed",
    "dead": "message.dead",
    "cancelled": "message.cancelled",
}


@dataclass(frozen=True, slots=True)
class LeaseProtocol:
    """What workers and the sweeper do with the leased messages of one queue. `Queue` documents the caller's side."""

    queue: QueueAccess
    outcomes: Outcomes

    def finish(self, claim: Claim, record: Record) -> None:
        """Delete a message whose outcome was recorded, but which was not deleted.  [P4] [P6]

        Raises:
            LeaseLost: the claim ran out meanwhile; whoever claims the message next continues.
        """
        claim.check_alive()
        if self.queue.settings.dead_letters and (record.outcome == "dead" or record.dead_lines):
            is_moved = self.outcomes.move_to_dead(record, self._stored(claim), claim.lease.lines)
            claim.check_alive()
            if not is_moved:
                self._park(claim)
                return
        claim.superseded = self.outcomes.clear(claim.path, record.generation, claim.lease_etag, claim.is_alive)

    def complete(self, claim: Claim, result: Any = None, *, clear: bool = True) -> Record:
        """PUT the record, DELETE the message, DELETE the lease, in this order.  [P1] [P3]"""
        kept, problem = storable(result)
        record = replace(self._record(claim, "completed"), result=kept, result_error=problem)
        return self._complete(claim, record, clear=clear)

    def complete_lines(self, claim: Claim, total: int, *, clear: bool = True) -> Record:
        """As `complete`; if a line is dead, as `bury`: a burying lease first, then the dead letters.  [P1] [P3]"""
        claim.lines.total = total
        if claim.lines.dead:
            return self.bury(claim, next(iter(claim.lines.dead.values())))
        record = replace(self._record(claim, "completed"), lines=claim.lines.summary())
        return self._complete(claim, record, clear=clear)

    def _complete(self, claim: Claim, record: Record, *, clear: bool) -> Record:
        if self.queue.settings.history or claim.message.is_once:
            record = self.outcomes.write_record(record, claim.is_alive)
        if record.generation != claim.message.generation:
            pass  # a zombie whose message was PUT anew and finished since: nothing of it is left to clear
        elif clear or not self.queue.settings.history:
            self.clear(claim)
        else:
            claim.is_recorded = True
        name: Event = "message.cancelled" if record.outcome == "cancelled" else "message.completed"
        self.emit(name, claim, outcome=record.outcome)
        return record

    def clear(self, claim: Claim) -> None:
        """DELETE the message, then the lease."""
        # A zombie's completion counts, but it deletes nothing: equal bytes that were PUT again have the same ETag.
        if claim.is_alive():
            is_repeated, claim.is_clearing = claim.is_clearing, True
            claim.superseded = self.outcomes.clear(
                claim.path, claim.message.generation, claim.lease_etag, claim.is_alive, is_repeated=is_repeated
            )
        claim.is_recorded = False

    def fail(
        self,
        claim: Claim,
        error: BaseException | Failure | str,
        *,
        retry_after: float | timedelta | None = None,
        dead: bool = False,
    ) -> Lease | Record:
        """PUT the waiting lease, then the reminder; or `bury`.  [P5]"""
        failure = Failure.of(error)
        retry = self.queue.settings.retry
        if dead or isinstance(error, Reject) or not retry.can_retry(claim.attempt):
            return self.bury(claim, failure)
        after = retry.delay(claim.attempt, self.queue.chance)
        if retry_after is not None:
            after = as_duration(retry_after, "retry_after")
        retry_at = whole_second(claim.now() + after)
        waiting = replace(
            claim.lease, state="waiting", retry_at=retry_at, failure=failure, attempts=claim.tried(failure)
        )
        self.write(claim, replace(waiting, lines=claim.progressed()))
        self.remind(claim.path, retry_at)
        self.emit("message.retry", claim, error=failure.message, error_type=failure.type, retry_at=retry_at)
        return claim.lease

    def bury(self, claim: Claim, failure: Failure) -> Record:
        """PUT the burying lease first: only its holder may call a message dead, and the sweeper can continue.  [P6]"""
        lines = claim.progressed()
        attempts = claim.lease.attempts if claim.lease.state == "burying" else claim.tried(failure)
        self.write(claim, replace(claim.lease, state="burying", failure=failure, attempts=attempts, lines=lines))
        is_finished = lines is not None and lines.total is not None and bool(lines.done)
        record = self._record(claim, "completed" if is_finished else "dead", failure)
        if lines:
            record = replace(record, lines=lines.summary())
        keeps_letters = self.queue.settings.dead_letters
        recorded, is_moved = self.outcomes.bury(
            record, self._stored(claim), lines, claim.check_alive, claim.is_alive, keeps_letters=keeps_letters
        )
        if not is_moved:
            self._park(claim)
        elif recorded.generation == claim.message.generation:
            claim.superseded = self.outcomes.clear(
                claim.path, claim.message.generation, claim.lease_etag, claim.is_alive
            )
        self.emit(
            _ENDED[recorded.outcome], claim, outcome=recorded.outcome, error=failure.message, error_type=failure.type
        )
        return recorded

    def _park(self, claim: Claim) -> None:
        """Keep a dead message that nobody can read where it is: a lease that never becomes due keeps workers off.  [P1]

        Its dead letter stands for it: a replay or a deletion of that letter takes the lease away; so does a new PUT of
        the name, see `restart`.
        """
        self.write(claim, replace(claim.lease, state="waiting", retry_at=NEVER))

    def extend(self, claim: Claim, timeout: float | timedelta | None = None) -> None:
        """PUT the lease again; its age counts from then.  [P2]"""
        limit = claim.lease.timeout if timeout is None else as_positive_duration(timeout, "the timeout of a claim")
        self.write(claim, replace(claim.lease, timeout=limit, lines=claim.progressed()))

    def release(self, claim: Claim) -> None:
        """`give_back` with the progress of a batch's lines.  [P5]"""
        lease = replace(claim.lease, lines=claim.progressed())
        self.give_back(claim.path, lease, claim.lease_etag, claim.now())
        self.emit("message.released", claim)

    def give_back(self, path: str, lease: Lease, etag: str, now: datetime) -> None:
        """Undo a claim in which nothing was started, whoever made it: DELETE the lease of a first attempt, else PUT it
        as waiting, with the attempt not counted.  [P5]

        Raises:
            LeaseLost: the lease no longer has this ETag.
        """
        is_first = lease.attempt == 1 and not lease.attempts and lease.lines is None
        if is_first and not self._is_finished(path, lease):
            if not delete_unique(self.queue.store, self.queue.keys.lease(path), if_match=etag):
                raise LeaseLost(f"lease lost: {self.queue.name}/{path}: another worker has the message")
            return
        retry_at = whole_second(now)
        waiting = replace(lease, state="waiting", attempt=lease.attempt - 1, retry_at=retry_at)
        try:
            self.put_lease(path, waiting, if_match=etag)
        except Conflict as conflict:
            raise LeaseLost(str(conflict)) from conflict
        self.remind(path, retry_at)

    def _is_finished(self, path: str, lease: Lease) -> bool:
        """Whether the message has an outcome, or that is unknown. Who claims a message without a lease does not look
        for a record, and would run what an operator has cancelled.
        """
        try:
            record = self.outcomes.read(path)
        except (Unavailable, NewerFormat):
            return True
        return record is not None and record.generation.etag == lease.leased_etag

    def write(self, claim: Claim, lease: Lease) -> None:
        """Replace the claim's lease, and move its deadline with it.  [P2]

        Raises:
            LeaseLost: another worker has the lease.
        """
        before = self.queue.clock.monotonic()
        try:
            claim.lease, written = self.put_lease(claim.path, lease, if_match=claim.lease_etag)
        except Conflict as conflict:
            claim.end()
            raise LeaseLost(f"{self.queue.name}/{claim.path}: {conflict}") from conflict
        claim.lease_etag = written.etag
        # Also if that is sooner than before; what the heartbeat has promised stays promised.
        claim.leased_until = before + lease.timeout.total_seconds()

    def remind(self, path: str, at: datetime) -> None:
        """A hint for the sweeper. Without it, the sweeper still finds the waiting lease, only later."""
        with contextlib.suppress(QueueError):
            self.queue.store.put(self.queue.keys.reminder(at, path), b"")

    def forget(self, reminder: str) -> None:
        """Delete a reminder that was followed, whether or not the claim succeeded: it says nothing new. One that is
        written again at the same second goes too; then the sweeper finds the waiting lease, only later.
        """
        if reminder:
            with contextlib.suppress(QueueError):
                self.queue.store.delete(reminder)

    def record_vanished(self, path: str, lease: Lease, at: datetime, is_alive: Callable[[], bool]) -> None:
        """Record that someone deleted a claimed message, unless it was finished before.  [P1]"""
        if lease.generation is None or not self.queue.settings.history:
            return
        record = self.outcomes.read(path)
        if record is None or not _is_outcome_of(record, lease.generation):
            failure = Failure("MessageVanished", "someone deleted the message before it was finished; not s3queue")
            self.outcomes.write_record(
                Record(
                    path=path,
                    outcome="dead",
                    generation=lease.generation,
                    finished_at=at,
                    attempt=lease.attempt,
                    worker=lease.owner,
                    attempts=lease.attempts,
                    failure=failure,
                ),
                is_alive,
            )

    def put_lease(self, path: str, lease: Lease, *, if_match: str | None) -> tuple[Lease, Written]:
        """Create or replace a lease with a fresh nonce; returns what was written.

        Raises:
            Conflict: someone else was first.
        """
        nonce = self.queue.chance.token()
        lease = replace(lease, nonce=nonce, fence=lease.fence or f"{lease.attempt}-{nonce}")
        key = self.queue.keys.lease(path)
        return lease, put_surely(self.queue.store, key, lease.to_bytes(), if_match=if_match, if_absent=if_match is None)

    def _stored(self, claim: Claim) -> ObjectInfo:
        return claim.message.stored(self.queue.keys.message(claim.path), claim.now())

    def _record(self, claim: Claim, outcome: Outcome, failure: Failure | None = None) -> Record:
        return Record(
            path=claim.path,
            outcome=outcome,
            generation=claim.message.generation,
            finished_at=claim.now(),
            attempt=claim.attempt,
            worker=claim.lease.owner,
            attempts=claim.lease.attempts if claim.lease.state == "burying" else claim.tried(failure),
            failure=failure,
            size=claim.message.size,
            put_id=claim.message.put_id,
        )

    def emit(self, name: Event, claim: Claim, **fields: Any) -> None:
        self.queue.events.emit(
            name,
            queue=self.queue.name,
            path=claim.path,
            attempt=claim.attempt,
            worker=claim.lease.owner,
            at=claim.now(),
            enqueued_at=claim.message.enqueued_at,
            claimed_at=claim.claimed_at,
            **fields,
        )


def _is_outcome_of(record: Record, generation: Generation) -> bool:
    """Whether this record is the outcome of the generation that a lease names. Equal bytes are the same message while
    it is at work, so their dates do not matter; but if they had died before, they were PUT anew, by a replay.
    """
    if record.generation.etag != generation.etag:
        return False
    return record.outcome != "dead" or record.generation.put_at >= generation.put_at
