"""Messages whose name leaves no room for a lease: they are buried under a shorter one, and never run.  [P6]"""

from __future__ import annotations

import logging
from datetime import timedelta

from s3queue.documents.lease import Lease
from s3queue.documents.message import Message
from s3queue.documents.record import Record
from s3queue.errors import AccessDenied, AttemptFailed
from s3queue.events import InProcess

from .access import QueueAccess
from .claim import Claim
from .lease_protocol import LeaseProtocol

_log = logging.getLogger(__name__)
#: Messages that one process sets aside; more of them hold it up, but take no more of its memory.
MOST_SET_ASIDE = 10_000


def bury_misnamed(leases: LeaseProtocol, path: str, problem: str) -> None:
    """Bury such a message, as `Keys.problem` describes it. Safe to repeat, by anyone, with or without a lease.

    One that cannot be read either has no lease that could make it wait: this process sets it aside, or every look at
    the queue would begin with it.
    """
    queue = leases.queue
    try:
        buried = leases.outcomes.bury_misnamed(path, problem, keeps_letters=queue.settings.dead_letters)
    except AccessDenied as refused:
        _log.error("message cannot be claimed or buried, set aside: %s/%s: %s", queue.name, path, refused)
        if path not in queue.set_aside and len(queue.set_aside) < MOST_SET_ASIDE:
            queue.set_aside.add(path)
            queue.in_vain += 1
        return
    if buried:
        queue.in_vain += 1
        local = InProcess(_never_claimed(queue, path, buried), AttemptFailed("InvalidName", problem))
        queue.events.emit(
            "message.dead", local, queue=queue.name, path=path, attempt=0, error=problem, size=buried.size
        )


def _never_claimed(queue: QueueAccess, path: str, buried: Record) -> Claim:
    """For hooks: a message that no lease can name had no attempt; this claim is over, and was never stored."""
    lease = Lease(state="burying", attempt=0, owner=queue.worker_id, nonce="", timeout=timedelta())
    message = Message(queue=queue.name, path=path, generation=buried.generation, size=buried.size)
    claim = Claim(
        message=message,
        lease=lease.on(message, buried.finished_at),
        lease_etag="",
        claimed_at=buried.finished_at,
        since=queue.clock.monotonic(),
        leased_until=queue.clock.monotonic(),
        clock=queue.clock,
        fence="",
    )
    claim.end()
    return claim
