"""Retrying: what an operator can know and do about a message that waits for its next attempt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from s3queue.clock import whole_second
from s3queue.documents.lease import NEVER, Lease, StoredLease
from s3queue.documents.record import Attempt, Failure
from s3queue.encoding import format_instant
from s3queue.errors import InvalidRequest, MessageNotFound
from s3queue.paths import check_path, due_of, partition_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.store import ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryInfo:
    """The attempts of a message that is not finished."""

    path: str
    #: pending, delayed, processing, waiting or burying.
    state: str
    #: How often it was tried, the present attempt included, and how often it may be.
    attempt: int
    max_attempts: int
    #: When it may be tried next; None if it may now, or is being processed.
    retry_at: datetime | None = None
    #: Why the last attempt failed.
    failure: Failure | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def attempts_left(self) -> int:
        return max(0, self.max_attempts - self.attempt)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "state": self.state,
            "attempt": self.attempt,
            "max_attempts": self.max_attempts,
            "attempts_left": self.attempts_left,
            "retry_at": format_instant(self.retry_at) if self.retry_at else None,
            "failure": self.failure.to_json() if self.failure else None,
        }


def retry_info(queue: QueueAccess, path: str) -> RetryInfo:
    """See `Queue.retry_info`. HEAD message, GET lease."""
    if partition_of(check_path(path)):
        from .partition_operating import found_in_partition

        return _described(queue, path, found_in_partition(queue, path)[1])
    return _info(queue, path, *_found(queue, path))


def retry_now(leases: LeaseProtocol, path: str) -> RetryInfo:
    """See `Queue.retry`. HEAD message, GET lease, PUT lease `If-Match`, PUT reminder: no attempt is used.  [P5]"""
    queue = leases.queue
    if partition_of(check_path(path)):
        return _retry_in_partition(leases, path)
    stored, held = _found(queue, path)
    info = _info(queue, path, stored, held)
    if held is None or held.lease.state != "waiting":
        raise _does_not_wait(queue, info)
    if held.lease.retry_at == NEVER:
        raise InvalidRequest(f"{queue.name}/{path} is dead, and cannot be read: replay its dead letter instead")
    now = whole_second(held.read_at)
    if held.lease.retry_at and held.lease.retry_at > now:
        lease, _ = leases.put_lease(path, replace(held.lease, retry_at=now), if_match=held.etag)
        leases.remind(path, now)
        return replace(info, retry_at=lease.retry_at)
    return info


def _retry_in_partition(leases: LeaseProtocol, path: str) -> RetryInfo:
    from .partition_operating import retry_in_partition

    waiting = retry_in_partition(leases, path)
    if waiting is None:
        raise _does_not_wait(leases.queue, retry_info(leases.queue, path))
    return _described(leases.queue, path, waiting)


def _does_not_wait(queue: QueueAccess, info: RetryInfo) -> InvalidRequest:
    said = f"{queue.name}/{info.path} is {info.state}: only a message that waits for a retry can be retried"
    return InvalidRequest(said)


def _found(queue: QueueAccess, path: str) -> tuple[ObjectInfo, StoredLease | None]:
    stored = queue.store.head(queue.keys.message(path))
    if stored is None:
        raise MessageNotFound(f"{queue.name}/{path} is not in the queue; s3queue show tells what became of it")
    return stored, queue.read_lease(path)


def _info(queue: QueueAccess, path: str, stored: ObjectInfo, held: StoredLease | None) -> RetryInfo:
    most = queue.settings.max_attempts
    if held is None:
        due_at = due_of(path)
        is_delayed = due_at is not None and due_at > stored.at
        state = "delayed" if is_delayed else "pending"
        return RetryInfo(path=path, state=state, attempt=0, max_attempts=most, retry_at=due_at if is_delayed else None)
    return _described(queue, path, held.lease)


def _described(queue: QueueAccess, path: str, lease: Lease | None) -> RetryInfo:
    most = queue.settings.max_attempts
    if lease is None:
        return RetryInfo(path=path, state="pending", attempt=0, max_attempts=most)
    return RetryInfo(
        path=path,
        state=lease.state,
        attempt=lease.attempt,
        max_attempts=most,
        retry_at=lease.retry_at if lease.state == "waiting" else None,
        failure=lease.failure,
        attempts=lease.attempts,
    )
