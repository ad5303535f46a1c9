"""Cleanup: deletes heartbeats of dead workers, unused locks, and dead letters and runs past their retention."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from s3queue.errors import QueueError
from s3queue.protocol.access import QueueAccess
from s3queue.store import ObjectInfo, ObjectStore, delete_seen

from .report import Report

_log = logging.getLogger(__name__)
#: A worker without a heartbeat for this many timeouts is gone for good, and its heartbeat is deleted.
SILENT_BEATS = 20
#: The heartbeat that a launcher writes for its run counts for minutes, whatever the queue's timeout.
HEARTBEAT_KEPT = timedelta(minutes=30)
#: A lock document is small and carries its fencing token; it is deleted when nobody has written it for this long.
LOCK_KEPT = timedelta(days=1)
#: How often dead letters are checked for their retention.
RETENTION_SECONDS = 3600.0


@dataclass(slots=True)
class Cleanup:
    """Deletes old objects of one queue. Keep the instance between sweeps."""

    queue: QueueAccess
    _checked_at: float = float("-inf")

    def remove_left_behind(self, kinds: set[str], report: Report) -> None:
        now = self.queue.clock.monotonic()
        if "workers" in kinds:
            silent = self.queue.settings.visibility_timeout * SILENT_BEATS
            self._remove_older("workers", max(silent, HEARTBEAT_KEPT) if "runs" in kinds else silent, report)
        if "locks" in kinds:
            self._remove_older("locks", LOCK_KEPT, report)
        if now - self._checked_at >= RETENTION_SECONDS:
            self._checked_at = now
            if "dead" in kinds:
                self._remove_older("dead", self.queue.settings.dead_retention, report)
            if "runs" in kinds:
                self._remove_older("runs", self.queue.settings.record_retention, report)

    def _remove_older(self, kind: str, age: timedelta, report: Report) -> None:
        for page in report.budget.pages(self.queue.keys.prefix(kind)):
            remove(self.queue.store, (entry for entry in page.objects if page.at - entry.modified_at > age), report)


def remove(store: ObjectStore, entries: Iterable[ObjectInfo], report: Report) -> None:
    """Delete what was listed, unless it was written since. If a delete fails, the next sweep tries again."""
    for entry in entries:
        try:
            report.removed += delete_seen(store, entry.key, etag=entry.etag, modified_at=entry.modified_at)
        except QueueError as error:
            _log.warning("delete failed, kept for the next sweep: %s: %s", entry.key, error)
