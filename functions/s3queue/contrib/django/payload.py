"""Payload: a task as it lies in the bucket, and how it becomes a Django task again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.module_loading import import_string

from s3queue.errors import InvalidRequest

from .tasks import InvalidTaskError, Task

#: Django's priorities are from -100 to 100, ours from 0 to 255: 0 becomes the middle, and no two become one.
_MIDDLE, _STRETCH = 128, 1.27


def queue_priority(priority: int) -> int:
    """Of a message, from that of a task: -100 → 1, 0 → 128, 100 → 255."""
    return _MIDDLE + round(priority * _STRETCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What a worker, and whoever asks for the result, has to know of a task."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int
    enqueued_at: datetime
    run_after: datetime | None = None

    def to_bytes(self) -> bytes:
        fields = {
            "task": self.task,
            "args": self.args,
            "kwargs": self.kwargs,
            "priority": self.priority,
            "enqueued_at": self.enqueued_at.isoformat(),
            "run_after": self.run_after.isoformat() if self.run_after else None,
        }
        return json.dumps(fields, allow_nan=False).encode()

    @classmethod
    def parse(cls, found: Any) -> Payload:
        """Raises InvalidRequest: this is not a Django task."""
        try:
            run_after = found["run_after"]
            payload = cls(
                task=found["task"],
                args=found["args"],
                kwargs=found["kwargs"],
                priority=found["priority"],
                enqueued_at=datetime.fromisoformat(found["enqueued_at"]),
                run_after=datetime.fromisoformat(run_after) if run_after else None,
            )
            shapes = (str, list, dict, int)
            if all(map(isinstance, (payload.task, payload.args, payload.kwargs, payload.priority), shapes)):
                return payload
        except (KeyError, TypeError, ValueError):
            pass
        raise InvalidRequest("this is not a Django task; send tasks with enqueue()")

    def to_task(self, backend: str, queue_name: str) -> Task:
        """The task itself, as it was enqueued.

        Raises:
            InvalidRequest: the project has no such task.
        """
        try:
            found = import_string(self.task)
        except (ImportError, ValueError, TypeError, SystemExit) as error:
            # `..` and the like are no names for Python; a program that is imported as a module may want to exit.
            raise InvalidRequest(f"no task {self.task!r} in this project: {error}") from None
        # Only what a project has declared to be a task: a message must not choose any function of any package.
        if not isinstance(found, Task):
            raise InvalidRequest(f"{self.task!r} is not a task; decorate it with @task")
        try:
            return found.using(priority=self.priority, queue_name=queue_name, run_after=self.run_after, backend=backend)
        except InvalidTaskError as error:
            raise InvalidRequest(f"task {self.task!r} cannot be one of {queue_name!r}: {error}") from None
