"""Stuck: leases that ran out, workers without a heartbeat, runs without a driver, and old dead letters."""

from __future__ import annotations

from datetime import datetime, timedelta

from s3queue.documents.breaker_document import StoredBreaker
from s3queue.documents.lease import GRAIN
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState
from s3queue.paths import is_ordered, is_partition, partition_of
from s3queue.protocol.liveness import LiveOwners
from s3queue.protocol.partition_status import read_partition
from s3queue.queue import Queue
from s3queue.store import ObjectInfo

from .overview import live_workers
from .queue_models import BreakerView, Stuck, StuckLease, WorkerView
from .runs import runs

#: How many leases that seem to be overdue are read, oldest first.
LEASES_READ = 20


def breaker(name: str, found: StoredBreaker) -> BreakerView:
    """A queue's breaker, as it was read or has just been written."""
    document = found.document
    return BreakerView(
        queue=name,
        state=document.state,
        forced=document.is_forced,
        failures=document.failures,
        error=document.error,
        opened_at=format_instant(document.opened_at) if document.opened_at else None,
        until=format_instant(found.until) if found.until else None,
    )


def stuck(queue: Queue) -> Stuck:
    """One LIST page per kind of object, and GETs only for leases that seem to be overdue."""
    page = queue.store.list(queue.keys.prefix("leases"))
    limit = queue.settings.visibility_timeout + GRAIN
    overdue = sorted(
        (entry for entry in page.objects if page.at - entry.modified_at > limit), key=lambda entry: entry.modified_at
    )
    owners = LiveOwners(queue)
    leases = [found for entry in overdue[:LEASES_READ] if (found := _stuck_lease(queue, entry, page.at, owners))]
    listed = runs(queue)
    dead = queue.store.list(queue.keys.prefix("dead"))
    ages = [(dead.at - entry.modified_at).total_seconds() for entry in dead.objects]
    return Stuck(
        at=format_instant(page.at),
        leases=leases,
        silent_workers=[worker for worker in workers(queue) if not worker.is_fresh],
        stale_runs=[run for run in listed.runs if run.is_silent],
        oldest_dead_seconds=max(ages, default=None),
        exact=page.next_after is None and dead.next_after is None and len(overdue) <= LEASES_READ,
    )


def workers(queue: Queue) -> list[WorkerView]:
    return [WorkerView(**worker.to_json()) for worker in live_workers(queue)]


def _stuck_lease(queue: Queue, entry: ObjectInfo, now: datetime, owners: LiveOwners) -> StuckLease | None:
    path = queue.keys.path_under("leases", entry.key)
    age = now - entry.modified_at
    if path and is_partition(path):
        return _stuck_partition(queue, path, now, age, owners)
    try:
        held = queue.read_lease(path) if path else None
    except CorruptState as error:
        return StuckLease(
            path=path or entry.key,
            state="corrupt",
            owner="",
            attempt=0,
            age_seconds=age.total_seconds(),
            reason=str(error),
        )
    if path is None or held is None:
        return None
    lease = held.lease
    if lease.state == "waiting":
        if lease.retry_at is None or now - lease.retry_at <= queue.settings.rescue_after:
            return None
        reason = "the retry is due, and no worker has claimed it; check the sweeper"
    elif not held.is_over() or owners.keep(lease.owner, path):
        return None
    else:
        reason = "the lease ran out, and no sweeper has ended it; check the sweeper"
    return StuckLease(
        path=path,
        state=lease.state,
        owner=lease.owner,
        attempt=lease.attempt,
        age_seconds=age.total_seconds(),
        reason=reason,
    )


def _stuck_partition(queue: Queue, path: str, now: datetime, age: timedelta, owners: LiveOwners) -> StuckLease | None:
    """A partition whose holder is gone, or a group that waits for the next attempt of one message.  [P9]"""
    partition = partition_of(path)
    try:
        stored = read_partition(queue, partition)
    except CorruptState as error:
        reason, seconds = str(error), age.total_seconds()
        return StuckLease(path=path, state="corrupt", owner="", attempt=0, age_seconds=seconds, reason=reason)
    if stored is None:
        return None
    lease, attempt = stored.lease, 0
    if lease.state == "processing":
        if not stored.is_over() or owners.keep(lease.owner, path):
            return None
        reason = "the lease of this partition ran out, and nobody has taken it over; check the sweeper"
    else:
        due_at = lease.next_at
        if due_at is None:
            return None
        first = min(lease.waiting.values(), key=lambda one: one.retry_at)
        if now - due_at > queue.settings.rescue_after:
            reason = f"the retry of {first.path} is due, and no worker has taken the partition; check the sweeper"
        elif is_ordered(partition):
            reason = f"its group waits for the next attempt of {first.path}, not before {format_instant(due_at)}"
        else:
            return None
        attempt = first.lease.attempt
    return StuckLease(
        path=path,
        state="waiting" if lease.state == "open" else lease.state,
        owner=lease.owner,
        attempt=attempt,
        age_seconds=age.total_seconds(),
        reason=reason,
    )
