"""Estimate: what a workload needs from S3, Lambda and EMR, computed before anything is deployed. No I/O.

The requests are those of the protocol (requests.py), so they are exact. What depends on times (concurrency, GB-seconds,
how often the sweeper finds something in flight) is as good as the given times. Arrivals are random and steady; a burst
needs more concurrency at its peak, and costs the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from s3queue.deployment import SWEEPER_MIB, SWEEPER_STAYS_SECONDS
from s3queue.protocol.overrides import REFRESH_SECONDS
from s3queue.sweeper.cleanup import RETENTION_SECONDS
from s3queue.sweeper.last_hour import BUSY_SECONDS, CLOCK_ERROR, IDLE_SECONDS, LISTS, SAMPLE
from s3queue.sweeper.sweeper import DUE_SECONDS, LONGEST_PAUSE_SECONDS, SWEEP_REQUESTS
from s3queue.worker.own_retries import GRACE_SECONDS

from . import requests as operations
from .delays import waking
from .requests import NOTHING, WRITES, RequestCounts
from .workload import Workload, invocations_per_object, light_object, list_backlog, pause_before, seconds_of, waits_for

#: What S3 promises per prefix and second; more needs shards.
WRITES_PER_PREFIX = 3500
READS_PER_PREFIX = 5500
MOST_SHARDS = 256
#: The kinds of objects that shards spread. Reminders are not among them: their keys begin with their due time.
SHARDED = frozenset({"messages", "leases", "records", "dead", "done"})
#: From the PUT to the start of the function: an assumption. S3 documents seconds; usually it is less.
EVENT_SECONDS = 0.5
#: What an account may run at one time, unless its quota is raised.
LAMBDA_CONCURRENCY = 1000
EMR_VCPU = 16
LIST_PAGE = 1000
#: The driver of a run starts about this long after StartJobRun. Each worker has two cores, and is billed for at least a
#: minute.
RUN_START_SECONDS = 60.0
RUN_LEAST_SECONDS = 60.0
WORKER_VCPU = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Requests per second to one kind of object of one queue."""

    kind: str
    writes: float
    reads: float

    @property
    def shards(self) -> int:
        """S3 allows 3,500 writes *or* 5,500 reads, so both use up the same limit."""
        return max(1, math.ceil(self.writes / WRITES_PER_PREFIX + self.reads / READS_PER_PREFIX - 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function: invocations per second, and how long each takes."""

    invocations: float
    seconds: float
    memory_mib: int

    @property
    def concurrency(self) -> float:
        """How many run at any time, on average (Little's law)."""
        return self.invocations * self.seconds

    @property
    def gb_seconds(self) -> float:
        """GB-seconds per second."""
        return self.concurrency * self.memory_mib / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Spark runs of all queues together."""

    #: Runs per second, and how long each lasts, counted from its launch.
    started: float
    seconds: float
    messages: float
    #: Runs of one queue that are needed at one time; if that is more than `max_runs`, the queue grows.
    needed: int
    max_runs: int
    #: Workers of one run: a driver and its executors.
    workers: int
    #: Memory of all of them together.
    gb: int

    @property
    def billed_seconds(self) -> float:
        """Billed seconds of all workers per second: from the launch on, at least a minute each."""
        return self.started * max(RUN_LEAST_SECONDS, self.seconds) * self.workers

    @property
    def keep_up(self) -> bool:
        return self.needed <= self.max_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a workload needs."""

    workload: Workload
    #: Requests of a light message or batch, from its PUT to its deletion, on average.
    per_object: RequestCounts
    #: Requests per second of all queues: by producers and functions, by the sweeper, by Spark runs.
    requests: RequestCounts
    sweeping: RequestCounts
    running: RequestCounts
    prefixes: tuple[Prefix, ...]
    shards: int
    worker: Function
    sweeper: Function
    runs: Runs | None

    @property
    def per_message(self) -> RequestCounts:
        """Requests per message, without the sweeper's, which do not grow with the messages."""
        rate = self.workload.rate
        return (self.requests + self.running) * (1 / rate) if rate else NOTHING

    @property
    def queues_needed(self) -> int:
        """How many queues the load needs: one has at most 256 shards, and its reminders have none."""
        fixed = max((one.shards for one in self.prefixes if one.kind not in SHARDED), default=1)
        return self.workload.queues * max(fixed, math.ceil(self.shards / MOST_SHARDS))


def estimate(workload: Workload) -> Estimate:
    """The estimate for a workload. The shards come first, because listing a sharded queue needs more requests."""
    shards = max(1, workload.settings.shards)
    found = _estimate(workload, shards)
    while shards <= MOST_SHARDS and (needed := _shards(found)) > shards:
        shards = needed
        found = _estimate(workload, shards)
    return found


def _shards(found: Estimate) -> int:
    return max((one.shards for one in found.prefixes if one.kind in SHARDED), default=1)


def _estimate(load: Workload, shards: int) -> Estimate:
    rate = load.objects
    invocations = invocations_per_object(load)
    # How long an object is in flight does not depend on how often the backlog is listed meanwhile.
    seconds = seconds_of(load, light_object(load, shards, others=1.0))
    runs = _runs(load)
    waiting = EVENT_SECONDS + seconds
    in_flight = rate * waiting / load.queues
    if runs:
        in_flight += load.rate * load.heavy * (runs.seconds / 2 + load.heavy_seconds) / load.queues
    per_object = light_object(load, shards, others=in_flight)
    seconds = seconds_of(load, per_object)
    worker = Function(
        invocations=rate * invocations + load.rate * load.heavy,
        seconds=_mean(
            rate * invocations, seconds / invocations, load.rate * load.heavy, _seconds_of_notification(load)
        ),
        memory_mib=load.settings.memory_mib,
    )
    requests = per_object * rate + _dispatched_twice(load, in_flight, shards)
    requests += (operations.ENQUEUE + operations.CANCEL) * load.cancellations
    requests += operations.REFRESH * _refreshes(worker, load.queues)
    sweeping, awake = _sweeping(load, in_flight)
    looks, events, woken = waking(load, *_sweeps(load, in_flight))
    sweeping += looks * load.queues
    running = _running(load, runs) if runs else NOTHING
    asking = sweeping.total() * load.seconds_per_request
    invocations = load.sweepers / 60 + events * load.queues
    sweeper = Function(
        invocations=invocations,
        seconds=(awake * load.sweepers / 60 + woken * load.queues + asking) / invocations,
        memory_mib=SWEEPER_MIB,
    )
    everything = (requests + sweeping + running) * (1 / load.queues)
    prefixes = tuple(
        Prefix(
            kind=kind,
            writes=everything.total(WRITES, kind),
            reads=everything.total(kind=kind) - everything.total(WRITES, kind),
        )
        for kind in everything.kinds()
        if kind != operations.ROOT and "." not in kind
    )
    return Estimate(
        workload=load,
        per_object=per_object,
        requests=requests,
        sweeping=sweeping,
        running=running,
        prefixes=prefixes,
        shards=shards,
        worker=worker,
        sweeper=sweeper,
        runs=runs,
    )


def _refreshes(worker: Function, queues: int) -> float:
    """GETs of `queue.json` per second: each process sends one when its last is ten seconds old."""
    # Random arrivals have peaks, and a process that was started for a peak stays.
    at_work = worker.concurrency / queues
    processes = queues * math.ceil(at_work + 3 * math.sqrt(at_work))
    return processes / (REFRESH_SECONDS + processes / worker.invocations) if worker.invocations else 0.0


def _mean(first: float, seconds: float, second: float, others: float) -> float:
    return (first * seconds + second * others) / (first + second) if first + second else seconds


# The sweeper


def _sweeping(load: Workload, in_flight: float) -> tuple[RequestCounts, float]:
    """The sweeper's requests per second, for all queues, and the seconds of a minute for which it runs.

    A sweep that finds nothing in flight is the last of its minute. Otherwise the sweeper checks every two seconds for
    what is due, and sweeps again.
    """
    is_busy, pause = 1 - math.exp(-in_flight), _sweep_pause(load)
    sweeps, busy, dues, _ = _minute(is_busy, pause)
    published = busy + (1 - is_busy) * (sweeps - 1 + is_busy ** round(SWEEPER_STAYS_SECONDS / pause + 0.5))
    reminders = 1 - math.exp(-sum(_reminders(load)) / load.queues)
    pages = max(1, math.ceil(in_flight / LIST_PAGE))
    minute = operations.SWEEP_IDLE * (sweeps - busy) + (operations.SWEEP_BUSY + operations.SWEEP_PAGE * pages) * busy
    minute += (
        operations.PUBLISH * published
        + operations.SWEEP_DUE * dues
        + operations.LIST_REMINDERS * (reminders * (busy + dues))
    )
    minute += operations.LIST_SCHEDULES * (sweeps * _schedule_pages(load))
    letters = load.letters / load.queues * load.settings.dead_retention.total_seconds()
    looked_through = min(math.ceil(letters / LIST_PAGE), SWEEP_REQUESTS) * 60 / RETENTION_SECONDS
    _, _, _, awake = _minute(1 - math.exp(-in_flight * load.queues / load.sweepers), pause)
    minute += _looking_back(load, is_busy)
    return (minute + operations.RETAIN * looked_through) * (load.queues / 60), awake


def _looking_back(load: Workload, is_busy: float) -> RequestCounts:
    """How one queue's last hour is counted, per minute."""
    looks = is_busy + (1 - is_busy) * BUSY_SECONDS / IDLE_SECONDS
    found = load.rate * 60 / (load.batch * load.queues) / looks
    if not found or not load.settings.history:
        return operations.LOOK_BACK * 0
    # A look begins with names that are a little older than what it looks for.
    listed = found * (1 + CLOCK_ERROR.total_seconds() * looks / BUSY_SECONDS)
    pages = min(1 + math.ceil(listed / LIST_PAGE) + load.settings.shards, LISTS)
    return (operations.LOOK_BACK * pages + operations.SAMPLE_RECORD * min(found, SAMPLE)) * looks


def _sweeps(load: Workload, in_flight: float) -> tuple[float, float]:
    """Sweeps of one queue in a minute, and the share of them that finds something in flight."""
    is_busy = 1 - math.exp(-in_flight)
    return _minute(is_busy, _sweep_pause(load))[0], is_busy


def _schedule_pages(load: Workload) -> float:
    """LISTs with which one sweep of a queue sees its schedules, on average; some queues may have none."""
    return min(1.0, load.schedules / load.queues) * math.ceil(max(1.0, load.schedules / load.queues) / LIST_PAGE)


def _sweep_pause(load: Workload) -> float:
    return min(max(load.settings.rescue_after.total_seconds() / 2, DUE_SECONDS), LONGEST_PAUSE_SECONDS)


def _dispatched_twice(load: Workload, in_flight: float, shards: int) -> RequestCounts:
    """Requests per second for retries that the sweeper dispatches although a function waits for them.

    A reminder exists from its due time until that function has processed the message, and the sweeper lists reminders
    every two seconds.
    """
    served = operations.CLAIM_AGAIN + operations.RECORD + operations.CLEAR
    seconds = GRACE_SECONDS + served.total() * load.seconds_per_request + load.handler_seconds
    attempts = (attempt for attempt in range(1, load.settings.max_attempts) if waits_for(load, attempt))
    lying = load.objects * sum(load.retried(attempt) for attempt in attempts) * seconds / load.queues
    _, busy, dues, _ = _minute(1 - math.exp(-in_flight), _sweep_pause(load))
    listed = list_backlog(shards, in_flight, is_busy=1.0) * (1 - math.exp(-lying))
    return (listed + (operations.READ_FIRST + operations.FORGET_REMINDER) * lying) * ((busy + dues) / 60 * load.queues)


def _minute(is_busy: float, pause: float) -> tuple[float, float, float, float]:
    """The ticks of one minute: sweeps, sweeps that find something, checks for what is due, and the seconds awake."""
    sweeps = busy = dues = awake = 0.0
    at, next_sweep, reached = 0.0, 0.0, 1.0
    while at < SWEEPER_STAYS_SECONDS:
        if at >= next_sweep:
            sweeps += reached
            reached *= is_busy
            busy += reached
            next_sweep = at + pause
        else:
            dues += reached
        at += DUE_SECONDS
        awake += reached * DUE_SECONDS
    return sweeps, busy, dues, awake


def _reminders(load: Workload) -> list[float]:
    """How many reminders exist at any time, by attempt."""
    attempts = range(1, load.settings.max_attempts)
    return [load.objects * load.retried(attempt) * pause_before(load, attempt) for attempt in attempts]


# Spark


def _seconds_of_notification(load: Workload) -> float:
    return operations.NOTIFICATION_DURING_RUN.total() * load.seconds_per_request


def _runs(load: Workload) -> Runs | None:
    """A run starts with the first message that finds none, takes all messages that come meanwhile, and then ends."""
    arriving = load.rate * load.heavy / load.queues
    if not arriving:
        return None
    settings = load.settings
    limit = settings.run_timeout.total_seconds()
    work = load.heavy_seconds / settings.concurrency
    busy = arriving * work
    if busy < 1:
        # A run empties the queue: the messages that came before the driver started, and those that come meanwhile.
        seconds = max(load.heavy_seconds, (1 + arriving * RUN_START_SECONDS) * work / (1 - busy))
        cycle = 1 / arriving + RUN_START_SECONDS + seconds
        parts = max(1, math.ceil(seconds / limit))
        started, lasting, needed = parts / cycle, seconds / parts, 1
    else:
        needed = math.floor(busy) + 1
        started, lasting = needed / (RUN_START_SECONDS + limit), limit
    return Runs(
        started=started * load.queues,
        seconds=RUN_START_SECONDS + lasting,
        messages=arriving / started,
        needed=needed,
        max_runs=settings.max_runs,
        workers=1 + settings.max_executors,
        gb=settings.run_memory.driver_gb + settings.max_executors * settings.run_memory.executor_gb,
    )


def _running(load: Workload, runs: Runs) -> RequestCounts:
    """Requests per second of heavy messages and of their runs."""
    heavy = (
        operations.ENQUEUE
        + operations.NOTIFICATION_DURING_RUN
        + operations.CLAIM
        + operations.BEGIN
        + operations.RECORD
        + operations.CLEAR
        + (operations.KEEP if load.settings.keep_payload else NOTHING)
    )
    rounds = max(0, math.ceil((runs.messages - 1) / load.settings.messages_per_run))
    beats = runs.seconds / (load.settings.visibility_timeout.total_seconds() / 3)
    run = (
        operations.LAUNCH
        + operations.DRIVE
        + operations.ADOPT
        + (operations.NEXT_ROUND + operations.LIST_FOR_MORE) * rounds
        + operations.HEARTBEAT * beats
    )
    return heavy * (load.rate * load.heavy) + run * runs.started
