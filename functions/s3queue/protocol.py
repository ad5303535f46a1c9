"""The protocol of PROTOCOL.md: claim, complete, fail, extend, release, and what happens when an owner fell silent.

Every write is conditional or harmless to repeat; an unknown answer is settled by reading (`store.put_surely`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import IO, Any

from .batch import Lines
from .claim import Claim
from .clock import Chance, Clock, RandomChance, SystemClock
from .encoding import decode_metadata, storable
from .errors import Conflict, CorruptState, LeaseLost, NewerFormat, QueueError, Reject
from .events import Event, Events
from .keys import Keys, due_of
from .lease import Lease
from .message import INLINE_BYTES, Generation, Message
from .outcomes import Outcomes
from .record import Failure, Outcome, Record
from .settings import QueueSettings
from .store import Object, ObjectInfo, ObjectStore, Written, delete_surely, put_surely


@dataclass(slots=True, kw_only=True)
class LeaseProtocol:
    """What workers and the sweeper do with the messages of one queue."""

    store: ObjectStore
    name: str
    settings: QueueSettings = field(default_factory=QueueSettings)
    #: New at every start: a heartbeat or lease of an earlier life must not count for this one.
    worker_id: str = ""
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=RandomChance)
    events: Events = field(default_factory=Events)
    keys: Keys = field(init=False)
    outcomes: Outcomes = field(init=False)

    def __post_init__(self) -> None:
        self.keys = Keys(self.name)
        self.outcomes = Outcomes(self.store, self.keys, self.chance)
        self.worker_id = self.worker_id or f"worker-{self.chance.token()}"

    def claim(self, path: str, *, timeout: float | timedelta | None = None, look: bool = False) -> Claim | None:
        """Take the message at `path`; None if someone else has it, it is finished, or it is not due.  [P2]

        Without `look`, nothing is read first: an event is reason enough to try, and a lost try costs one PUT. With
        `look` (a late event, a retry, a rescue) the lease is read first, and one that waits and is due is taken over.

        Raises:
            Unavailable: unknown; the sweeper will look after it.
        """
        limit = as_duration(timeout) if timeout is not None else self.settings.visibility_timeout
        if path.endswith("/") and is_placeholder(self.store.head(self.keys.message(path))):
            return None
        problem = self.keys.problem(path)
        if problem:
            if self.outcomes.bury_misnamed(path, problem):
                self.events.emit("message.dead", queue=self.name, path=path, attempt=0, error=problem)
            return None
        due_at = due_of(path)
        # Whether a delayed message is due is S3's clock to say, so it is asked.
        if not look and due_at is None:
            return self._claim_first(path, limit)
        before = self.clock.monotonic()
        found = self.store.open(self.keys.lease(path))
        if found is None:
            stored = self.store.head(self.keys.message(path))
            is_due = stored is not None and (due_at is None or due_at <= stored.at)
            return self._claim_first(path, limit) if is_due else None
        try:
            lease = Lease.from_bytes(found.read(), found.key)
        except CorruptState:
            return None  # the sweeper buries it once it is old enough to be nobody's
        if lease.state != "waiting" or (lease.retry_at and lease.retry_at > found.at):
            return None
        mine = replace(
            lease,
            state="processing",
            attempt=lease.attempt + 1,
            owner=self.worker_id,
            timeout=limit,
            claimed_at=found.at,
            retry_at=None,
            progress=None,
        )
        return self._take(path, mine, before, if_match=found.etag)

    def adopt(self, path: str) -> Claim | None:
        """Go on with a message that was claimed in this worker's name elsewhere; None if it is not ours any more.

        The same attempt: whoever claimed it started nothing. Writing the lease anew makes sure that nobody else, who
        may have judged it just now, takes it too.  [P2] [P5]

        Raises:
            Unavailable: unknown; the sweeper will look after it.
        """
        before = self.clock.monotonic()
        found = self.store.open(self.keys.lease(path))
        if found is None:
            return None
        try:
            lease = Lease.from_bytes(found.read(), found.key)
        except CorruptState:
            return None
        if lease.state != "processing" or lease.owner != self.worker_id:
            return None
        mine = replace(lease, claimed_at=lease.claimed_at or found.modified_at)
        return self._take(path, mine, before, if_match=found.etag)

    def _claim_first(self, path: str, timeout: timedelta) -> Claim | None:
        before = self.clock.monotonic()
        lease = Lease(state="processing", attempt=1, owner=self.worker_id, nonce="", timeout=timeout)
        return self._take(path, lease, before, if_match=None)

    def _take(self, path: str, lease: Lease, before: float, *, if_match: str | None) -> Claim | None:
        """Write the lease, then look at what it leases. The deadline counts from before the request.  [P2] [P4]"""
        try:
            lease, written = self._put_lease(path, lease, if_match=if_match)
        except Conflict:
            self.events.emit("claim.lost", queue=self.name, path=path)
            return None
        try:
            return self._look_at(path, lease, written, before, is_first=if_match is None)
        except Conflict:
            return None  # it took so long that the lease is someone else's by now
        except NewerFormat:
            raise  # only a newer version can decide: a lease that was given back would be claimed again and again
        except QueueError:
            # Nothing ran yet: give it back if that can be done; else it runs out, and the sweeper goes on from there.
            with contextlib.suppress(QueueError):
                self.give_back(path, lease, written.etag, written.at)
            raise

    def _look_at(self, path: str, lease: Lease, written: Written, before: float, *, is_first: bool) -> Claim | None:
        found = self.store.open(self.keys.message(path))
        if found is None:
            if not is_first:
                self.record_vanished(path, lease, written.at)
            delete_surely(self.store, self.keys.lease(path), if_match=written.etag)
            return None
        message = self._message(path, found)
        if lease.generation and lease.generation.etag != message.generation.etag:
            # The name was PUT anew, and attempts belong to a generation.  [P5]
            lease = replace(lease, attempt=1, generation=None, failure=None, attempts=(), lines=None)
            lease, written = self._put_lease(path, lease, if_match=written.etag)
        claim = Claim(
            message=message,
            lease=replace(lease, generation=message.generation, claimed_at=lease.claimed_at or written.at),
            lease_etag=written.etag,
            claimed_at=written.at,
            since=before,
            deadline=before + lease.timeout.total_seconds(),
            clock=self.clock,
            fence=f"{lease.attempt}-{lease.nonce}",
            lines=lease.lines or Lines(),
        )
        record = None if is_first else self.outcomes.read(path)
        if record and record.generation == message.generation:
            self.finish(claim, record)
            return None
        self._emit("message.claimed", claim)
        return claim

    def _message(self, path: str, found: Object) -> Message:
        inline = None
        if found.size <= INLINE_BYTES:
            inline = found.read()
        else:
            found.stream.close()
        return Message(
            queue=self.name,
            path=path,
            generation=Generation(etag=found.etag, put_at=found.modified_at),
            size=found.size,
            metadata=decode_metadata(found.metadata),
            content_type=found.content_type,
            inline=inline,
            reopen=self._opener(path, found.etag),
        )

    def _opener(self, path: str, etag: str) -> Callable[[], IO[bytes] | None]:
        def reopen() -> IO[bytes] | None:
            try:
                found = self.store.open(self.keys.message(path), if_match=etag)
            except Conflict:
                return None
            return found.stream if found else None

        return reopen

    def finish(self, claim: Claim, record: Record) -> None:
        """Clear away a message that someone recorded and did not clear.  [P4] [P6]

        Raises:
            LeaseLost: the claim ran out on the way; the next one goes on.
        """
        claim.check_alive()
        if record.outcome == "dead" or record.dead_lines:
            self.outcomes.move_to_dead(record, self._stored(claim), claim.lease.lines)
            claim.check_alive()
        claim.superseded = self.outcomes.clear(claim.path, record.generation, claim.lease_etag, claim.is_alive)

    def complete(self, claim: Claim, result: Any = None) -> Record:
        """Record the outcome; the message will not run again.  [P1] [P3]

        If another worker finished the same message first, its record is kept and returned. A result that JSON cannot
        hold is noted as such: the work is done all the same.

        Raises:
            Unavailable: unknown whether it was recorded; calling again is safe.
        """
        kept, problem = storable(result)
        return self._complete(claim, replace(self._record(claim, "completed"), result=kept, result_error=problem))

    def complete_lines(self, claim: Claim, total: int) -> Record:
        """A batch whose every line is done or dead: one record, and a dead letter for each dead line.  [P1] [P3]

        Raises:
            LeaseLost: there are dead lines, and a zombie's failures never count.
        """
        claim.lines.total = total
        if claim.lines.dead:
            return self.bury(claim, next(iter(claim.lines.dead.values())))
        return self._complete(claim, replace(self._record(claim, "completed"), lines=claim.lines.summary()))

    def _complete(self, claim: Claim, record: Record) -> Record:
        if self.settings.history:
            record = self.outcomes.settle(record)
        # A zombie's completion counts, but it clears nothing: equal bytes PUT anew would look like the old ones.
        if claim.is_alive():
            is_repeated, claim.is_clearing = claim.is_clearing, True
            claim.superseded = self.outcomes.clear(
                claim.path, claim.message.generation, claim.lease_etag, claim.is_alive, is_repeated=is_repeated
            )
        self._emit("message.completed", claim, outcome=record.outcome)
        return record

    def fail(
        self,
        claim: Claim,
        error: BaseException | Failure | str,
        *,
        retry_after: float | timedelta | None = None,
        dead: bool = False,
    ) -> Lease | Record:
        """The attempt failed: the lease waits for the next one, or the message is buried.  [P5]

        `dead=True`, a `Reject`, or the last attempt buries it at once.

        Raises:
            LeaseLost: someone else has it by now; a zombie's failure never counts.
            Unavailable: unknown; the lease runs out, and the sweeper fails it.
        """
        failure = Failure.of(error)
        retry = self.settings.retry
        if dead or isinstance(error, Reject) or not retry.can_retry(claim.attempt):
            return self.bury(claim, failure)
        after = as_duration(retry_after) if retry_after is not None else retry.delay(claim.attempt, self.chance)
        retry_at = whole_second(claim.now() + after)
        waiting = replace(
            claim.lease, state="waiting", retry_at=retry_at, failure=failure, attempts=claim.tried(failure)
        )
        self.write(claim, replace(waiting, lines=claim.progressed()))
        self.remind(claim.path, retry_at)
        self._emit("message.retry", claim, error=failure.message, error_type=failure.type, retry_at=retry_at)
        return claim.lease

    def bury(self, claim: Claim, failure: Failure) -> Record:
        """The burying lease first: only its holder may call a message dead, and the sweeper can go on with it.  [P6]"""
        lines = claim.progressed()
        attempts = claim.lease.attempts if claim.lease.state == "burying" else claim.tried(failure)
        self.write(claim, replace(claim.lease, state="burying", failure=failure, attempts=attempts, lines=lines))
        is_finished = lines is not None and lines.total is not None and bool(lines.done)
        record = self._record(claim, "completed" if is_finished else "dead", failure)
        if lines:
            record = replace(record, lines=lines.summary())
        settled = self.outcomes.bury(record, self._stored(claim), lines, claim.check_alive)
        claim.superseded = self.outcomes.clear(claim.path, claim.message.generation, claim.lease_etag, claim.is_alive)
        name: Event = "message.completed" if settled.outcome == "completed" else "message.dead"
        self._emit(name, claim, outcome=settled.outcome, error=failure.message, error_type=failure.type)
        return settled

    def extend(self, claim: Claim, timeout: float | timedelta | None = None) -> None:
        """Keep the message for another `timeout` from now, and store the progress made so far.  [P2]

        Raises:
            LeaseLost: someone else has it by now.
        """
        limit = as_duration(timeout) if timeout is not None else claim.lease.timeout
        self.write(claim, replace(claim.lease, timeout=limit, lines=claim.progressed()))

    def release(self, claim: Claim) -> None:
        """Give the message back untouched: it is not an attempt. A batch keeps what its lines have come to.  [P5]

        Raises:
            LeaseLost: someone else has it by now.
        """
        lease = replace(claim.lease, lines=claim.progressed())
        self.give_back(claim.path, lease, claim.lease_etag, claim.now())
        self._emit("message.released", claim)

    def give_back(self, path: str, lease: Lease, etag: str, now: datetime) -> None:
        """Undo a claim in which nothing was started, whoever's it was.  [P5]

        Raises:
            LeaseLost: the lease is not the one with this ETag any more.
        """
        if lease.attempt == 1 and not lease.attempts and lease.lines is None:
            if not delete_surely(self.store, self.keys.lease(path), if_match=etag):
                raise LeaseLost(f"the lease on {self.name}/{path} is someone else's")
            return
        retry_at = whole_second(now)
        waiting = replace(lease, state="waiting", attempt=lease.attempt - 1, retry_at=retry_at)
        try:
            self._put_lease(path, waiting, if_match=etag)
        except Conflict as conflict:
            raise LeaseLost(str(conflict)) from conflict
        self.remind(path, retry_at)

    def write(self, claim: Claim, lease: Lease) -> None:
        """Replace the claim's lease, and move its deadline with it.  [P2]

        Raises:
            LeaseLost: it is not the claim's any more.
        """
        before = self.clock.monotonic()
        try:
            claim.lease, written = self._put_lease(claim.path, lease, if_match=claim.lease_etag)
        except Conflict as conflict:
            raise LeaseLost(f"{self.name}/{claim.path}: {conflict}") from conflict
        claim.lease_etag = written.etag
        claim.deadline = before + lease.timeout.total_seconds()

    def remind(self, path: str, at: datetime) -> None:
        """A hint for the sweeper; without it the sweeper finds the waiting lease itself, only later."""
        with contextlib.suppress(QueueError):
            self.store.put(self.keys.reminder(at, path), b"")

    def record_vanished(self, path: str, lease: Lease, at: datetime) -> None:
        """Someone deleted a message that was claimed: say so, unless it was finished before.  [P1]"""
        if lease.generation is None or not self.settings.history:
            return
        record = self.outcomes.read(path)
        if record is None or record.generation.etag != lease.generation.etag:
            failure = Failure("MessageVanished", "it was deleted before it was finished, and not by s3queue")
            self.outcomes.settle(
                Record(
                    path=path,
                    outcome="dead",
                    generation=lease.generation,
                    finished_at=at,
                    attempt=lease.attempt,
                    worker=lease.owner,
                    attempts=lease.attempts,
                    failure=failure,
                )
            )

    def _put_lease(self, path: str, lease: Lease, *, if_match: str | None) -> tuple[Lease, Written]:
        lease = replace(lease, nonce=self.chance.token())
        key = self.keys.lease(path)
        return lease, put_surely(self.store, key, lease.to_bytes(), if_match=if_match, if_absent=if_match is None)

    def _stored(self, claim: Claim) -> ObjectInfo:
        return claim.message.stored(self.keys.message(claim.path), claim.now())

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
        )

    def _emit(self, name: Event, claim: Claim, **fields: Any) -> None:
        self.events.emit(
            name,
            queue=self.name,
            path=claim.path,
            attempt=claim.attempt,
            worker=claim.lease.owner,
            at=claim.now(),
            enqueued_at=claim.message.enqueued_at,
            claimed_at=claim.claimed_at,
            **fields,
        )


def is_placeholder(stored: ObjectInfo | None) -> bool:
    """What S3 consoles PUT to show a folder: an empty object whose key ends with a slash. It is no message."""
    return stored is not None and stored.size == 0 and stored.key.endswith("/")


def as_duration(seconds: float | timedelta) -> timedelta:
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)


def whole_second(at: datetime) -> datetime:
    """Rounded up: S3's clock ticks in seconds, and nothing is due before its time."""
    return at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
