"""Several processes in virtual time, in one thread: each is a generator that yields how long it sleeps."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator

from support.manual_clock import ManualClock

Process = Generator[float, None, None]


class VirtualProcesses:
    """Runs generators in the order of their times; one that is killed never comes to its next step."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._order = 0
        self._agenda: list[tuple[float, int, Process]] = []

    def start(self, process: Process, *, after: float = 0.0) -> Process:
        self._order += 1
        heapq.heappush(self._agenda, (self._clock.monotonic() + after, self._order, process))
        return process

    def kill(self, process: Process) -> None:
        self._agenda = [entry for entry in self._agenda if entry[2] is not process]
        heapq.heapify(self._agenda)

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Let so much time pass; True if `until` came true before."""
        end = self._clock.monotonic() + seconds
        while not until():
            if not self._agenda or self._agenda[0][0] > end:
                self._clock.advance(max(0.0, end - self._clock.monotonic()))
                return until()
            at, _, process = heapq.heappop(self._agenda)
            self._clock.advance(max(0.0, at - self._clock.monotonic()))
            pause = next(process, None)
            if pause is not None:
                self.start(process, after=pause)
        return True
