"""Queue: what producers, workers and operators call.

A Queue holds the parts that do the work, and forwards to them. PROTOCOL.md lists the requests of each operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

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
from .settings import QueueSettings
from .store import ObjectInfo

if TYPE_CHECKING:
    from .documents.schedule import Missed
    from .flow.schedules import Schedules, ScheduleState
    from .protocol.status import Status


@dataclass(slots=True, kw_only=True)
class Queue(QueueAccess):
    """One queue of a bucket. Safe for threads; make one per process and queue."""

    outcomes: Outcomes = field(init=False)
    #: What can be done with a lease once it is taken. The sweeper and Spark runs use it, too.
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

        With a `dedup_id`, the message is written only if no message with that id is in the queue (pending, processing
        or waiting); once that is finished, the id may be used again. Priority and due time are part of the key: the
        same id with another priority is another message. A `delay` counts from this machine's clock.

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

        `concurrency` PUTs run at the same time.

        Raises:
            InvalidRequest: a body is not a single line, or not JSON; the batches before it are enqueued.
            Unavailable: unknown whether one of the batches was written; the batches before it are enqueued.
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
        """A URL with which someone without credentials can PUT one message, and the message's path.

        With `once`, the PUT must carry the header `If-None-Match: *`, so that the URL works only once.
        """
        return self._producer.presign(name=name, priority=priority, expires=expires, once=once)

    def every(
        self,
        cron: str,
        *,
        name: str | None = None,
        tz: str = "UTC",
        body: bytes | str | Json = None,
        priority: int = 0,
        missed: Missed = "last",
    ) -> ScheduleState:
        """Let a message come at every instant of a cron line, put by whoever sweeps the queue.  [P10]

        Calling it again changes nothing; with the same `name`, it changes the schedule. Without one, line and time zone
        are the name. Of instants that passed while nobody swept, the `last` one comes, or `all` of them, at most a
        hundred, or none: `skip`. A message's metadata names its `schedule` and the instant, `scheduled-at`.

        Raises:
            InvalidRequest: the line cannot be read or is never due, the time zone is unknown, or a schedule of the
                definition has this name.
            InvalidName, InvalidPriority, MessageTooLarge: change the call.
            Unavailable: unknown whether it was stored; calling again is safe.
        """
        from .flow.schedules import schedule

        wanted = schedule(cron, name=name, tz=tz, body=body, priority=priority, missed=missed, now=self.clock.now())
        return self.schedules.add(wanted)

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
            Unavailable: unknown whether it was claimed; the sweeper takes care of the message.
        """
        return self._claiming.claim(path, timeout=timeout, read_first=read_first, etag=etag)

    def claim_next(self, limit: int = 1, *, timeout: float | timedelta | None = None) -> list[Claim]:
        """Up to `limit` messages that may run now, highest priority first, then oldest; none while paused."""
        if limit < 1:
            return []
        self.refresh()
        return [] if self.settings.paused else self._claiming.claim_next(limit, timeout=timeout)

    def adopt(self, path: str) -> Claim | None:
        """Continue with a message that was claimed elsewhere in this worker's name; None if it is no longer ours.

        Raises:
            Unavailable: unknown whether it is ours; the sweeper takes care of the message.
        """
        return self._claiming.adopt(path)

    def complete(self, claim: Claim, result: Any = None, *, clear: bool = True) -> Record:
        """Record the outcome; the message will not run again.  [P1] [P3]

        If another worker finished the same message first, its record is kept and returned. A result that is not JSON
        is not stored; the record says why, and the message is completed anyway. With `clear=False`, the message and
        its lease are not deleted yet: call `clear` later, while the claim is held.

        Raises:
            Unavailable: unknown whether it was recorded; calling again is safe.
        """
        return self.leases.complete(claim, result, clear=clear)

    def complete_lines(self, claim: Claim, total: int, *, clear: bool = True) -> Record:
        """Record the outcome of a batch whose lines are all done or dead; each dead line is a dead letter.  [P1] [P3]

        Raises:
            LeaseLost: there are dead lines and the claim is over: a zombie's failures never count.
        """
        return self.leases.complete_lines(claim, total, clear=clear)

    def clear(self, claim: Claim) -> None:
        """Delete a completed message and its lease. If a worker does not get to it, the sweeper does it.

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
        """Record that the attempt failed: the message waits for the next attempt, or is buried.  [P5]

        It is buried at once if `dead` is true, if the error is a `Reject`, or if this was the last attempt. Returns
        the waiting lease, or the record.

        Raises:
            LeaseLost: someone else has the message by now; a zombie's failure never counts.
            Unavailable: unknown whether it was recorded; the lease runs out, and the sweeper fails the attempt.
        """
        return self.leases.fail(claim, error, retry_after=retry_after, dead=dead)

    def extend(self, claim: Claim, timeout: float | timedelta | None = None) -> None:
        """Keep the message for another `timeout` from now, and store the progress made so far.  [P2]

        Raises:
            LeaseLost: someone else has the message by now.
        """
        self.leases.extend(claim, timeout)

    def release(self, claim: Claim) -> None:
        """Give the message back; this does not count as an attempt. A batch keeps the progress of its lines.  [P5]

        Raises:
            LeaseLost: someone else has the message by now.
        """
        self.leases.release(claim)

    # Settings at run time

    def define(self, settings: QueueSettings) -> None:
        """The settings of the queue's definition, for a queue that was made without any.

        Settings that the queue was made with win: they are nearer to the caller. `queue.json` wins over both.
        """
        self._overrides.define(settings)

    def overrides(self) -> dict[str, Any]:
        """The content of `queue.json`.

        Raises:
            CorruptState: it cannot be read; workers keep the settings that they have.
        """
        return self._overrides.read()

    def refresh(self) -> bool:
        """Read `queue.json` if that was last done ten seconds ago or more; True if it was read.

        If it cannot be parsed, the settings do not change.
        """
        return self._overrides.refresh()

    def configure(self, **changes: Any) -> QueueSettings:
        """Change settings at run time, for every process, within ten seconds; None removes an override.

        Raises:
            InvalidRequest: a setting is unknown or a value is out of range; nothing was changed.
            CorruptState: `queue.json` cannot be read; correct or delete it first.
        """
        return self._overrides.configure(**changes)

    def pause(self) -> None:
        """Stop claiming. Running messages finish; new ones wait."""
        self.configure(paused=True)

    def resume(self) -> None:
        """Claim again."""
        self.configure(paused=None)

    # Operators

    def status(self, path: str) -> Status:
        """The state of a message, and everything that is known about it.

        Raises:
            MessageNotFound: no message, lease, record or dead letter has this path.
        """
        # Operators ask for it; a function that processes messages starts without it.
        from .protocol.status import read_status

        return read_status(self.store, self.keys, path)

    def stats(self, *, pages: int | None = None) -> Stats:
        """Count now. `pages` limits the LISTs per kind of object (1,000 objects each)."""
        return measure(self.store, self.keys, pages=pages)

    def published_stats(self) -> Stats | None:
        """The sweeper's last count; None if there is none, or if it cannot be read. One GET."""
        return published_stats(self.store, self.keys)

    @property
    def schedules(self) -> Schedules:
        """The queue's schedules: list, pause, resume and remove them."""
        # Most queues have none.
        from .flow.schedules import Schedules

        return Schedules(self)

    def cleanup(self) -> int:
        """Delete records and dead letters past their retention; returns how many.

        For buckets without lifecycle rules.
        """
        return Removal(self).cleanup()

    def purge(self) -> int:
        """Delete every message that is not being processed, without a record; returns how many."""
        return Removal(self).purge()

    def purge_message(self, entry: ObjectInfo) -> bool:
        """Delete one listed message, without a record; False if it is being processed or was PUT again."""
        return Removal(self).purge_message(entry)
