"""Virtual time for tests: a day passes in a microsecond, and only when the test says so."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta


class ManualClock:
    """An `s3queue.clock.Clock` that stands still until someone sleeps or calls `advance`; safe for threads."""

    def __init__(self, now: datetime = datetime(2026, 11, 16, 10, 15, tzinfo=UTC)) -> None:
        self._start = now
        self._passed = 0.0
        self._mutex = threading.Lock()
        #: Every sleep that was asked for, in seconds.
        self.sleeps: list[float] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._passed

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float | timedelta) -> None:
        """Let this much time pass for everyone who shares the clock."""
        passing = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if passing < 0:
            raise ValueError(f"time does not run backwards ({passing} s); use a second clock for skew")
        with self._mutex:
            self._passed += passing


class StandingClock(ManualClock):
    """One that stands still also while someone sleeps, who only lets the others run: for threads that race."""

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.001))
