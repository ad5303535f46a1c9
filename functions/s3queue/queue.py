"""Queue: what producers, workers and operators call.

A Queue holds the parts that do the work, and forwards to them; what only operators call is in `OperatedQueue`.
PROTOCOL.md lists the requests of each operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from .clock import as_duration
from .documents.lease import Lease
from .documents.record import Failure, Record
from .documents.sends import Send
from .encoding import Json
from .flow.async_queue import AsyncQueue
from .flow.operated_queue import OperatedQueue
from .protocol.access import QueueAccess
from .protocol.claim import Claim
from .protocol.claiming import Claiming
from .protocol.lease_protocol import LeaseProtocol
from .protocol.outcomes import Outcomes
from .protocol.overrides import RuntimeOverrides
from .protocol.producer import BULK_PUTS, BULK_SIZE, Producer
from .settings import QueueSettings

if TYPE_CHECKING:
    from .documents.schedule import Missed
    from .flow.buffer import Buffer
    from .flow.gate import QueueGate
    from .flow.schedules import ScheduleState


@dataclass(slots=True, kw_only=True)
class Queue(AsyncQueue, OperatedQueue):
    """One queue of a bucket. Safe for threads; make one per process and queue."""

    _claiming: Claiming = field(init=False)
    _overrides: RuntimeOverrides = field(init=False)
    _producer: Producer = field(init=False)
    _limits: QueueGate | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        # Named, because super() does not work inside a dataclass with slots.
        QueueAccess.__post_init__(self)
        self.outcomes = Outcomes(self.store, self.keys, self.chance, self.perform)
        self.leases = LeaseProtocol(self, self.outcomes)
        self._claiming = Claiming(self, self.leases)
        self._overrides = RuntimeOverrides(self)
        self._producer = Producer(self, self._overrides)

    # Producers

    def enqueue(
        self,
        body: Any,
        *,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        dedup_id: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        dedup_for: float | timedelta | None = None,
        group: str | None = None,
    ) -> str:
        """Add a message and return its path. One PUT.

        Bytes are stored unchanged, text as UTF-8; anything else becomes JSON: also pydantic models, dataclasses, dates,
        UUIDs, Decimals, bytes and sets, alone or within lists and dicts (`plain.py` says how each is written).

        With a `dedup_id`, the message is written only if no message with that id is in the queue (pending, processing
        or waiting); once that is finished, the id may be used again. Priority and due time are part of the key: the
        same id with another priority is another message. A `delay` counts from this machine's clock.

        With `dedup_for` as well, the id counts for that long after it was first used, by S3's clock, also when the
        message is finished: until then the call adds nothing, and returns the first one's path, whatever its body,
        priority and delay. One GET and one PUT more; at most the queue's `record_retention`.

        Messages of one `group` run one at a time, in the order of their names: the order in which one producer enqueues
        them. A retry holds the group up, a death lets it go on; groups run in parallel.  [P9]

        Raises:
            MessageTooLarge, InvalidPriority, InvalidName, QueueFull: nothing was written; change the call.
            Unavailable: unknown whether it was written; with a `dedup_id` or `name`, calling again is safe.
        """
        reserve = None
        if dedup_for is not None:
            from .flow.dedup import reservation

            reserve = reservation(self, dedup_id, dedup_for, name=name, metadata=metadata)
            dedup_id = None
        return self._producer.enqueue(
            body,
            priority=priority,
            delay=delay,
            due_at=due_at,
            dedup_id=dedup_id,
            name=name,
            metadata=metadata,
            content_type=content_type,
            reserve=reserve,
            group=group,
        )

    def enqueue_many(
        self,
        bodies: Iterable[Any],
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
            Of several errors, that of the first batch that was not written is raised, also before a refused body's.
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

    def buffer(self, *, linger: float | timedelta = 0.1, per_object: int = 500, **options: Any) -> Buffer:
        """Collects single messages into `.ndjson` batches; use it in a `with` statement, or close it.

        A batch is stored when it has `per_object` lines, or `linger` seconds after its first one. `Buffer` has further
        options: priority, metadata, concurrency (PUTs at a time), max_pending and room_within.

        Raises:
            InvalidRequest: a number is out of range.
        """
        from .flow.buffer import Buffer

        return Buffer(self, self._producer, linger=linger, per_object=per_object, **options)

    def presign(
        self, *, name: str | None = None, priority: int = 0, expires: float | timedelta = 3600, once: bool = True
    ) -> tuple[str, str]:
        """A URL with which someone without credentials can PUT one message, and the message's path.

        With `once`, the PUT must carry the header `If-None-Match: *`, so that the URL works only once.

        Raises:
            InvalidRequest: `expires` is not from a second to seven days.
            AccessDenied: there are no credentials to sign with.
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
            InvalidRequest: it belongs to a group or a partition, which a Worker, or a Spark run, takes as a whole.
            Unavailable: unknown whether it was claimed; the sweeper takes care of the message.
        """
        self.follow_limits()
        return self._claiming.claim(path, timeout=timeout, read_first=read_first, etag=etag)

    def claim_next(self, limit: int = 1, *, timeout: float | timedelta | None = None) -> list[Claim]:
        """Up to `limit` messages that may run now, highest priority first, then oldest; none while paused.

        Messages of groups and partitions are a Worker's: InvalidRequest, if it has `partitions` and nothing else.
        """
        if limit < 1:
            return []
        self.refresh()
        self.follow_limits()
        return [] if self.settings.paused or self.held_for() else self._claiming.claim_next(limit, timeout=timeout)

    def adopt(self, path: str) -> Claim | None:
        """Continue with a message that was claimed elsewhere in this worker's name; None if it is no longer ours.

        Raises:
            Unavailable: unknown whether it is ours; the sweeper takes care of the message.
        """
        return self._claiming.adopt(path)

    def complete(self, claim: Claim, result: Any = None, *, sends: Sequence[Send] = (), clear: bool = True) -> Record:
        """Record the outcome, and store what the message has sent; it will not run again.  [P1] [P3] [P7]

        If another worker finished the same message first, its record is kept and returned. A result that cannot be
        written as JSON is not stored; the record says why, and the message is completed anyway. With `clear=False`, the
        message and its lease are not deleted yet: call `clear` later, while the claim is held. `sends` exist if and
        only if this outcome does; if another worker's was first, its sends do.

        Raises:
            InvalidRequest: the sends are too many or too large; nothing was written.
            Unavailable: unknown whether it was recorded, or whether all sends are stored; calling again is safe.
        """
        record = self._leases_of(claim).complete(claim, result, sends=sends, clear=clear)
        self.note_call(claim, None)
        return record

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
        self._leases_of(claim).clear(claim)
        self.note_undecided(claim)

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
        ended = self._leases_of(claim).fail(claim, error, retry_after=retry_after, dead=dead)
        if not claim.message.is_batch:
            # Of a batch, each line was counted.
            self.note_call(claim, error.type if isinstance(error, Failure) else error)
        return ended

    def extend(self, claim: Claim, timeout: float | timedelta | None = None) -> None:
        """Keep the message for another `timeout` from now, and store the progress made so far.  [P2]

        Raises:
            LeaseLost: someone else has the message by now.
        """
        self._leases_of(claim).extend(claim, timeout)

    def release(self, claim: Claim) -> None:
        """Give the message back; this does not count as an attempt. A batch keeps the progress of its lines.  [P5]

        Raises:
            LeaseLost: someone else has the message by now.
        """
        try:
            self._leases_of(claim).release(claim)
        finally:
            self.note_undecided(claim)  # also if that fails: a worker that is told to stop does not come back to it

    def postpone(self, claim: Claim, after: float | timedelta) -> Lease | Record:
        """Give the message back, to run again after `after`; this does not count as an attempt.  [P5]

        After `max_postpones` of them, each is a failed attempt: see `fail`.

        Raises:
            LeaseLost: someone else has the message by now.
            Unavailable: unknown whether it was written; the lease runs out, and the sweeper fails the attempt.
        """
        wait, most = as_duration(after, "after"), self.settings.max_postpones
        if claim.lease.postponed >= most:
            said = f"postponed {most} times, which is max_postpones: this attempt failed"
            return self.fail(claim, Failure("Postpone", said), retry_after=wait)
        lease = self._leases_of(claim).postpone(claim, wait)
        self.note_undecided(claim)
        return lease

    def _leases_of(self, claim: Claim) -> LeaseProtocol:
        """The message's own lease, or that of its partition."""
        return claim.leases or self.leases

    def held_for(self) -> float:
        """Seconds for which the queue's limits let no message be claimed, as far as this process knows: ask then.

        0.0: something may be claimed, or nobody has asked yet. Sends no request.
        """
        limits = self._followed()
        return limits.wait_for_any() if limits else 0.0

    def free_at(self, path: str) -> datetime:
        """When a message that its queue's limits held back is worth a try again, by S3's clock; sends no request."""
        limits = self._followed()
        return limits.free_at(path) if limits else self.clock.now()

    def may_call(self, path: str) -> bool:
        """Whether the queue's limits permit another call of the handler for a claimed batch: its next line."""
        limits = self._followed()
        return limits is None or limits.enter_call(path)

    def note_call(self, claim: Claim, error: BaseException | str | None) -> None:
        """Tell the queue's breaker how a call of the handler ended; `complete` and `fail` do so by themselves."""
        if limits := self._followed():
            limits.ended(claim.fence, error)

    def note_undecided(self, claim: Claim) -> None:
        """Tell the queue's breaker that no call was made for this message, or none that says anything: if it was the
        one to decide, another one may. Does nothing if a call was noted.
        """
        if limits := self._limits:
            limits.gave_back(claim.fence)

    def is_stopped(self) -> bool:
        """Whether an operator has forced the queue's breaker open, as far as this process knows; sends no request."""
        limits = self._followed()
        return bool(limits and limits.is_stopped())

    def follow_limits(self) -> bool:
        """Whether the queue has limits now. What keeps them is not imported before it has."""
        return self._followed() is not None

    def _followed(self) -> QueueGate | None:
        """What keeps the limits of the queue. Whoever decides asks once: another thread may switch them off."""
        limits = self._limits
        if not self.settings.is_limited:
            self.gate = self._limits = limits = None
        elif limits is None:
            from .flow.gate import QueueGate

            self.gate = self._limits = limits = QueueGate(self)
        return limits

    def claimed(self, path: str, fence: str) -> Claim:
        """A claim that another process made, by its path and its `fence`: complete, fail, extend or release it here.

        For consumers that are not Python, or not this process: hand them `claim.path`, `claim.fence` and the body. The
        fence stays valid while the claim does, however often it is extended.

        Raises:
            LeaseLost: the claim is over: the message was finished, given back, failed, or someone else has it.
        """
        from .flow.claimed import claimed

        return claimed(self, path, fence)

    def check(self, claim: Claim) -> None:
        """Ask whether the message is still wanted. One GET.

        Raises:
            Cancelled: an operator cancelled it; `clear` deletes it.
            LeaseLost: the claim is over; someone else may have the message by now.
        """
        from .flow.cancel import check_cancelled

        claim.check_alive()
        check_cancelled(self.outcomes, claim)

    # Settings at run time

    def define(self, settings: QueueSettings) -> None:
        """The settings of the queue's definition, for a queue that was made without any.

        Settings that the queue was made with win: they are nearer to the caller. `queue.json` wins over both.
        """
        self._overrides.define(settings)

    def serve_function(self) -> None:
        """From now on, leave out of `queue.json` what the deployed function that this process is cannot keep."""
        self._overrides.serve_function()

    def define_as_published(self) -> bool:
        """`define` what a deployment or a worker published of the definition; False if nobody has. One GET."""
        published = self.published_settings()
        if published:
            self.define(published.settings)
        return published is not None

    def overrides(self) -> dict[str, Any]:
        """The content of `queue.json`, also what does not suit the queue's definition and is not applied.

        Raises:
            CorruptState: it cannot be read; workers keep the settings that they have.
        """
        return self._overrides.read()

    def refresh(self) -> bool:
        """Read `queue.json` if that was last done ten seconds ago or more; True if it was read.

        If it cannot be parsed, the settings do not change. A setting that does not suit the definition is left out with
        a warning; the others apply.
        """
        is_read = self._overrides.refresh()
        # Only where something was claimed: a producer and the sweeper have no use for it.
        if is_read and (limits := self._limits):
            limits.refresh()
        return is_read

    def configure(self, **changes: Any) -> QueueSettings:
        """Change settings at run time, for every process, within ten seconds; None removes an override.

        Raises:
            InvalidRequest: a setting is unknown, or a value is out of range or does not suit the others; nothing was
                changed.
            CorruptState: `queue.json` cannot be read; correct or delete it first.
        """
        return self._overrides.configure(**changes)

    def pause(self) -> None:
        """Stop claiming. Running messages finish; new ones wait."""
        self.configure(paused=True)

    def resume(self) -> None:
        """Claim again, also if the queue's definition says that it is paused."""
        if self.configure(paused=None).paused:
            self.configure(paused=False)
