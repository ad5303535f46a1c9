"""HandOver: gives paths to the queue's worker, the most urgent first, and no more of them than it can use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from s3queue.paths import priority_of
from s3queue.queue import Queue

#: Paths in one dispatch.
DISPATCH_SIZE = 100

#: Hands paths to the queue's worker, in their order; returns how many of them it took (None: all). An error means that
#: they were not handed over.
Dispatch = Callable[[Sequence[str]], int | None]


@dataclass(slots=True)
class HandOver:
    """What one sweeper has handed over lately. Keep the instance between sweeps."""

    queue: Queue
    dispatch: Dispatch
    #: Told of every path that was handed over.
    handed_over: Callable[[Iterable[str]], None] = lambda paths: None
    _dispatched: dict[str, float] = field(default_factory=dict)
    #: How many paths this sweep may still hand over.
    _left: int = 0

    def begin(self) -> None:
        """A sweep begins. A worker drains the queue after a dispatch, so a few dispatches in all are enough."""
        # Here, not at every page: after a hundred pages of orphans there are tens of thousands of paths.
        again = self._again()
        self._dispatched = {path: at for path, at in self._dispatched.items() if at > again}
        self._left = DISPATCH_SIZE * self.queue.settings.concurrency

    def again(self, paths: Iterable[str]) -> set[str]:
        """Dispatch the paths even if they were dispatched lately; returns those that were."""
        if self.queue.settings.paused:
            return set()
        ordered = sorted(dict.fromkeys(paths), key=lambda path: (-priority_of(path), path))[: self._left]
        sent: set[str] = set()
        for start in range(0, len(ordered), DISPATCH_SIZE):
            chunk = ordered[start : start + DISPATCH_SIZE]
            taken = self.dispatch(chunk)
            if taken is not None and taken < len(chunk):
                # It has enough: what it did not take stays where it is, and a later sweep finds it again.
                self._left = 0
                chunk = chunk[:taken]
            self._left = max(0, self._left - len(chunk))
            sent.update(chunk)
            self.handed_over(chunk)
            self._dispatched |= dict.fromkeys(chunk, self.queue.clock.monotonic())
            if not self._left:
                break
        return sent

    def once(self, paths: Iterable[str]) -> int:
        """Dispatch the paths that were not dispatched lately; returns how many."""
        again = self._again()
        return len(self.again([path for path in paths if self._dispatched.get(path, again) <= again]))

    def _again(self) -> float:
        """A path that was dispatched at this time of the monotonic clock, or before, may be dispatched again."""
        return self.queue.clock.monotonic() - self.queue.settings.rescue_after.total_seconds()
