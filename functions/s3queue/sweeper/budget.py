"""Budget: how many requests and how much time one sweep has left, and how its steps share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from s3queue.clock import Clock
from s3queue.store import ObjectStore, Page

_REQUESTS = frozenset({"put", "open", "head", "delete", "delete_many", "copy", "list"})


class OutOfBudget(Exception):
    """Ends a step of a sweep; the next sweep continues from there."""


class _CountedStore:
    """The same store; every request is counted, whoever sends it."""

    def __init__(self, store: ObjectStore, count: Callable[[], None]) -> None:
        self._store = store
        self._count = count

    def __getattr__(self, name: str) -> Any:
        if name in _REQUESTS:
            self._count()
        return getattr(self._store, name)


class Budget:
    """The requests and the seconds of one sweep. Requests that are sent through `store` are counted."""

    def __init__(self, store: ObjectStore, clock: Clock, *, seconds: float, requests: int) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._requests = requests
        #: The limits of the present step.
        self._step_requests = requests
        self._step_deadline = self._deadline
        self.spent = 0
        self.store = cast(ObjectStore, _CountedStore(store, self._count))

    def _count(self) -> None:
        self.spent += 1

    def check(self, requests: int = 1) -> None:
        """Raises OutOfBudget if the present step has fewer requests left, or no time."""
        if self.spent + requests > self._step_requests or self._clock.monotonic() >= self._step_deadline:
            raise OutOfBudget

    def left(self) -> int:
        """How many requests the present step has left."""
        return max(0, self._step_requests - self.spent)

    def allow(self, requests: int) -> None:
        """Give the sweep more requests."""
        self._requests += requests
        self._step_requests += requests

    @contextmanager
    def step(self, steps_left: int) -> Iterator[None]:
        """A step may use its share of what is left, so that no step uses up what the steps after it need.

        `steps_left` counts this one. What a step leaves over, the next ones may use.
        """
        now = self._clock.monotonic()
        self._step_requests = self.spent + -(-max(0, self._requests - self.spent) // steps_left)
        self._step_deadline = now + max(0.0, self._deadline - now) / steps_left
        try:
            yield
        finally:
            self._step_requests, self._step_deadline = self._requests, self._deadline

    def list(self, prefix: str, *, after: str = "") -> Page:
        self.check()
        return self.store.list(prefix, after=after)

    def pages(self, prefix: str, after: str = "") -> Iterator[Page]:
        cursor: str | None = after
        while cursor is not None:
            page = self.list(prefix, after=cursor)
            yield page
            cursor = page.next_after
