"""How `Context.extend` keeps a message where a heartbeat does so anyway: in a pull worker and in a Spark run."""

from __future__ import annotations

from datetime import timedelta

from s3queue.protocol.claim import Claim
from s3queue.queue import Queue


def renew_held(queue: Queue, claim: Claim, timeout: timedelta | None) -> None:
    """`Context.extend` of a worker with a heartbeat: the lease is written only if the handler asks for a longer time
    than the heartbeat gives.
    """
    claim.check_alive()
    if timeout is not None and timeout > claim.remaining():
        queue.extend(claim, timeout)
