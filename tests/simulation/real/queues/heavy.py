"""A queue whose messages a worker function hands to Spark runs."""

from __future__ import annotations

from typing import Any

from s3queue import Context, define
from simulation.real.work import handle

queue = define(
    "heavy",
    engine="spark",
    handler_timeout=3,
    visibility_timeout=5,
    max_attempts=5,
    retry_base=1,
    retry_cap=1,
    late_after=1,
    rescue_after=4,
    messages_per_run=4,
    max_runs=2,
    concurrency=2,
)


@queue.handler
def refuse(body: dict) -> None:  # type: ignore[type-arg]
    raise AssertionError("a heavy message ran in a function")


def per_message(spark: Any, message: dict, context: Context) -> str:  # type: ignore[type-arg]
    """What a run does with each message; a session is not needed for it."""
    return handle(message, context)
