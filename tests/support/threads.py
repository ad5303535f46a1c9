"""For the tests of threads: waits that end however slow the machine is, and a worker whose pauses take no time.

A worker on the bench lives in virtual time, which stands still until the test advances it: no lease runs out because
a thread had to wait for the processor. What its threads do between two advances is waited for, never guessed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from s3queue import Worker
from s3queue.clock import SystemClock

#: For what must happen, however busy the machine is.
PATIENCE = 60.0


def eventually(fact: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < give_up_at, "it never happened"
        time.sleep(0.005)


class Pauses(SystemClock):
    """Every pause of a worker's threads takes a millisecond, and is counted."""

    def __init__(self, wake: threading.Event, counted_with: Pauses | None = None) -> None:
        super().__init__(wake)
        self._taken: Counter[str] = counted_with._taken if counted_with else Counter()

    def sleep(self, seconds: float) -> None:
        self._taken[threading.current_thread().name] += 1
        super().sleep(min(seconds, 0.001))

    def wait_for_all(self, threads: int) -> None:
        """Until each of so many threads has begun and ended a whole turn since this call."""
        before = Counter(self._taken)
        eventually(lambda: sum(taken >= before[name] + 2 for name, taken in list(self._taken.items())) >= threads)


def hurry(worker: Worker) -> Pauses:
    """Let a worker that is not started yet pause for a millisecond instead of seconds."""
    worker._wake = pauses = Pauses(worker._stopping)
    worker._until_beat = Pauses(worker._heartbeat.changed, pauses)
    # Not counted: it watches over the threads that are waited for.
    worker._until_look = Pauses(worker._stopping)
    return pauses
