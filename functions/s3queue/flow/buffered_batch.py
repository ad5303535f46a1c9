"""Batch: bodies of a buffer on their way into one object, and the futures of those who added them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple


class Stored(NamedTuple):
    """Where a body lies: the path of its batch, and its line there, counted from 1."""

    path: str
    line: int


@dataclass(slots=True, eq=False)
class Batch:
    """Lines, and what became of them. The buffer decides which thread has it."""

    #: By the queue's monotonic clock.
    opened_at: float
    lines: list[bytes] = field(default_factory=list)
    futures: list[Future[Stored]] = field(default_factory=list)
    size: int = 0
    #: A thread stores it, or tells its futures.
    is_begun: bool = False
    #: Given once: if its PUT is interrupted, the next one is of the same object.
    path: str = ""
    problem: Exception | None = None
    #: All futures have its path, or its problem.
    is_told: bool = False

    def add(self, line: bytes) -> Future[Stored]:
        future: Future[Stored] = Future()
        # It is on its way from here on: nobody can take it back.
        future.set_running_or_notify_cancel()
        self.lines.append(line)
        self.futures.append(future)
        self.size += len(line)
        return future

    def tell(self) -> None:
        """Tell all futures. If a callback exits, or Ctrl-C comes, that is raised after all are told: nobody would come
        back to the others. What is only an error in a callback is logged by its future.
        """
        interruption: BaseException | None = None
        while not self.is_told:
            try:
                for number, future in enumerate(self.futures, 1):
                    if future.done():
                        continue
                    if self.problem is not None:
                        future.set_exception(self.problem)
                    else:
                        future.set_result(Stored(self.path, number))
                self.is_told = True
            except BaseException as error:
                interruption = interruption or error
        if interruption is not None:
            raise interruption
