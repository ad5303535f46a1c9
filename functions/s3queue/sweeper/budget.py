"""Budget: how much one sweep may still ask and how long it may still take."""

from __future__ import annotations

from collections.abc import Iterator

from s3queue.clock import Clock
from s3queue.store import ObjectStore, Page


class OutOfBudget(Exception):
    """Stops a sweep where it is; the next one goes on from there."""


class Budget:
    """Requests and seconds; asking costs."""

    def __init__(self, store: ObjectStore, clock: Clock, *, seconds: float, requests: int) -> None:
        self._store = store
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._left = requests
        self.spent = 0

    def spend(self, requests: int = 1) -> None:
        """Raises OutOfBudget if so many requests are not left, or no time."""
        if self._left < requests or self._clock.monotonic() >= self._deadline:
            raise OutOfBudget
        self._left -= requests
        self.spent += requests

    def first_list(self, prefix: str, *, delimiter: str) -> Page:
        """Owed, however small the budget: a sweep that never looks would never get on."""
        self._left -= 1
        self.spent += 1
        return self._store.list(prefix, delimiter=delimiter)

    def list(self, prefix: str, *, after: str = "") -> Page:
        self.spend()
        return self._store.list(prefix, after=after)

    def pages(self, prefix: str, after: str = "") -> Iterator[Page]:
        cursor: str | None = after
        while cursor is not None:
            page = self.list(prefix, after=cursor)
            yield page
            cursor = page.next_after
