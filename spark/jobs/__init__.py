"""The heavy queues' jobs: one module each, called like the queue, with `per_message` or `per_batch`.

per_message(spark, message, context) -> result
    One message; its annotation says how the payload is parsed, as in a handler. Returns → completed, raises →
    retried, raises Reject → dead at once.
per_batch(spark, messages: DataFrame) -> DataFrame(path, result, error)
    Many at once. `messages` has path, line (0: the object is no batch), body, attempt, enqueued_at. Every row needs
    an outcome: `error` null → completed with `result`. Optional columns: line, if `messages` had some; reject, true
    for what no second attempt can help.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from s3queue.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one queue's module defines: exactly one of the two."""

    per_message: Callable[..., Any] | None = None
    per_batch: Callable[..., Any] | None = None


def load(queue: str) -> Job:
    """The job of a queue (`order-files` → `order_files.py`).

    Raises:
        InvalidRequest: there is no such module, or it does not define exactly one of the two functions.
    """
    name = f"{__name__}.{queue.replace('-', '_')}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidRequest(f"the queue {queue!r} has no job: write {name.replace('.', '/')}.py") from None
    job = Job(per_message=getattr(module, "per_message", None), per_batch=getattr(module, "per_batch", None))
    if (job.per_message is None) == (job.per_batch is None):
        raise InvalidRequest(f"{name} must define per_message or per_batch, and not both")
    return job
