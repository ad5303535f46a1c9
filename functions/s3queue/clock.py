"""Clock and Chance, which are injected: no other module reads a clock or draws a random number."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """What the protocol may know about this machine's time.

    `now` is used only for names and for a producer's delay. Whether a lease is over is judged by S3's clock; a worker
    judges its own deadline by `monotonic`.
    """

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...
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


class SystemClock:
    """This machine's clocks. `sleep` ends early when `wake` is set, so that a stop does not wait for the next poll."""

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


def as_duration(seconds: float | timedelta) -> timedelta:
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)


def whole_second(at: datetime) -> datetime:
    """The instant, rounded up to a whole second: S3's clock ticks in seconds, and nothing may be due early."""
    return at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
