"""Machines: the processes of the simulation, each with clocks of its own, and S3's clock, which is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from s3queue.clock import PassedTime

EPOCH = datetime(2026, 11, 16, 10, 15, tzinfo=UTC)


class Time(Protocol):
    """The world, as far as a clock needs it."""

    now: float

    def sleep(self, seconds: float) -> None: ...


@dataclass(eq=False, slots=True)
class Process:
    """One operating-system process: it has clocks of its own, it can stand still, and it can die."""

    name: str
    #: Wall clock: ahead of the true time by this many seconds. Lease logic must not care.
    skew: float = 0.0
    #: Monotonic clock: where it started, and how fast it runs.
    started: float = 0.0
    rate: float = 1.0
    #: Since when the machine has been frozen or suspended, and for how long it was before: for so long its monotonic
    #: clock stood still.
    frozen_at: float | None = None
    stood_still: float = 0.0
    is_alive: bool = True
    paused_until: float = 0.0
    #: The beginning and the end of its last pause.
    slept_at: float = 0.0
    woke_at: float = 0.0
    died_at: float = 0.0
    #: Requests sent so far; scripted faults count by them.
    requests: int = 0
    on_death: Callable[[], object] | None = None
    clocks: list[PassedTime] = field(default_factory=list)

    def pause(self, now: float, seconds: float) -> None:
        if not self.paused_until:
            self.slept_at = now
        self.paused_until = max(self.paused_until, now + seconds)

    def freeze(self, now: float) -> None:
        if self.frozen_at is None:
            self.frozen_at = now

    def thaw(self, now: float) -> None:
        if self.frozen_at is not None:
            self.stood_still += now - self.frozen_at
            self.frozen_at = None

    def set_wall_clock(self, by: float) -> None:
        """Between two looks of the process at its clocks, it can be set back or the machine can freeze, not both: that
        cannot be told from neither, see `PassedTime`.
        """
        for change in (0.0, by if self.frozen_at is None else 0.0):
            self.skew += change
            for clock in self.clocks:
                clock.seconds()

    def raw_monotonic(self, now: float) -> float:
        at = now if self.frozen_at is None else self.frozen_at
        return self.started + (at - self.stood_still) * self.rate


class ProcessClock:
    """An `s3queue.clock.Clock` of one process: the real code, over this process's raw clocks."""

    def __init__(self, world: Time, process: Process) -> None:
        self._world = world
        self._process = process
        self._passed = PassedTime(
            lambda: process.raw_monotonic(world.now), lambda: EPOCH.timestamp() + world.now + process.skew
        )
        process.clocks.append(self._passed)

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._world.now + self._process.skew)

    def monotonic(self) -> float:
        return self._passed.seconds()

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


class TrueClock:
    """S3's clock."""

    def __init__(self, world: Time) -> None:
        self._world = world

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._world.now)

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        raise AssertionError("S3 does not sleep")
