"""Unserved: messages that the sweeper handed over and that nobody could try: those that wait get their reminder back.

The sweeper deletes a reminder when it hands its message over. A message without a lease is found again by every LIST;
one whose lease waits is found by its reminder, or, much later, by the age of its lease.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from s3queue.errors import QueueError
from s3queue.queue import Queue
from s3queue.store import listing

_log = logging.getLogger(__name__)
#: A message that could not be tried is handed over again this much later, if the queue's limits do not say when.
AGAIN = timedelta(seconds=1)
#: How long a worker that stops writes reminders for what is left.
LEAVE_SECONDS = 5.0
#: Pages of leases that are listed; what lies behind them is taken to have one.
PAGES = 10


class Unserved:
    """Paths to hand over again; safe for threads. Costs nothing while there are none."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: Path → when the queue's limits permit it; None: they are not the reason.
        self._paths: dict[str, datetime | None] = {}
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: str, at: datetime | None = None) -> None:
        with self._mutex:
            self._paths[path] = at

    def not_tried(self, path: str) -> None:
        """The queue's limits did not permit it, or the store did not answer."""
        self.add(path, self._queue.free_at(path) if self._queue.gate else None)

    def forget(self) -> None:
        with self._mutex:
            self._paths.clear()

    def leave(self, take: Callable[[], str | None]) -> None:
        """The worker stops: all that `take` still gives is left to another one, which has to find it."""
        while path := take():
            self.add(path)
        until = self._queue.clock.monotonic() + LEAVE_SECONDS
        self.remind(after=timedelta(), is_over=lambda: self._queue.clock.monotonic() >= until)

    def remind(self, *, after: timedelta, is_over: Callable[[], bool] = lambda: False) -> None:
        """PUT a reminder for each that has a lease, as long as there is time: `after` this much, unless the limits say
        when. One LIST of the leases tells which have one, and S3's time. Never raises a QueueError: without its
        reminder, a message comes later.
        """
        with self._mutex:
            paths, self._paths = self._paths, {}
        if not paths:
            return
        try:
            leased, now = self._leased(sorted(paths))
        except QueueError as error:
            _log.warning("messages not reminded of, left to the sweeper: %s: %s", self._queue.name, error)
            return
        for path, at in paths.items():
            if path in leased and not is_over():
                self._queue.leases.remind(path, max(at or now + after, now).replace(microsecond=0))

    def _leased(self, paths: list[str]) -> tuple[set[str], datetime]:
        keys = self._queue.keys
        found: set[str] = set()
        # One character less than the first path, so that its own lease is listed too.
        for page in listing(self._queue.store, keys.prefix("leases"), after=keys.lease(paths[0])[:-1], pages=PAGES):
            found.update(path for entry in page.objects if (path := keys.path_under("leases", entry.key)))
            now, listed_to = page.at, page.next_after
            if listed_to is None or listed_to > keys.lease(paths[-1]):
                return found, now
        return found | {path for path in paths if keys.lease(path) > (listed_to or "")}, now
