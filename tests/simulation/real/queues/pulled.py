"""A queue of pull workers, which sweep it themselves."""

from __future__ import annotations

from s3queue import define
from simulation.real.work import handle

queue = define(
    "pulled",
    visibility_timeout=3,
    handler_timeout=5,
    max_attempts=5,
    retry_base=1,
    retry_cap=1,
    rescue_after=3,
    concurrency=3,
)
queue.handler(handle)
