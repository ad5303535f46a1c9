"""Claimed: a claim as another process can take it up, by path and fence."""

from __future__ import annotations

from s3queue.documents.batch import Lines
from s3queue.documents.lease import GRAIN
from s3queue.errors import LeaseLost
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.claim import Claim
from s3queue.protocol.opening import message_of


def claimed(queue: QueueAccess, path: str, fence: str) -> Claim:
    """See `Queue.claimed`. GET lease, HEAD message; nothing is written.  [P2]

    The deadline is that of the lease as S3 dates it, and earlier than the sweeper's: two processes that share a claim
    have the same one, and whoever writes the lease first ends the other's.
    """
    before = queue.clock.monotonic()
    held = queue.read_lease(path)
    if held is None or held.lease.state != "processing" or not fence or held.lease.fence != fence:
        raise LeaseLost(f"claim over: {queue.name}/{path}: no lease has the fence {fence!r}")
    lease = held.lease
    left = lease.timeout - (held.read_at - held.written_at) - GRAIN / 2
    stored = queue.store.head(queue.keys.message(path))
    # A lease that was taken without an ETag names no message: what was PUT since is another one.
    is_another = stored is not None and not lease.leased_etag and stored.modified_at > held.written_at
    if held.is_over() or stored is None or is_another or lease.leased_etag not in ("", stored.etag):
        raise LeaseLost(f"claim over: {queue.name}/{path}: its lease ran out, or its message is gone")
    message = message_of(queue, path, stored)
    claimed_at = lease.claimed_at or held.written_at
    return Claim(
        message=message,
        lease=lease.on(message, claimed_at),
        lease_etag=held.etag,
        claimed_at=claimed_at,
        since=before - (held.read_at - claimed_at).total_seconds(),
        leased_until=before + left.total_seconds(),
        clock=queue.clock,
        fence=fence,
        lines=lease.on(message, claimed_at).lines or Lines(),
    )
