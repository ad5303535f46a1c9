"""The worker function without Lambda: invocations of the real InvocationRunner, told to nobody."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from s3queue import Definition, Queue
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification


class WorkerFunction:
    """One execution environment of a queue's function."""

    def __init__(self, queue: Queue, handler: Callable[..., Any]) -> None:
        self.queue = queue
        definition = Definition(queue.name, queue.settings)
        definition.handler(handler)
        self._runner = InvocationRunner(queue, definition)

    def invoke(self, *paths: str, notified_at: datetime | None) -> dict[str, int]:
        """Answer an event of that time; None: the sweeper sent it."""
        clock = self.queue.clock
        end = clock.monotonic() + self.queue.settings.function_timeout.total_seconds()
        notifications = [Notification(path=path, notified_at=notified_at) for path in paths]
        return self._runner.run(notifications, lambda: end - clock.monotonic())
