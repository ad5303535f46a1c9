"""MemoryLimits: Python has as much memory here as it has on EMR Serverless.

There a worker is a container of heap and `memoryOverhead`, and what takes more is killed with it. Python's memory is in
the overhead. Here, the driver and one executor share a JVM, whose heap is limited by Java itself; what their Python
processes have is measured, and processes that have more are killed as EMR kills them, without a word to themselves.

Measured is the proportional set size: of pages that forked workers share, each has its part. A limit of addresses
(RLIMIT_AS) would be another thing: threads and mapped files take gigabytes of that which they never touch. Where there
is no /proc, nothing is measured and nothing is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..processes import PROC, Process, running

Place = Literal["driver", "executor"]
#: How often processes are measured.
SECONDS = 0.5
#: The parent of an executor's Python workers: Spark's own, or ours.
DAEMONS = ("pyspark.daemon", "spark.runtime.worker_daemon")
_SIZE = re.compile(r"([0-9]+)([kmgt]?)b?", re.IGNORECASE)
_KIB = {"": 1 / 1024, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}


@dataclass
class MemoryLimits:
    """What Python may have in the driver and in the executor, in MiB; a limit that was not asked for is not there."""

    limits: Mapping[Place, int]
    #: The most that was seen.
    peaks: dict[Place, int] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> MemoryLimits:
        """From what spark-submit is told."""
        places: tuple[Place, ...] = ("driver", "executor")
        asked = {place: settings.get(f"spark.{place}.memoryOverhead", "") for place in places}
        return cls({place: mib_of(size) for place, size in asked.items() if size})

    def enforce(self, job: int) -> str | None:
        """Measure the processes below `job`, and kill what has more than it may; says what was killed, and why."""
        for place, pids in python_below(job).items():
            used = sum(map(_pss_kib, pids)) // 1024
            self.peaks[place] = max(used, self.peaks.get(place, 0))
            limit = self.limits.get(place)
            if limit is not None and used > limit:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                setting = f"spark.{place}.memoryOverhead"
                return (
                    f"the {place}'s Python was killed: it had {used} MiB, and {setting} is {limit}m; "
                    f"give the queue more {place}_python_mib, or its messages less memory"
                )
        return None


def mib_of(size: str) -> int:
    """`3g` as MiB.

    Raises:
        ValueError: it is no size as Spark writes them.
    """
    found = _SIZE.fullmatch(size.strip())
    if not found:
        raise ValueError(f"{size!r} is not a size such as 3072m")
    # Spark takes a plain number here for MiB.
    return int(int(found[1]) * _KIB[found[2].lower() or "m"]) // 1024


def python_below(job: int) -> dict[Place, list[int]]:
    """The Python processes of the driver, and the workers of the executor. The daemon alone holds no payload."""
    children: dict[int, list[Process]] = {}
    for process in running():
        if not process.zombie:
            children.setdefault(process.parent, []).append(process)
    found: dict[Place, list[int]] = {"driver": [], "executor": []}

    def look(pid: int, place: Place) -> None:
        for child in children.get(pid, ()):
            is_daemon = any(daemon in child.command for daemon in DAEMONS)
            inside: Place = "executor" if is_daemon else place
            is_worker = place == "executor" or (not is_daemon and "python" in child.command.split(" ")[0])
            if is_worker:
                found[inside].append(child.pid)
            look(child.pid, inside)

    look(job, "driver")
    return found


def _pss_kib(pid: int) -> int:
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass  # it has ended
    return 0
