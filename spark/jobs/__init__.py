"""The heavy queues' jobs: one module each, called like the queue, with one of these functions.

per_message(spark, message, context) -> result
    One message; its annotation says how the payload is parsed, as in a handler. Returns → completed, raises →
    retried, raises Reject → dead at once.
per_stream(stream, context) -> result
    One message, as a file that is read in an executor: for payloads that are too large for the driver, or many. It has
    no session, and a context without requests (`spark.heavy.streams.StreamContext`); outcomes are as above.
per_batch(spark, messages: DataFrame) -> DataFrame(path, result, error)
    Many at once. `messages` has path, line (0: the object is no batch), body, attempt, enqueued_at. Every row needs
    an outcome: `error` null → completed with `result`. Optional columns: line, if `messages` had some; reject, true
    for what no second attempt can help. Two of these may be called at one time, each with a session of its own; with
    `concurrency=1`, one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from s3queue.errors import InvalidRequest

KINDS = ("per_message", "per_stream", "per_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one queue's module defines: exactly one of the three."""

    per_message: Callable[..., Any] | None = None
    per_batch: Callable[..., Any] | None = None
    per_stream: Callable[..., Any] | None = None


def load(queue: str) -> Job:
    """The job of a queue (`order-files` → `order_files.py`).

    Raises:
        InvalidRequest: there is no such module, or it does not define exactly one of the functions.
    """
    name = f"{__name__}.{queue.replace('-', '_')}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidRequest(f"the queue {queue!r} has no job: write {name.replace('.', '/')}.py") from None
    found = {kind: function for kind in KINDS if (function := getattr(module, kind, None)) is not None}
    if len(found) != 1:
        raise InvalidRequest(
            f"{name} must define exactly one of {', '.join(KINDS)}; it has {', '.join(found) or 'none'}"
        )
    return Job(**found)
