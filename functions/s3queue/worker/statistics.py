"""Statistics: how the attempts of one worker ended, and how long they took, for its heartbeat and its operator."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from s3queue.protocol.stats import Stats

from .processor import AttemptEnding

#: Upper bounds of how many seconds a call takes; from a quick insert to a handler that extends its message.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class HandlerTimes:
    """How many seconds calls of the handler took, since the start; safe for threads."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self._mutex = threading.Lock()

    def observe(self, seconds: float) -> None:
        with self._mutex:
            self._counts[bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def read(self) -> tuple[list[int], float]:
        """How many took at most each of `BOUNDS` seconds, and at last how many there were; and the sum of seconds."""
        with self._mutex:
            return list(accumulate(self._counts)), self._seconds


class Statistics:
    """Counts since the start; safe for threads."""

    def __init__(self) -> None:
        self._counts: Counter[AttemptEnding] = Counter()
        self._mutex = threading.Lock()
        self.handler_times = HandlerTimes()
        #: What the last sweep has counted; None while it is not this worker's turn to sweep.
        self.counted: Stats | None = None

    def count(self, ending: AttemptEnding) -> None:
        with self._mutex:
            self._counts[ending] += 1

    def note_counted(self, stats: Stats | None) -> None:
        self.counted = stats

    def to_dict(self, *, running: int) -> dict[str, int]:
        counts = self._counts
        return {
            "processed": counts["completed"] + counts["retried"] + counts["dead"],
            "succeeded": counts["completed"],
            "failed": counts["retried"] + counts["dead"],
            "retried": counts["retried"],
            "dead": counts["dead"],
            "cancelled": counts["cancelled"],
            "released": counts["released"] + counts["postponed"],
            "lost": counts["lost"],
            "running": running,
        }
