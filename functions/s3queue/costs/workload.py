"""Workload: what is sent, and what one object needs: its requests, its seconds, its invocations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta

from s3queue.deployment import METRICS, QUEUES_PER_SWEEPER, Metrics
from s3queue.documents.flow import probes_of_last
from s3queue.documents.message import INLINE_BYTES
from s3queue.documents.sends import INLINE_SENDS
from s3queue.errors import InvalidRequest
from s3queue.settings import QueueSettings
from s3queue.worker.invocation import PATIENCE_SECONDS, WRAP_UP_SECONDS
from s3queue.worker.own_retries import GRACE_SECONDS

from . import requests as operations
from .requests import NOTHING, RequestCounts

MONTH = timedelta(days=30)
#: One small request to S3 from a function in the same region: an assumption; `Workload.request_seconds` changes it.
REQUEST_SECONDS = 0.030
#: Measured (`make bench`): CPU time of the functions' store for one request, on a whole core; boto3 needs eight times
#: as much. A function with `MIB_PER_VCPU` of memory has a whole core.
REQUEST_CPU_SECONDS = 0.00025
MIB_PER_VCPU = 1769
#: Measured (`make bench`), for each message that functions drain from a burst: claims that they lose to one another,
#: and refills of their windows.
LOST_IN_BURST, LISTED_IN_BURST = 0.07, 0.03
#: What a send counts for besides its body.
ROOM_OF_SEND = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent, and how it ends. Shares are from 0 to 1.

    Raises:
        InvalidRequest: a value is out of range; the text says which.
    """

    #: Messages per second, of all queues together.
    rate: float
    #: Bytes of one message.
    size: int = 1024
    #: Messages per object.
    batch: int = 1
    #: Share of attempts that fail and are retried.
    retries: float = 0.0
    #: Share of messages that are rejected at once.
    dead: float = 0.0
    #: Share of events that come late, of events that never come, and of those in a burst: while all functions are busy,
    #: one of these takes the message, and its event finds nothing.
    late: float = 0.0
    rescued: float = 0.0
    throttled: float = 0.0
    #: How long the handler takes for one message.
    handler_seconds: float = 0.05
    #: Share of messages that go to Spark, and how long one takes there. Each is an object of its own.
    heavy: float = 0.0
    heavy_seconds: float = 60.0
    #: Number of queues; the messages are spread evenly over them.
    queues: int = 1
    request_seconds: float = REQUEST_SECONDS
    #: memory_mib, history, max_attempts, shards, messages_per_run, max_runs, …
    settings: QueueSettings = field(default_factory=QueueSettings)
    #: As `-c kms_key=…`, `-c tracing=…` and `-c metrics=…` are deployed.
    kms: bool = False
    tracing: bool = False
    metrics: Metrics = "alarms"
    #: Share of single messages that are enqueued with `dedup_for`.
    dedup: float = 0.0
    #: Share of light objects that are cancelled while they wait: no function ever runs them.
    cancelled: float = 0.0
    #: Schedules, spread evenly over the queues; their messages are part of the rate.
    schedules: int = 0
    #: Share of single messages that are enqueued with a delay, and how long that is.
    delayed: float = 0.0
    delay_seconds: float = 5.0
    #: Share of single messages that another message has sent.
    sends: float = 0.0
    #: Share of single messages that belong to a flow: so many members, and one step.
    flows: float = 0.0
    members: int = 10

    def __post_init__(self) -> None:
        single = ("dedup", "cancelled", "delayed", "sends", "flows")
        for name in ("retries", "dead", "late", "rescued", "throttled", "heavy", *single):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidRequest(f"{name} must be a share from 0 to 1, not {getattr(self, name)}")
        if self.late + self.rescued + self.throttled > 1:
            raise InvalidRequest(
                f"late ({self.late}), rescued ({self.rescued}) and throttled ({self.throttled}) must not be more than "
                "1 together"
            )
        for name in ("rate", "size", "handler_seconds", "heavy_seconds", "request_seconds", "delay_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidRequest(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.metrics not in METRICS:
            raise InvalidRequest(f"metrics must be all, alarms or off, not {self.metrics!r}")
        if self.schedules < 0:
            raise InvalidRequest(f"schedules must be 0 or more, not {self.schedules}")
        if self.settings.partitions and any(getattr(self, name) for name in single):
            raise InvalidRequest(f"{' and '.join(single)} are not counted for partitions: leave them out")
        if self.settings.partitions and self.heavy:
            raise InvalidRequest(
                "partitions of messages that go to Spark are not counted: leave partitions out, or heavy; a queue with "
                "heavy_above cannot have both"
            )
        for name in ("batch", "queues", "members"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def messages(self) -> float:
        """Messages per month."""
        return self.rate * MONTH.total_seconds()

    @property
    def objects(self) -> float:
        """Light objects per second that run: messages or batches."""
        return self._light_objects * (1 - self.cancelled)

    @property
    def cancellations(self) -> float:
        """Light objects per second that are cancelled."""
        return self._light_objects * self.cancelled

    @property
    def _light_objects(self) -> float:
        return self.rate * (1 - self.heavy) / self.batch

    @property
    def letters(self) -> float:
        """Messages per second that become dead letters."""
        return self.rate * self.dying * (1 - self.cancelled * (1 - self.heavy))

    @property
    def sweepers(self) -> int:
        """Sweeper functions: beyond some queues, there are several."""
        return -(-self.queues // QUEUES_PER_SWEEPER)

    @property
    def seconds_per_request(self) -> float:
        """Waiting for S3, and CPU time, which is longer on less than a whole core."""
        return self.request_seconds + REQUEST_CPU_SECONDS * max(1.0, MIB_PER_VCPU / self.settings.memory_mib)

    def retried(self, attempt: int) -> float:
        """The share of objects that are retried after this attempt: those of which a line has failed every time."""
        return 1 - (1 - self.retries**attempt * (1 - self.dead)) ** self.batch

    @property
    def dying(self) -> float:
        """The share of messages that become dead letters: rejected, or failed at every attempt."""
        return self.dead + (1 - self.dead) * self.retries**self.settings.max_attempts


def light_object(load: Workload, shards: int = 1, others: float = 0.0) -> RequestCounts:
    """The requests of one object, from its PUT to its deletion, on average, while `others` are in flight."""
    if load.settings.partitions and load.batch == 1:
        from .partitioned import partitioned_message

        return partitioned_message(load)
    if load.delayed:
        from .delays import with_delays

        return with_delays(load, shards, others)
    is_large = load.size * load.batch > INLINE_BYTES
    reads = operations.CLAIM + (operations.REOPEN if is_large else NOTHING)
    again = operations.CLAIM_AGAIN + operations.FORGET_REMINDER + (operations.REOPEN if is_large else NOTHING)
    buried = 1 - (1 - load.dying) ** load.batch
    settings = load.settings
    spent = operations.ENQUEUE + reads
    spent += ((operations.RECORD if settings.history else NOTHING) + operations.CLEAR) * (1 - buried)
    if settings.keep_payload:
        # A batch is kept if any of its lines was completed.
        spent += operations.KEEP * (1 - load.dying**load.batch)
    if load.batch == 1:
        spent += (operations.BURY + operations.MOVE) * buried
        spent += (operations.RESERVE + operations.ASK_RECORD) * load.dedup
        spent += sent_message(load) * load.sends + flow_message(load.members) * load.flows
        if not settings.history:
            # Only a record tells that the id's message has run; what sends is recorded, too.
            recorded = min(1.0, load.dedup + 2 * load.sends + load.flows)
            spent += operations.RECORD * (recorded * (1 - buried))
    else:
        spent += (operations.BURY + operations.MOVE_LINES) * buried
        spent += operations.EXTEND * _extensions(load)
    if settings.rate:
        # At most: a busy process takes several tokens at a time.
        calls = load.batch + sum(load.retried(attempt) for attempt in range(1, settings.max_attempts))
        spent += operations.TOKEN * calls
    drains = load.late + load.rescued
    spent += operations.READ_FIRST * (drains + load.throttled)
    spent += (operations.LOSE * LOST_IN_BURST + list_backlog(shards, others, is_busy=1.0) * LISTED_IN_BURST) * (
        load.throttled
    )
    for attempt in range(1, settings.max_attempts):
        tried_again = load.retried(attempt)
        spent += (operations.FAIL + again) * tried_again
        if not waits_for(load, attempt):
            drains += tried_again
        elif attempt == 1:
            # A function that waits for a retry lists the backlog once; its own waiting message is part of it.
            spent += (operations.LIST_REMINDERS + list_backlog(shards, others + 1, is_busy=1.0)) * tried_again
    released = _continuations(load)
    spent += (operations.RELEASE + again) * released
    if released:
        # Every continuation lists the backlog at its end: all but the last find their own reminder there.
        drains += 1
        spent += (operations.LIST_REMINDERS + list_backlog(shards, others + 1, is_busy=1.0)) * (released - 1)
    return spent + list_backlog(shards, others, is_busy=1 - math.exp(-others)) * drains


def sent_message(load: Workload) -> RequestCounts:
    """What a message costs more that another one has sent. Its PUT is its enqueue; a large one is staged."""
    is_staged = load.size > INLINE_SENDS - ROOM_OF_SEND
    return operations.ASK_RECORD + (operations.STAGE if is_staged else NOTHING)


def flow_message(members: int) -> RequestCounts:
    """What a message of a flow of so many members and one step costs more, on average, if members end in order."""
    flow = operations.FLOW + (operations.FLOW_OUTCOME + operations.ASK_RECORD) * (members + 1)
    if members > 1:
        flow += operations.FLOW_PROBE * (members - 1 + probes_of_last(members)) + operations.FLOW_COUNT
    return flow * (1 / (members + 1))


def list_backlog(shards: int, lying: float, is_busy: float) -> RequestCounts:
    """The LISTs with which a function finds what else may run, for every shard that has messages."""
    if shards == 1:
        return operations.LIST_KINDS + operations.LIST_BACKLOG * is_busy
    occupied = shards * (1 - math.exp(-lying / shards))
    return operations.LIST_KINDS + operations.LIST_SHARDS * is_busy + operations.LIST_BACKLOG * occupied


def _handling(load: Workload) -> float:
    """Seconds that handlers run for one object: every message once, and again after each failure."""
    tries = sum(load.retries**attempt for attempt in range(load.settings.max_attempts))
    return load.handler_seconds * load.batch * tries


def pause_before(load: Workload, attempt: int) -> float:
    """Seconds until the next attempt, on average: due times are whole seconds."""
    longest = load.settings.retry.delay(attempt).total_seconds()
    return (longest / 2 if load.settings.retry_jitter else longest) + 0.5 + GRACE_SECONDS


def waits_for(load: Workload, attempt: int) -> bool:
    """Whether the function waits for the next attempt itself; otherwise the sweeper dispatches it."""
    return pause_before(load, attempt) <= PATIENCE_SECONDS


def _lifetime(load: Workload) -> float:
    """Seconds that an invocation has for the lines of a batch: at its end there must be time for one more handler."""
    settings = load.settings
    return max(1.0, (settings.function_timeout - settings.handler_timeout).total_seconds() - WRAP_UP_SECONDS)


def _continuations(load: Workload) -> int:
    """How often a batch is continued by another invocation, because the time of one is up."""
    return max(0, math.ceil(_handling(load) / _lifetime(load)) - 1) if load.batch > 1 else 0


def _extensions(load: Workload) -> float:
    """How often a batch's lease is extended: in each invocation, whenever half of its time is over."""
    half = load.settings.visibility_timeout.total_seconds() / 2
    handed_on = _continuations(load)
    last = _handling(load) - handed_on * _lifetime(load)
    return handed_on * (_lifetime(load) // half) + last // half


def invocations_per_object(load: Workload) -> float:
    """Invocations for one object."""
    dispatched = (load.retried(n) for n in range(1, load.settings.max_attempts) if not waits_for(load, n))
    return 1 + sum(dispatched) + _continuations(load)


def seconds_of(load: Workload, per_object: RequestCounts) -> float:
    """How long functions need for one object: its requests one after the other, its handler, its waits."""
    asked = per_object.total() - operations.ENQUEUE.total() - per_object.total(kind="dedup")
    waits = (
        load.retried(n) * pause_before(load, n) for n in range(1, load.settings.max_attempts) if waits_for(load, n)
    )
    return asked * load.seconds_per_request + _handling(load) + sum(waits)
