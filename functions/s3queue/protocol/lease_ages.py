"""How old the leases are that a refill of the backlog has to know; from LISTs only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from s3queue.store import listing

from .access import QueueAccess


class LeaseAges:
    """The leases that one refill has to know."""

    def __init__(self, queue: QueueAccess) -> None:
        self._queue = queue
        self._ages: dict[str, timedelta] = {}
        self._are_all_known = False

    def between(self, first: str, last: str) -> Mapping[str, timedelta]:
        """Path → the age of its lease, at least for the paths from `first` to `last`."""
        keys = self._queue.keys
        if not self._are_all_known:
            # One character less than the first path, so that its own lease is listed too.
            for page in listing(self._queue.store, keys.prefix("leases"), after=keys.lease(first)[:-1]):
                for lease in page.objects:
                    if path := keys.path_under("leases", lease.key):
                        self._ages[path] = page.at - lease.modified_at
                if page.next_after is None or page.next_after > keys.lease(last):
                    # Delayed messages come first: what follows them is listed only once if it is not too much.
                    self._are_all_known = page.next_after is None and first.startswith("delayed/")
                    break
        return self._ages
