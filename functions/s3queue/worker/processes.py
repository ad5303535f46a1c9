"""Processes: keeps a number of worker processes running on one machine, and replaces those that end.

No message is lost with a process that dies: its leases run out, and a sweeper hands its messages to others.  [P6]
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from s3queue.clock import Clock, SystemClock

_log = logging.getLogger(__name__)
#: The exit code of a process that ended to be replaced by a fresh one.
RECYCLED = 75
#: The exit code of a call that is wrong: the next process would be called in the same way.
MISTAKE = 2
#: A process that dies within so many seconds is replaced later and later, and at last not any more.
YOUNG_SECONDS = 10.0
LONGEST_PAUSE = 30.0
MOST_YOUNG_DEATHS = 6
LOOK_SECONDS = 0.1


def resident_mib() -> float:
    """The memory of this process that is in use now, in MiB; where the system does not tell that, the most ever."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        # Not above: Windows has no such module.
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 2**10)


@dataclass(slots=True)
class Place:
    """One of the processes that are wanted: the one that runs, or when the next one starts."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    young_deaths: int = 0
    is_finished: bool = False


@dataclass(slots=True)
class Processes:
    """Starts `count` processes, and replaces those that die or ask for it, until all have finished or it is stopped."""

    #: Starts one, by its number.
    start: Callable[[int], subprocess.Popen[bytes]]
    count: int
    clock: Clock = field(default_factory=SystemClock)
    #: How many ended to be replaced, and how many died.
    recycled: int = 0
    deaths: int = 0
    #: Why it was given up; empty: it was not.
    problem: str = ""
    #: 0 if every process that was not replaced ended well.
    code: int = 0
    _places: list[Place] = field(default_factory=list)

    def run(self, is_stopping: Callable[[], bool], said: Callable[[str], None]) -> int:
        """Keep them running; returns the exit code once none is left.

        When it stops, it tells all of them, and waits for their handlers. `said` is told of every death.
        """
        self._places = [Place(number) for number in range(self.count)]
        is_told = False
        try:
            while True:
                if is_stopping() and not is_told:
                    is_told = True
                    self.tell_stop()
                ends = is_stopping() or bool(self.problem)
                for place in self._places:
                    self._look(place, ends, said)
                if self.problem and not is_told:
                    is_told = True
                    said(self.problem)
                    self.tell_stop()
                if not any(place.process for place in self._places) and (
                    ends or all(place.is_finished for place in self._places)
                ):
                    return self.code
                self.clock.sleep(LOOK_SECONDS)
        finally:
            # Only after a second signal, or a bug: nobody would look after them any more.
            for place in self._places:
                if place.process:
                    place.process.kill()
                    place.process.wait()

    def tell_stop(self) -> None:
        for place in self._places:
            if place.process:
                place.process.terminate()

    def _look(self, place: Place, ends: bool, said: Callable[[str], None]) -> None:
        now = self.clock.monotonic()
        if place.process is None:
            if not ends and not place.is_finished and now >= place.start_at:
                place.process, place.started_at = self.start(place.number), now
            return
        code = place.process.poll()
        if code is None:
            return
        place.process = None
        # Told to stop before it could listen: it had not begun, and holds nothing.
        if code == 0 or (ends and code == -signal.SIGTERM):
            place.is_finished = True
        elif ends and code != RECYCLED:
            said(f"process {place.number} did not stop well: {_ending(code)}")
            self.deaths += 1
            self.code = self.code or 1
        elif code == RECYCLED:
            self.recycled += 1
            place.young_deaths, place.start_at = 0, now
        elif code == MISTAKE:
            self.code, self.problem = MISTAKE, f"process {place.number} could not begin; stopping the others"
        else:
            self._died(place, code, now, said)

    def _died(self, place: Place, code: int, now: float, said: Callable[[str], None]) -> None:
        self.deaths += 1
        place.young_deaths = place.young_deaths + 1 if now - place.started_at < YOUNG_SECONDS else 0
        if place.young_deaths >= MOST_YOUNG_DEATHS:
            self.code = 1
            self.problem = f"process {place.number} died {place.young_deaths} times in a row; stopping the others"
            return
        pause = min(LONGEST_PAUSE, 2.0 ** (place.young_deaths - 1)) if place.young_deaths else 0.0
        place.start_at = now + pause
        said(f"process {place.number} died ({_ending(code)}), the next one starts in {pause:g} s; its leases run out")


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
