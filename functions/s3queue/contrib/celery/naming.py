"""Names of tasks' messages: the time first, so that they run in their order, then the task's id, to find it by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import quote

from s3queue.queue import Queue

_once: ContextVar[str] = ContextVar("s3queue_once", default="")
#: Of a task's id in a name; a longer one is told by its digest.
_LONGEST = 200


def tail_of_task(task_id: str) -> str:
    """What the names of a task's messages end with. An id may hold any characters."""
    quoted = quote(task_id, safe="")
    if len(quoted) > _LONGEST:
        quoted = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f".{quoted}"


def name_of_task(queue: Queue, task_id: str) -> str:
    """A fresh name for a message of this task."""
    return queue.chance.name(queue.clock.now()) + (tail_of_task(task_id) if task_id else "")


@contextmanager
def sent_once(mark: str) -> Iterator[None]:
    """What this thread sends meanwhile exists once, whoever sends it again under the same mark: the body of a chord.

    No header says so, because those of a call take the place of a task's own, and a task hands its own on.
    """
    before = _once.set(mark)
    try:
        yield
    finally:
        _once.reset(before)


def dedup_id_of_task(task_id: str, retries: int) -> str | None:
    """The id under which a task's message exists once; None for any other task's."""
    mark = _once.get()
    return f"celery/{mark}/{task_id}/{retries}" if mark else None
