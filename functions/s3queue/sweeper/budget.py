"""Budget: how many requests and how much time one sweep has left."""

from __future__ import annotations

from collections.abc import Iterator

from s3queue.clock import Clock
from s3queue.store import ObjectStore, Page


class OutOfBudget(Exception):
    """Ends a sweep; the next one continues from there."""


class Budget:
    """The requests and the seconds of one sweep."""

    def __init__(self, store: ObjectStore, clock: Clock, *, seconds: float, requests: int) -> None:
        self._store = store
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._left = requests
        self.spent = 0

    def spend(self, requests: int = 1) -> None:
        """Raises OutOfBudget if fewer requests are left, or no time."""
        if self._left < requests or self._clock.monotonic() >= self._deadline:
            raise OutOfBudget
        self._left -= requests
        self.spent += requests

    def first_list(self, prefix: str, *, delimiter: str) -> Page:
        """A LIST that is sent however small the budget is: a sweep that lists nothing would never make progress."""
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
