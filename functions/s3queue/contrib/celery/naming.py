"""Names of tasks' messages: the time first, so that they run in their order, then the task's id, to find it by."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from s3queue.queue import Queue

#: A header of a message that must exist once, whoever sends it again: the body of a chord.
ONCE_HEADER = "s3queue-once"
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
