"""LeaseProtocol: what PROTOCOL.md does with a message once it is claimed: complete, fail, bury, extend, release.

Every write is conditional or safe to repeat; after an unknown answer the object is read (`store.put_surely`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from s3queue.clock import as_duration, whole_second
from s3queue.documents.lease import GRAIN, NEVER, Lease
from s3queue.documents.message import Generation
from s3queue.documents.once import is_once
from s3queue.documents.record import Failure, Outcome, Record
from s3queue.documents.sends import Send, are_large
from s3queue.encoding import Returned, sized_result
from s3queue.errors import AccessDenied, AttemptFailed, InvalidRequest, LeaseLost, Reject, Unavailable
from s3queue.events import Event, InProcess
from s3queue.store import ObjectInfo

from .claim import Claim
from .lease_writes import LeaseWrites

_log = logging.getLogger(__name__)
ENDED: dict[Outcome, Event] = {
    "completed": "message.completed",
    "dead": "message.dead",
    "cancelled": "message.cancelled",
}


@dataclass(frozen=True, slots=True)
class LeaseProtocol(LeaseWrites):
    """What workers and the sweeper do with the leased messages of one queue. `Queue` documents the caller's side."""

    def finish(self, claim: Claim, record: Record) -> None:
        """Delete a message whose outcome was recorded, but which was not deleted.  [P4] [P6]

        Raises:
            LeaseLost: the claim ran out meanwhile; whoever claims the message next continues.
        """
        claim.check_alive()
        self._send(claim, record)
        try:
            self._finish(claim, record)
        except (AccessDenied, Unavailable):
            # It is finished when that is allowed again, however late: until then its record must not expire.  [P3]
            from .record_renewal import renew

            renew(self.queue, record)
            raise

    def _finish(self, claim: Claim, record: Record) -> None:
        lines = claim.lease.lines
        # The lease of a batch knows which of its lines died before its record does. One that knows of none is that of
        # an upload of equal bytes with the same date, which came when all had been done: the letter, too.  [P1] [P3]
        is_done = record.dead_lines and not (lines and (lines.done or lines.dead))
        if self.queue.settings.dead_letters and (record.outcome == "dead" or record.dead_lines) and not is_done:
            claim.check_alive()
            is_moved = self.outcomes.move_to_dead(record, self._stored(claim), lines)
            claim.check_alive()
            if not is_moved:
                self._park(claim)
                return
        claim.check_alive()
        self._keep(claim, record)
        claim.superseded = self.outcomes.clear(claim.path, record.generation, claim.lease_etag, claim.is_alive)

    def complete(self, claim: Claim, result: Any = None, *, sends: Sequence[Send] = (), clear: bool = True) -> Record:
        """PUT the record, PUT the sends, COPY a payload to keep, DELETE message and lease.  [P1] [P3] [P7]"""
        lines = claim.lines
        if claim.sent_before is None:
            if lines.sends:
                self.make_room(claim, sends)
            claim.sent_before = tuple(lines.sends), len(lines.outbox)
        before, parts = claim.sent_before
        # Not added once more: a second call, after an unknown answer, brings the same ones, and may find them staged.
        if len(lines.outbox) == parts:
            lines.sends = [*before, *sends]
            self.stage(claim)
        kept, problem, size = sized_result(result)
        record = replace(self._record(claim, "completed"), result=kept, result_error=problem)
        value = result.value if isinstance(result, Returned) else result
        return self._complete(claim, record, value, size, clear=clear)

    def complete_lines(self, claim: Claim, total: int, *, clear: bool = True) -> Record:
        """As `complete`; if a line is dead, as `bury`: a burying lease first, then the dead letters.  [P1] [P3]"""
        claim.lines.total = total
        if claim.lines.dead:
            return self.bury(claim, next(iter(claim.lines.dead.values())))
        record = replace(self._record(claim, "completed"), lines=claim.lines.summary())
        return self._complete(claim, record, dict(claim.lines.results), claim.lines.results_bytes, clear=clear)

    def stage(self, claim: Claim) -> None:
        """Write the sends so far to `outbox/` if a record or lease would become too large with them.  [P7]

        Raises:
            InvalidRequest: they are too many or too large; nothing was written.
        """
        lines = claim.lines
        if lines.sends:
            from s3queue.documents.sent_objects import check_sends

            check_sends(lines.sends, of_batch=claim.message.is_batch)
            if are_large(lines.sends):
                self._stage(claim)

    def make_room(self, claim: Claim, sends: Sequence[Send]) -> None:
        """Stage the sends of former lines if those of this one, each within the limits, are too many with them."""
        from s3queue.documents.sent_objects import check_sends

        try:
            check_sends([*claim.lines.sends, *sends], of_batch=True)
        except InvalidRequest:
            if claim.lines.sends:
                self._stage(claim)

    def _stage(self, claim: Claim) -> None:
        from .outbox import stage

        claim.lines.outbox.append(stage(self.queue, claim.lines.sends))
        claim.lines.sends.clear()

    def _complete(self, claim: Claim, record: Record, result: Any, result_size: int, *, clear: bool) -> Record:
        history = self.queue.settings.history
        if not history and record.has_sends:
            # Without history a zombie's completion does not count: who would find its sends, should it crash now?
            claim.check_alive()
        is_recorded = history or record.has_sends or is_once(claim.path, claim.message.metadata)
        if is_recorded:
            record = self.outcomes.write_record(record, claim.is_alive, partial(self._check_held, claim))
            self.log_step("recorded", claim, record.outcome)
            claim.record = record
        if record.generation != claim.message.generation:
            pass  # a zombie whose message was PUT anew and finished since: nothing of it is left to clear
        else:
            self._send(claim, record)
            if clear or not is_recorded:
                self.clear(claim)
            else:
                claim.is_recorded = True
        local = InProcess(claim, result=result)
        self.emit(ENDED[record.outcome], claim, local, outcome=record.outcome, result_size=result_size)
        return record

    def _check_held(self, claim: Claim, recorded_at: datetime) -> None:
        """End a claim that an operator has released, if others may have finished the message since: one HEAD, only if
        an outcome was recorded after the claim was made. An equal message that was PUT since is not its to delete.
        """
        if claim.is_alive() and recorded_at >= claim.claimed_at - GRAIN:
            held = self.queue.store.head(self.queue.keys.lease(claim.path))
            if held is None or held.etag != claim.lease_etag:
                claim.end()

    def _send(self, claim: Claim, record: Record) -> None:
        """Store what the recorded completion has sent, whoever's that was, before its message goes.  [P7]"""

        def renew() -> None:
            # Many sends may outlast a lease, and whoever takes it over begins anew. Without it, they may still be made.
            if claim.is_alive() and claim.remaining() < claim.lease.timeout / 2:
                with contextlib.suppress(LeaseLost):
                    self.extend(claim)

        self.queue.perform(record, renew)

    def clear_repeated(self, claim: Claim, record: Record) -> None:
        """Delete a late repetition of a message that has this outcome.  [P1] [P7]

        The lease names that outcome's generation first: should this end between the two deletes, nobody takes the
        repetition for a message that someone else deleted.
        """
        self.write(claim, replace(claim.lease, state="burying", generation=record.generation))
        self.clear(claim)

    def clear(self, claim: Claim) -> None:
        """COPY the payload if it is to be kept; DELETE the message, then the lease."""
        if claim.record and claim.is_alive():
            with contextlib.suppress(LeaseLost):
                self._keep(claim, claim.record)
        # A zombie's completion counts, but it deletes nothing: equal bytes that were PUT again have the same ETag.
        if claim.is_alive():
            is_repeated, claim.is_clearing = claim.is_clearing, True
            claim.superseded = self.outcomes.clear(
                claim.path, claim.message.generation, claim.lease_etag, claim.is_alive, is_repeated=is_repeated
            )
            self.log_step("cleared", claim)
        else:
            self.log_step("not cleared, the lease ran out", claim)
        claim.is_recorded = False

    def _keep(self, claim: Claim, record: Record) -> None:
        """COPY the payload to `done/` if the record says so, before the message goes; the sweeper repeats it.  [P6]

        Raises:
            LeaseLost: the lease ran out meanwhile: nothing may be deleted any more.
        """
        if record.keeps_payload and record.outcome == "completed":
            from .keeping import keep_payload

            keep_payload(self.queue.store, self.queue.keys, record, self._stored(claim))
            self.log_step("payload kept", claim)
            claim.check_alive()

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
            return self.bury(claim, failure, error)
        after = retry.delay(claim.attempt, self.queue.chance)
        if retry_after is not None:
            after = as_duration(retry_after, "retry_after")
        retry_at = whole_second(claim.now() + after)
        waiting = replace(
            claim.lease, state="waiting", retry_at=retry_at, failure=failure, attempts=claim.tried(failure)
        )
        self.write(claim, replace(waiting, lines=claim.progressed()))
        self.remind(claim.path, retry_at)
        self.log_step("waiting", claim, f"until {retry_at:%H:%M:%S}, {failure.type}")
        local = InProcess(claim, as_exception(error, failure))
        self.emit("message.retry", claim, local, error=failure.message, error_type=failure.type, retry_at=retry_at)
        return claim.lease

    def bury(self, claim: Claim, failure: Failure, error: BaseException | Failure | str | None = None) -> Record:
        """PUT the burying lease first: only its holder may call a message dead, and the sweeper can continue.  [P6]"""
        lines = self._begin_burial(claim, failure).lines
        is_finished = lines is not None and lines.total is not None and bool(lines.done)
        record = self._record(claim, "completed" if is_finished else "dead", failure)
        if lines:
            record = replace(record, lines=lines.summary())
        keeps_letters = self.queue.settings.dead_letters
        recorded, is_moved = self.outcomes.bury(
            record, self._stored(claim), lines, claim.check_alive, claim.is_alive, keeps_letters=keeps_letters
        )
        is_ours = recorded.generation == claim.message.generation
        if is_ours and (recorded.has_sends or recorded.is_member):
            self._send(claim, recorded)
            claim.check_alive()
        if not is_moved:
            self._park(claim)
        elif is_ours:
            self._keep(claim, recorded)
            claim.superseded = self.outcomes.clear(
                claim.path, claim.message.generation, claim.lease_etag, claim.is_alive
            )
        self.log_step("buried" if is_moved else "buried where it lies, nobody can read it", claim, recorded.outcome)
        local = InProcess(claim, as_exception(error or failure, failure), dict(claim.lines.results))
        described = {"outcome": recorded.outcome, "error": failure.message, "error_type": failure.type}
        self.emit(ENDED[recorded.outcome], claim, local, **described)
        return recorded

    def put_off(self, claim: Claim, failure: Failure) -> None:
        """Bury a message later: it has had its attempts, but nobody may describe it.

        It may be a late repetition of what has an outcome, whose place its death would take, or a replay of what has
        died, which is not to be deleted. The sweeper looks again when the lease is over.  [P1] [P3] [P5]
        """
        self._begin_burial(claim, failure)
        self.log_step("burial put off, it may have been finished before", claim)

    def _begin_burial(self, claim: Claim, failure: Failure) -> Lease:
        attempts = claim.lease.attempts if claim.lease.state == "burying" else claim.tried(failure)
        lease = replace(claim.lease, state="burying", failure=failure, attempts=attempts, lines=claim.progressed())
        self.write(claim, lease)
        self.log_step("burying", claim, failure.type)
        return lease

    def _park(self, claim: Claim) -> None:
        """Keep a dead message that nobody can read where it is: a lease that never becomes due keeps workers off.  [P1]

        Its dead letter stands for it: a replay or a deletion of that letter takes the lease away; so does a new PUT of
        the name, see `restart`.
        """
        self.write(claim, replace(claim.lease, state="waiting", retry_at=NEVER))

    def record_vanished(self, path: str, lease: Lease, at: datetime, is_alive: Callable[[], bool]) -> None:
        """Record that someone deleted a claimed message, unless it was finished before.  [P1] [P7]"""
        record = self.outcomes.read(path)
        if record:
            self.queue.perform(record)
        if lease.generation is None or not self.queue.settings.history:
            return
        if record is None or not is_outcome_of(record, lease.generation):
            self.outcomes.write_record(lease.vanished(path, at, lease.owner), is_alive)

    def _stored(self, claim: Claim) -> ObjectInfo:
        return claim.message.stored(self.queue.keys.message(claim.path), claim.now())

    def _record(self, claim: Claim, outcome: Outcome, failure: Failure | None = None) -> Record:
        # Of a batch that died, the lines that were done have sent something.
        is_sending = outcome == "completed" or bool(claim.lines.done)
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
            # Who could not read the message does not know its put id; who claimed it before may have.
            put_id=claim.message.put_id or claim.lease.put_id,
            sends=tuple(claim.lines.sends) if is_sending else (),
            outbox=tuple(claim.lines.outbox) if is_sending else (),
            keeps_payload=self.queue.settings.keep_payload and outcome == "completed",
            # The lease of a partition has its outcomes in itself: there is nothing to tell apart.
            fence="" if claim.within else claim.lease.fence,
        )


def as_exception(error: BaseException | Failure | str, failure: Failure) -> BaseException:
    """For hooks: what was raised; if nothing was, an exception that says what was stored."""
    return error if isinstance(error, BaseException) else AttemptFailed(failure.type, failure.message)


def is_outcome_of(record: Record, generation: Generation) -> bool:
    """Whether this record is the outcome of the generation that a lease names. Equal bytes are the same message while
    it is at work, so their dates do not matter; but if they had died before, they were PUT anew, by a replay.
    """
    if record.generation.etag != generation.etag:
        return False
    return record.outcome != "dead" or record.generation.put_at >= generation.put_at
