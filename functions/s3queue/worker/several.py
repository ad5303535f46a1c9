"""SeveralWorkers: the pull workers of several queues in one process, which ends when it has done or grown enough."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from .processes import resident_mib
from .pull_worker import Worker

LOOK_SECONDS = 0.2


class SeveralWorkers:
    """Starts, watches and stops workers together. Each has threads, a heartbeat and settings of its own."""

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        max_messages: int | None = None,
        max_mib: float | None = None,
        parent: int | None = None,
        memory: Callable[[], float] = resident_mib,
    ) -> None:
        """It stops after `max_messages` attempts, with more than `max_mib` of memory, and without its `parent`."""
        self._workers = workers
        self._max_messages, self._max_mib, self._parent = max_messages, max_mib, parent
        self._memory = memory
        self._ending, self._done = threading.Event(), threading.Event()
        #: Set if it has done or grown enough: a fresh process should take its place.
        self.is_worn = False

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """Let running handlers finish: first no worker claims any more, then each is waited for."""
        for worker in self._workers:
            worker.stop(timeout=0)
        for worker in self._workers:
            worker.stop()

    def run(self, is_stopping: Callable[[], bool], wait: Callable[[float], object]) -> None:
        """Work until it is to stop, or is worn."""
        self.start()
        while not is_stopping() and not self.has_to_end():
            wait(LOOK_SECONDS)
        self.stop()

    def run_until_empty(self, is_stopping: Callable[[], bool]) -> None:
        """Work until no message of any queue can run. A handler may send to another queue: after a round in which
        something ran, there is another one.
        """
        watch = threading.Thread(target=self._watch, args=(is_stopping,), name="process-watch", daemon=True)
        watch.start()
        try:
            before = -1
            while not self._ending.is_set() and before != (before := self.stats()["processed"]):
                for worker in self._workers:
                    if not self._ending.is_set():
                        worker.run_until_empty()
        finally:
            self._done.set()
            watch.join()

    def _watch(self, is_stopping: Callable[[], bool]) -> None:
        while not self._done.wait(LOOK_SECONDS):
            if is_stopping() or self.has_to_end():
                self._ending.set()
                # Again and again: a worker that begins in the same moment has forgotten it.
                for worker in self._workers:
                    worker.stop(timeout=0)

    def has_to_end(self) -> bool:
        if self._max_messages is not None and self.stats()["processed"] >= self._max_messages:
            self.is_worn = True
        if self._max_mib is not None and self._memory() > self._max_mib:
            self.is_worn = True
        return self.is_worn or (self._parent is not None and os.getppid() != self._parent)

    def stats(self) -> dict[str, int]:
        """The sum of what the workers count; see `Worker.stats`."""
        total: Counter[str] = Counter()
        for worker in self._workers:
            for name, count in worker.stats().items():
                total[name] += count
        return dict(total)
