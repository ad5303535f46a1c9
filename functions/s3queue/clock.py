"""Time and chance, injected: the only module that may read a clock or draw a random number."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """What the protocol may know of this machine's time.

    `now` is only ever used to name things and for a producer's delay; whether a lease is over is judged by S3's clock,
    and by `monotonic` for one's own deadline.
    """

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class Chance(Protocol):
    """What the protocol may draw."""

    def uniform(self, low: float, high: float) -> float: ...
    def token(self) -> str:
        """A fresh string that nobody else has: 16 hexadecimal digits."""
        ...

    def name(self, at: datetime) -> str:
        """A fresh name that sorts by time (UUIDv7)."""
        ...

    def shuffled(self, items: Sequence[T]) -> list[T]: ...


class SystemClock:
    """This machine's clocks. A sleeper wakes early when `wake` is set, so that a stop does not wait for a poll."""

    def __init__(self, wake: threading.Event | None = None) -> None:
        self._wake = wake

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if self._wake is not None:
            self._wake.wait(seconds)
        else:
            time.sleep(seconds)


class RandomChance:
    """Draws from `source`: the system's by default, a seeded one in the simulation."""

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


def as_duration(seconds: float | timedelta) -> timedelta:
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)


def whole_second(at: datetime) -> datetime:
    """Rounded up: S3's clock ticks in seconds, and nothing is due before its time."""
    return at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
