"""Queue: enqueue, claim, complete, fail, extend, release, status, stats: what producers, workers and operators call."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from .backlog import Backlog
from .claim import Claim
from .consumer import Consumer
from .errors import CorruptState, QueueError
from .lease import Lease
from .producer import Producer
from .stats import Stats, measure
from .status import Status, read_status
from .store import ObjectInfo, delete_surely, listing

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Queue(Producer, Consumer):
    """One queue of a bucket. Safe for threads; make one per process and queue."""

    # Workers

    def claim_next(self, limit: int = 1, *, timeout: float | timedelta | None = None) -> list[Claim]:
        """Up to `limit` messages that may run now, highest priority first, then oldest; none while paused."""
        self.refresh()
        if self.settings.paused:
            return []
        backlog = Backlog(self)
        claims: list[Claim] = []
        for candidate in backlog.drain():
            try:
                claim = self.claim(candidate.path, timeout=timeout, look=candidate.look)
            except CorruptState as error:
                _log.warning("%s", error)  # one message that only an operator can help must not stop the others
                claim = None
            except QueueError:
                if not claims:
                    raise
                break  # what is claimed must reach the caller, or it would be nobody's until it runs out
            backlog.report(won=claim is not None)
            if claim:
                claims.append(claim)
            if len(claims) >= limit:
                break
        return claims

    # Operators

    def status(self, path: str) -> Status:
        """Where a message stands, and everything known of its life.

        Raises:
            MessageNotFound: no message, lease, record or dead letter has this path.
        """
        return read_status(self.store, self.keys, path)

    def stats(self, *, pages: int | None = None) -> Stats:
        """Count now. `pages` bounds the LISTs per kind of object (1,000 each)."""
        return measure(self.store, self.keys, pages=pages)

    def cleanup(self) -> int:
        """Delete records and dead letters past their retention; how many. For buckets without lifecycle rules."""
        deleted = 0
        retentions = {"records": self.settings.record_retention, "dead": self.settings.dead_retention}
        for kind, retention in retentions.items():
            for page in listing(self.store, self.keys.prefix(kind)):
                for entry in page.objects:
                    if page.at - entry.modified_at > retention:
                        # If it was replaced since the LIST, it is a younger one's: leave it.
                        deleted += delete_surely(self.store, entry.key, if_match=entry.etag)
        return deleted

    def purge(self) -> int:
        """Delete every message that nobody is working on, without a record; how many. What runs now is finished."""
        deleted = 0
        for kind in ("messages", "delayed"):
            for page in listing(self.store, self.keys.prefix(kind)):
                deleted += sum(self.purge_message(entry) for entry in page.objects)
        return deleted

    def purge_message(self, entry: ObjectInfo) -> bool:
        """Delete one listed message without a record, unless someone works on it or PUT it anew; whether it is gone."""
        path = self.keys.path(entry.key)
        found = self.store.open(self.keys.lease(path)) if path else None
        if found and path:
            try:
                waits = Lease.from_bytes(found.read(), found.key).state == "waiting"
            except CorruptState:
                waits = False
            if not waits or not delete_surely(self.store, found.key, if_match=found.etag):
                return False
        return delete_surely(self.store, entry.key, if_match=entry.etag)
