"""A queue with a worker function and the sweeper function."""

from __future__ import annotations

from s3queue import define
from simulation.real.work import handle

queue = define(
    "served",
    # No heartbeat keeps a message in a function: a lease lasts longer than a handler may.
    visibility_timeout=6,
    handler_timeout=3,
    max_attempts=5,
    retry_base=1,
    retry_cap=1,
    late_after=1,
    rescue_after=4,
)
queue.handler(handle)
