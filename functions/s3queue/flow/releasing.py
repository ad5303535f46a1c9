"""Releasing: an operator gives back what a worker holds that is known to be dead; no attempt is used.

The lease is never deleted, as a worker's own `release` may do: the holder may live, and record its outcome at any
moment, and only who takes a lease over looks for a record [P4]. A holder that lives is a zombie from then on: its
failure and its extension lose, its completion counts if it is the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from s3queue.clock import whole_second
from s3queue.documents.lease import StoredLease
from s3queue.encoding import format_instant
from s3queue.errors import Conflict, InvalidRequest, MessageNotFound
from s3queue.paths import check_path, partition_of
from s3queue.protocol.lease_protocol import LeaseProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedClaim:
    """Who held a message that was released, since when, and which of its attempts is repeated."""

    path: str
    worker: str
    attempt: int
    claimed_at: datetime

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "worker": self.worker,
            "attempt": self.attempt,
            "claimed_at": format_instant(self.claimed_at),
        }


def holder(leases: LeaseProtocol, path: str) -> ReleasedClaim:
    """Who holds a message, as `release_held` would tell it. HEAD message, GET lease."""
    return _claim(path, _held(leases, path))


def release_held(leases: LeaseProtocol, path: str) -> ReleasedClaim:
    """See `Queue.release_held`. HEAD message, GET lease, PUT lease `If-Match`, PUT reminder.  [P5]"""
    queue = leases.queue
    held = _held(leases, path)
    now = whole_second(held.read_at)
    waiting = replace(held.lease, state="waiting", attempt=max(0, held.lease.attempt - 1), retry_at=now, progress=None)
    try:
        leases.put_lease(path, waiting, if_match=held.etag)
    except Conflict as conflict:
        raise Conflict(
            f"not released: {queue.name}/{path}: its holder, {held.lease.owner}, has just written its lease, so it is "
            "alive; or someone else has the message by now"
        ) from conflict
    leases.remind(path, now)
    released = _claim(path, held)
    queue.events.emit(
        "message.released",
        queue=queue.name,
        path=path,
        attempt=released.attempt,
        worker=released.worker,
        at=now,
        claimed_at=released.claimed_at,
    )
    return released


def _held(leases: LeaseProtocol, path: str) -> StoredLease:
    """The lease under which someone works on the message."""
    queue = leases.queue
    if queue.store.head(queue.keys.message(check_path(path))) is None:
        raise MessageNotFound(f"{queue.name}/{path} is not in the queue; s3queue show tells what became of it")
    if partition_of(path):
        raise InvalidRequest(
            f"{queue.name}/{path} is held with its whole partition, {partition_of(path)}: should its holder be dead, "
            "the partition is free once its lease has run out"
        )
    held = queue.read_lease(path)
    if held is None:
        raise InvalidRequest(f"nobody holds {queue.name}/{path}: it waits for a worker")
    if held.lease.state == "waiting":
        raise InvalidRequest(
            f"nobody holds {queue.name}/{path}: it waits for its next attempt; s3queue retry lets it be tried now"
        )
    if held.lease.state == "burying":
        raise InvalidRequest(
            f"{queue.name}/{path} is being buried by {held.lease.owner}: its outcome is decided; should that one be "
            "dead, a sweeper goes on"
        )
    if held.lease.is_cancelling:
        raise InvalidRequest(f"{queue.name}/{path} is being cancelled by {held.lease.owner}; cancel it again, or wait")
    return held


def _claim(path: str, held: StoredLease) -> ReleasedClaim:
    lease = held.lease
    claimed_at = lease.claimed_at or held.written_at
    return ReleasedClaim(path=path, worker=lease.owner, attempt=lease.attempt, claimed_at=claimed_at)
