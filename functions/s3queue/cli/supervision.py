"""Supervision: `s3queue work --processes N` starts this command N times, and keeps the processes running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType

from s3queue.worker.processes import Processes

from .session import Session
from .words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """What every process is called with."""

    modules: tuple[str, ...]
    concurrency: int | None
    poll_interval: timedelta
    sweep: bool
    until_empty: bool
    max_messages: int | None
    max_mib: int | None
    metrics_port: int | None
    metrics_host: str

    def port_of(self, number: int) -> int | None:
        """Where the process of this number serves its metrics: each has a port of its own."""
        return self.metrics_port + number if self.metrics_port else self.metrics_port

    def arguments(self, session: Session, report: str, number: int) -> list[str]:
        numbers = {
            "--concurrency": self.concurrency,
            "--max-messages-per-process": self.max_messages,
            "--max-mib-per-process": self.max_mib,
            "--metrics-port": self.port_of(number),
            "--metrics-host": self.metrics_host if self.metrics_port is not None else None,
            "--endpoint-url": session.endpoint_url,
            "--region": session.region,
            "--url": session.url,
        }
        flags = {"--until-empty": self.until_empty, "--quiet": session.quiet, "--debug": session.debug}
        return [
            *("work", *self.modules),
            *("--poll-interval", f"{max(round(self.poll_interval.total_seconds() * 1000), 1)}ms"),
            "--sweep" if self.sweep else "--no-sweep",
            *(text for name, value in numbers.items() if value is not None for text in (name, str(value))),
            *(name for name, is_set in flags.items() if is_set),
            *("--parent", str(os.getpid()), "--report", report),
        ]


def supervise(session: Session, options: ChildOptions, queues: Sequence[str], count: int) -> int:
    """Keep `count` processes running until a signal, or until no message can run; returns the exit code.

    The first signal lets running handlers finish; the second ends all processes at once, and their leases run out.
    """
    stopping: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stopping:
            raise KeyboardInterrupt
        stopping.append(number)
        session.note("waiting for running handlers; Ctrl-C again stops at once")

    with tempfile.TemporaryDirectory(prefix="s3queue-work-") as folder:
        started = 0

        def start(number: int) -> subprocess.Popen[bytes]:
            nonlocal started
            started += 1
            arguments = options.arguments(session, str(Path(folder) / f"{started}.json"), number)
            # In a session of its own: the terminal's Ctrl-C is this process's, which tells the others once.
            return subprocess.Popen(
                [sys.executable, "-m", "s3queue.cli", *arguments], stdin=subprocess.DEVNULL, start_new_session=True
            )

        running = Processes(start, count)
        many = counted(count, "process", "processes")
        session.note(f"{many} for {', '.join(queues)}; Ctrl-C stops them after running handlers")
        previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            code = running.run(lambda: bool(stopping), session.note)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        sums: Counter[str] = Counter()
        for report in Path(folder).glob("*.json"):
            sums.update(json.loads(report.read_text()))
    told = {"queues": [*queues], "processes": count, "recycled": running.recycled, "deaths": running.deaths}
    ended = [(running.recycled, "replaced"), (running.deaths, "died"), *((many, word) for word, many in sums.items())]
    session.done(told | dict(sums), ", ".join(f"{many} {word}" for many, word in ended if many) or "nothing")
    return code
