"""Queue: what producers, workers and operators call.

A Queue does nothing itself: it holds the parts that do, and forwards to them. What each of them asks of S3 is in
PROTOCOL.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from .documents.lease import Lease
from .documents.record import Failure, Record
from .encoding import Json
from .protocol.access import QueueAccess
from .protocol.claim import Claim
from .protocol.claiming import Claiming
from .protocol.lease_protocol import LeaseProtocol
from .protocol.outcomes import Outcomes
from .protocol.overrides import RuntimeOverrides
from .protocol.producer import BULK_PUTS, BULK_SIZE, Producer
from .protocol.removal import Removal
from .protocol.stats import Stats, measure, published_stats
from .protocol.status import Status, read_status
from .settings import QueueSettings
from .store import ObjectInfo


@dataclass(slots=True, kw_only=True)
class Queue(QueueAccess):
    """One queue of a bucket. Safe for threads; make one per process and queue."""

    outcomes: Outcomes = field(init=False)
    #: What is done with a lease once it is taken: the sweeper and Spark's runs use it, too.
    leases: LeaseProtocol = field(init=False)
    _claiming: Claiming = field(init=False)
    _overrides: RuntimeOverrides = field(init=False)
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        # Named, because super() does not work inside a dataclass with slots.
        QueueAccess.__post_init__(self)
        self.outcomes = Outcomes(self.store, self.keys, self.chance)
        self.leases = LeaseProtocol(self, self.outcomes)
        self._claiming = Claiming(self, self.leases)
        self._overrides = RuntimeOverrides(self)
        self._producer = Producer(self, self._overrides)

    # Producers

    def enqueue(
        self,
        body: bytes | str | Json,
        *,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        dedup_id: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> str:
        """Add a message and return its path. One PUT.

        With a `dedup_id` the message is written only if none with that id is there (pending, at work or waiting) in the
        same place: priority and due time are part of its key. A `delay` counts from this machine's clock.

        Raises:
            MessageTooLarge, InvalidPriority, InvalidName, QueueFull: nothing was written; change the call.
            Unavailable: unknown whether it was written; with a `dedup_id` or `name`, calling again is safe.
        """
        return self._producer.enqueue(
            body,
            priority=priority,
            delay=delay,
            due_at=due_at,
            dedup_id=dedup_id,
            name=name,
            metadata=metadata,
            content_type=content_type,
        )

    def enqueue_many(
        self,
        bodies: Iterable[bytes | str | Json],
        *,
        per_object: int = BULK_SIZE,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = BULK_PUTS,
    ) -> list[str]:
        """Add messages as `.ndjson` batches of up to `per_object` lines each; one PUT and one path per batch.

        `concurrency` of them are under way at a time, so that the next ones need not wait for S3's answer.

        Raises:
            InvalidRequest: a body is not a single line, or not JSON; batches before it are enqueued.
            Unavailable: unknown whether one of the batches was written; those before it are enqueued.
        """
        return self._producer.enqueue_many(
            bodies,
            per_object=per_object,
            priority=priority,
            delay=delay,
            due_at=due_at,
            metadata=metadata,
            concurrency=concurrency,
        )

    def presign(
        self, *, name: str | None = None, priority: int = 0, expires: float | timedelta = 3600, once: bool = True
    ) -> tuple[str, str]:
        """A URL with which someone without credentials may PUT one message, and its path.

        `once`: the PUT must carry the header `If-None-Match: *`, so that the URL enqueues one message, once.
        """
        return self._producer.presign(name=name, priority=priority, expires=expires, once=once)

    # Workers

    def claim(
        self, path: str, *, timeout: float | timedelta | None = None, read_first: bool = False, etag: str = ""
    ) -> Claim | None:
        """Take the message at `path`; None if someone else has it, it is finished, or it is not due.  [P2]

        Usually nothing is read first: an event is reason enough to try, and a lost try costs one PUT. With `read_first`
        (a late event, a retry, a rescue) the lease is read, and one that waits and is due is taken over. Pass the
        message's `etag` if an event or a LIST told it: should this process die at once, the sweeper then knows for
        certain whether the attempt was this message's, or that of one that was PUT under the same name before.

        Raises:
            Unavailable: unknown; the sweeper will look after it.
        """
        return self._claiming.claim(path, timeout=timeout, read_first=read_first, etag=etag)

    def claim_next(self, limit: int = 1, *, timeout: float | timedelta | None = None) -> list[Claim]:
        """Up to `limit` messages that may run now, highest priority first, then oldest; none while paused."""
        self.refresh()
        return [] if self.settings.paused else self._claiming.claim_next(limit, timeout=timeout)

    def adopt(self, path: str) -> Claim | None:
        """Go on with a message that was claimed in this worker's name elsewhere; None if it is not ours any more.

        Raises:
            Unavailable: unknown; the sweeper will look after it.
        """
        return self._claiming.adopt(path)

    def complete(self, claim: Claim, result: Any = None, *, clear: bool = True) -> Record:
        """Record the outcome; the message will not run again.  [P1] [P3]

        If another worker finished the same message first, its record is kept and returned. A result that JSON cannot
        hold is noted as such: the work is done all the same. With `clear=False` the message and its lease stay for
        `clear`, which may come later, while the claim is held.

        Raises:
            Unavailable: unknown whether it was recorded; calling again is safe.
        """
        return self.leases.complete(claim, result, clear=clear)

    def complete_lines(self, claim: Claim, total: int, *, clear: bool = True) -> Record:
        """A batch whose every line is done or dead: one record, and a dead letter for each dead line.  [P1] [P3]

        Raises:
            LeaseLost: there are dead lines, and a zombie's failures never count.
        """
        return self.leases.complete_lines(claim, total, clear=clear)

    def clear(self, claim: Claim) -> None:
        """Delete a message that was completed, and its lease. The sweeper does it for those who do not come to it.

        Raises:
            Unavailable: unknown whether they are gone; calling again is safe.
        """
        self.leases.clear(claim)

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
        return self.leases.fail(claim, error, retry_after=retry_after, dead=dead)

    def extend(self, claim: Claim, timeout: float | timedelta | None = None) -> None:
        """Keep the message for another `timeout` from now, and store the progress made so far.  [P2]

        Raises:
            LeaseLost: someone else has it by now.
        """
        self.leases.extend(claim, timeout)

    def release(self, claim: Claim) -> None:
        """Give the message back untouched: it is not an attempt. A batch keeps what its lines have come to.  [P5]

        Raises:
            LeaseLost: someone else has it by now.
        """
        self.leases.release(claim)

    # Settings at run time

    def overrides(self) -> dict[str, Any]:
        """What `queue.json` says.

        Raises:
            CorruptState: it makes no sense; workers go on with what they had.
        """
        return self._overrides.read()

    def refresh(self) -> bool:
        """Read `queue.json` if the last reading is old enough; True if it was read. Garbage changes nothing."""
        return self._overrides.refresh()

    def configure(self, **changes: Any) -> QueueSettings:
        """Change settings at run time, for every process, within ten seconds; None takes an override back.

        Raises:
            InvalidRequest: an unknown setting or a value out of range; nothing was changed.
            CorruptState: `queue.json` makes no sense; correct or delete it first.
        """
        return self._overrides.configure(**changes)

    def pause(self) -> None:
        """Claim nothing any more; what runs now is finished, what comes waits."""
        self.configure(paused=True)

    def resume(self) -> None:
        self.configure(paused=None)

    # Operators

    def status(self, path: str) -> Status:
        """Where a message stands, and everything known of its life.

        Raises:
            MessageNotFound: no message, lease, record or dead letter has this path.
        """
        return read_status(self.store, self.keys, path)

    def stats(self, *, pages: int | None = None) -> Stats:
        """Count now. `pages` bounds the LISTs per kind of object (1,000 each)."""
        return measure(self.store, self.keys, pages=pages)

    def published_stats(self) -> Stats | None:
        """The sweeper's last count; None if there is none, or garbage in its place. One GET."""
        return published_stats(self.store, self.keys)

    def cleanup(self) -> int:
        """Delete records and dead letters past their retention; how many. For buckets without lifecycle rules."""
        return Removal(self).cleanup()

    def purge(self) -> int:
        """Delete every message that nobody is working on, without a record; how many. What runs now is finished."""
        return Removal(self).purge()

    def purge_message(self, entry: ObjectInfo) -> bool:
        """Delete one listed message without a record, unless someone works on it or PUT it anew; whether it is gone."""
        return Removal(self).purge_message(entry)
