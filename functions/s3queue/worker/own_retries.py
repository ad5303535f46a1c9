"""OwnRetries: the failed messages that this process will try again itself, ordered by when they are due.

A worker knows when its own retries are due, so it does not wait for the sweeper. The reminder in the bucket is for the
case that the worker dies before.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from s3queue.queue import Queue

#: S3's clock decides what is due, and this process knows it only as exactly as a request takes.
GRACE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, order=True)
class OwnRetry:
    """One message to try again. `due` is by the monotonic clock."""

    due: float
    path: str
    retry_at: datetime = field(compare=False)


class OwnRetries:
    """Listens to the queue's events; safe for threads."""

    def __init__(self, queue: Queue, *, within: float | None = None) -> None:
        """`within`: a retry that is due in more than this many seconds is left to the sweeper."""
        self._queue = queue
        self._within = within
        self._heap: list[OwnRetry] = []
        self._mutex = threading.Lock()
        queue.events.on("message.retry", self._note)
        queue.events.on("message.postponed", self._note)

    def __len__(self) -> int:
        return len(self._heap)

    def _note(self, fields: Mapping[str, Any]) -> None:
        if fields.get("worker") != self._queue.worker_id:
            return
        wait = (fields["retry_at"] - fields["at"]).total_seconds() + GRACE_SECONDS
        if self._within is None or wait <= self._within:
            retry = OwnRetry(self._queue.clock.monotonic() + wait, fields["path"], fields["retry_at"])
            with self._mutex:
                heapq.heappush(self._heap, retry)

    def wait(self) -> float | None:
        """Seconds until the next retry is due; None if there is none."""
        with self._mutex:
            return max(0.0, self._heap[0].due - self._queue.clock.monotonic()) if self._heap else None

    def take_due(self) -> OwnRetry | None:
        """The earliest retry, if it is due."""
        with self._mutex:
            is_due = self._heap and self._heap[0].due <= self._queue.clock.monotonic()
            return heapq.heappop(self._heap) if is_due else None

    def forget(self) -> None:
        """Leave all retries to the sweeper."""
        with self._mutex:
            self._heap.clear()
