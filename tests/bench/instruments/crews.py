"""Producers and pull workers as processes of their own, as on several machines, and as `s3queue work --processes` does.

    python crews.py '{"role": "work", "endpoint": …, "bucket": …, "queue": …, …}'

Each prints a line when it is ready, begins at the first line of its standard input, and for every line answers with
what it has done so far, as JSON. It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Did:
    """What one process has done since it began."""

    #: Objects that ended, or messages that were enqueued.
    done: int
    #: Claims that another worker won.
    lost: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Crew:
    """Processes of one kind, ready to begin."""

    _processes: Sequence[subprocess.Popen[str]]

    def begin(self) -> None:
        self.did()

    def did(self) -> list[Did]:
        for process in self._processes:
            process.stdin.write("\n")
            process.stdin.flush()
        return [Did(**json.loads(process.stdout.readline())) for process in self._processes]

    def run(self, total: int, *, seconds: float = 120.0) -> tuple[float, list[Did]]:
        """Begin, and wait until so many are done by all together; the seconds that took, and who did what."""
        began = time.perf_counter()
        self.begin()
        while True:
            found = self.did()
            done = sum(one.done for one in found)
            if done >= total:
                return time.perf_counter() - began, found
            if time.perf_counter() - began > seconds:
                raise RuntimeError(f"{done} of {total} after {seconds} s")
            time.sleep(0.005)


@contextlib.contextmanager
def crew(count: int, **options: Any) -> Iterator[Crew]:
    """So many processes; see `_main` for the options."""
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(count):
            told = json.dumps({**options, "number": number})
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.instruments.crews", told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                cwd=Path(__file__).parents[3],
            )
            processes.append(stack.enter_context(process))
        try:
            for process in processes:
                process.stdout.readline()
            yield Crew(processes)
        finally:
            for process in processes:
                process.stdin.close()


def _main(
    *,
    role: str,
    endpoint: str,
    bucket: str,
    queue: str,
    number: int,
    concurrency: int = 4,
    messages: int = 0,
    per_object: int = 1,
    settings: dict[str, Any] | None = None,
) -> None:
    """`work`: a pull worker with so many threads. `produce`: so many messages, in objects of this size."""
    import threading

    from s3queue import Worker

    from .scene import in_threads, queue_at

    found = queue_at(endpoint, bucket, queue, **(settings or {}))
    lost: list[object] = []
    found.events.on("claim.lost", lost.append)
    done = [0]
    bodies = [{"number": one, "payload": "x" * 100} for one in range(messages)]

    def produce() -> None:
        if per_object > 1:
            found.enqueue_many(bodies, per_object=per_object, concurrency=concurrency)
            done[0] += messages
            return

        def one(body: dict[str, Any]) -> None:
            found.enqueue(body)
            done[0] += 1

        in_threads(concurrency, one, bodies)

    def handle_one(_message: dict) -> None: ...

    def handle_many(_messages: list[dict]) -> None: ...

    worker = Worker(found, handle_many if per_object > 1 else handle_one, concurrency=concurrency, sweep=number == 0)
    # What is imported late is imported before the clock runs.
    found.stats()
    print("ready", flush=True)
    began = 0.0
    for _ in sys.stdin:
        if not began:
            began = time.process_time()
            if role == "work":
                worker.start()
            else:
                threading.Thread(target=produce, daemon=True).start()
        did = worker.stats()["succeeded"] if role == "work" else done[0]
        print(json.dumps({"done": did, "lost": len(lost), "cpu_seconds": time.process_time() - began}), flush=True)
    if role == "work" and began:
        worker.stop()


if __name__ == "__main__":
    _main(**json.loads(sys.argv[1]))
