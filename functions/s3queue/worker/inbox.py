"""Inbox: what the sweep of a pull worker found for its threads: a few paths, the most urgent first."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence

from s3queue.paths import priority_of


class Inbox:
    """Paths to claim; safe for threads. What does not fit stays in the bucket, where the sweeper finds it again."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._order = 0
        self._heap: list[tuple[int, int, str]] = []
        self._paths: set[str] = set()
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._heap)

    def append(self, path: str) -> None:
        """Add a path that must not be left out."""
        with self._mutex:
            self._add(path)

    def accept(self, paths: Sequence[str]) -> int:
        """Add the first of these paths, as many as there is room for; returns how many."""
        with self._mutex:
            accepted = paths[: max(0, self._room - len(self._heap))]
            for path in accepted:
                self._add(path)
            return len(accepted)

    def _add(self, path: str) -> None:
        if path not in self._paths:
            self._paths.add(path)
            self._order += 1
            heapq.heappush(self._heap, (-priority_of(path), self._order, path))

    def take(self, *, above: int | None = None) -> str | None:
        """The most urgent path, then the one that came first; None if there is none, or none as urgent as `above`."""
        with self._mutex:
            if not self._heap or (above is not None and -self._heap[0][0] < above):
                return None
            path = heapq.heappop(self._heap)[2]
            self._paths.discard(path)
            return path
