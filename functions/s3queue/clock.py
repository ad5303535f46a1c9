"""Clock and Chance, which are injected: no other module reads a clock or draws a random number."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

from .encoding import LONGEST
from .errors import InvalidRequest

T = TypeVar("T")
#: The wall clock may be ahead of the monotonic one by this much before it counts: an NTP daemon slews smaller errors
#: away. A sweeper spares a lease for a second longer than it lasts (`GRAIN`), so half a second more is harmless.
TOLERANCE_SECONDS = 0.5
#: Two clocks are read one after the other; if a thread had to wait in between for longer than this, read them again.
_READ_WITHIN_SECONDS = 0.1
#: Counts a suspended machine where the system has such a clock (Linux); a frozen microVM's may stand still anyway.
_raw_monotonic: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


class Clock(Protocol):
    """What the protocol may know about this machine's time.

    `now` is used only for names and for a producer's delay. Whether a lease is over is judged by S3's clock; a worker
    judges its own deadline by `monotonic`.
    """

    def now(self) -> datetime: ...
    def monotonic(self) -> float:
        """Seconds that passed for the world, also while this process was frozen or suspended; never backwards."""
        ...

    def sleep(self, seconds: float) -> None: ...


class Chance(Protocol):
    """What the protocol may draw at random."""

    def uniform(self, low: float, high: float) -> float: ...
    def token(self) -> str:
        """A fresh string that nobody else has: 16 hexadecimal digits."""
        ...

    def name(self, at: datetime) -> str:
        """A fresh name that sorts by time (UUIDv7)."""
        ...

    def shuffled(self, items: Sequence[T]) -> list[T]: ...


class PassedTime:
    """Seconds that passed for the world, from a monotonic clock that may have stood still, and the wall clock.

    A function is frozen between its invocations, and a laptop is suspended: its monotonic clock may stand still, while
    its leases run out. So if the wall clock has gained on the monotonic one, that time has passed. A wall clock that
    was set forward looks the same, and ends leases early, which is safe; one that was set back changes nothing. Only
    if both happen between two calls, a freeze and a step back, the one hides the other. Safe for threads.
    """

    def __init__(self, monotonic: Callable[[], float] = _raw_monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._mutex = threading.Lock()
        #: How far the wall clock was ahead of the monotonic one when they were last in step.
        self._lead = wall() - monotonic()
        #: What the monotonic clock has missed since.
        self._missed = 0.0
        self._last = float("-inf")

    def seconds(self) -> float:
        with self._mutex:
            now, lead = self._read()
            if lead < self._lead:
                # Set back, or slower: what it gains from here on counts.
                self._lead = lead
            elif lead - self._lead > TOLERANCE_SECONDS:
                self._missed += lead - self._lead
                self._lead = lead
            self._last = max(self._last, now + self._missed)
            return self._last

    def _read(self) -> tuple[float, float]:
        """The monotonic clock, and the wall clock's lead at that moment."""
        while True:
            before = self._monotonic()
            wall = self._wall()
            if self._monotonic() - before <= _READ_WITHIN_SECONDS:
                return before, wall - before

    def renew_lock(self) -> None:
        """In a child process: a thread that held the lock at the fork does not exist there."""
        self._mutex = threading.Lock()


#: One for the process, so that instants of different `SystemClock`s can be compared.
_passed = PassedTime()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_passed.renew_lock)


class SystemClock:
    """This machine's clocks. `sleep` ends early when `wake` is set, so that a stop does not wait for the next poll."""

    def __init__(self, wake: threading.Event | None = None) -> None:
        self._wake = wake

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return _passed.seconds()

    def sleep(self, seconds: float) -> None:
        if self._wake is not None:
            self._wake.wait(seconds)
        else:
            time.sleep(seconds)


class RandomChance:
    """Draws from `source`: the system's generator by default, a seeded one in the simulation."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source or random.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def token(self) -> str:
        return f"{self._source.getrandbits(64):016x}"

    def name(self, at: datetime) -> str:
        milliseconds = int(at.timestamp() * 1000)
        number = milliseconds << 80 | 0x7 << 76 | self._source.getrandbits(12) << 64
        number |= 0b10 << 62 | self._source.getrandbits(62)
        digits = f"{number:032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        drawn = list(items)
        self._source.shuffle(drawn)
        return drawn


class Ascending:
    """Instants for names that have to sort in the order in which they were given. Safe for threads."""

    def __init__(self) -> None:
        self._last = datetime.min.replace(tzinfo=UTC)
        self._mutex = threading.Lock()

    def next(self, now: datetime) -> datetime:
        """`now`; a millisecond after the last one if that was not earlier, or the clock was set back."""
        with self._mutex:
            self._last = max(now, self._last + timedelta(milliseconds=1))
            return self._last


def as_duration(seconds: float | timedelta, what: str = "a duration") -> timedelta:
    """The duration that a caller gave.

    Raises:
        InvalidRequest: it is not one, or dates cannot be reckoned with it.
    """
    try:
        found = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(f"{what} must be a number of seconds or a timedelta, not {seconds!r}") from None
    if not -LONGEST <= found <= LONGEST:
        raise InvalidRequest(f"{what} must be at most {LONGEST.days} days, not {seconds!r}")
    return found


def as_positive_duration(seconds: float | timedelta, what: str) -> timedelta:
    """As `as_duration`; InvalidRequest also if it is not longer than nothing."""
    found = as_duration(seconds, what)
    if found <= timedelta():
        raise InvalidRequest(f"{what} must be more than 0 seconds, not {seconds!r}")
    return found


def as_signing_time(expires: float | timedelta) -> int:
    """For how many seconds S3 signs a URL; InvalidRequest unless it is from a second to seven days."""
    wait = as_positive_duration(expires, "expires")
    if not timedelta(seconds=1) <= wait <= timedelta(days=7):
        raise InvalidRequest(f"expires must be from a second to 7 days, which is S3's limit, not {wait}")
    return int(wait.total_seconds())


def whole_second(at: datetime) -> datetime:
    """The instant, rounded up to a whole second: S3's clock ticks in seconds, and nothing may be due early."""
    return at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
