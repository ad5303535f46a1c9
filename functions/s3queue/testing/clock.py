"""VirtualClock: time that passes only when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from s3queue.clock import as_duration
from s3queue.errors import InvalidRequest

#: When it is in a test that does not say: a Monday morning.
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class VirtualClock:
    """An `s3queue.clock.Clock` that stands still until someone sleeps or calls `advance`. Safe for threads.

    It is the clock of s3queue only: `time.sleep` and `datetime.now` of a handler are the machine's.
    """

    def __init__(self, now: datetime = START) -> None:
        self._start = now
        self._passed = 0.0
        self._mutex = threading.Lock()
        #: Lets what becomes due run, until an instant of the monotonic clock. `MemoryBucket` sets it.
        self.run_until: Callable[[float], None] | None = None

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._passed

    def sleep(self, seconds: float) -> None:
        """Time passes at once; nothing runs meanwhile."""
        self.reach(self._passed + seconds)

    def advance(self, seconds: float | timedelta) -> None:
        """Let this much time pass. In the bucket of this clock, whatever becomes due meanwhile runs when it is due:
        retries, delayed messages, schedules.

        Raises:
            InvalidRequest: not a duration, or a negative one.
        """
        passing = as_duration(seconds, "the time to pass").total_seconds()
        if passing < 0:
            raise InvalidRequest(f"time does not run backwards: {seconds!r}")
        until = self._passed + passing
        if self.run_until:
            self.run_until(until)
        self.reach(until)

    def reach(self, instant: float) -> None:
        """Let time pass until an instant of the monotonic clock, if that is not over yet; nothing runs meanwhile."""
        with self._mutex:
            self._passed = max(self._passed, instant)
