"""Cleanup: deletes heartbeats of dead workers, unused locks, and dead letters and runs past their retention."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from s3queue.documents.heartbeat import Heartbeat
from s3queue.errors import CorruptState, QueueError
from s3queue.protocol.access import QueueAccess
from s3queue.store import ObjectInfo, ObjectStore, delete_seen

from .report import Report

_log = logging.getLogger(__name__)
#: A worker that has not written its heartbeat for this many times as long as it counts is gone for good, and the
#: heartbeat is deleted.
SILENT_BEATS = 20
#: A heartbeat that cannot be read does not say for how long it counts: one of a launcher counts for ten minutes.
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
    #: Key and ETag of a heartbeat that was read → from which age on it is deleted.
    _heartbeats: dict[tuple[str, str], timedelta] = field(default_factory=dict)

    def remove_left_behind(self, kinds: set[str], report: Report) -> None:
        now = self.queue.clock.monotonic()
        if "workers" in kinds:
            self._remove_heartbeats(report)
        if "locks" in kinds:
            self._remove_older("locks", LOCK_KEPT, report)
        if now - self._checked_at >= RETENTION_SECONDS:
            self._checked_at = now
            if "dead" in kinds:
                self._remove_older("dead", self.queue.settings.dead_retention, report)
            if "runs" in kinds:
                self._remove_older("runs", self.queue.settings.record_retention, report)

    def _remove_heartbeats(self, report: Report) -> None:
        """The queue's timeout only says which heartbeats are worth a look: someone may have changed it since they were
        written. Each is deleted by its own time.
        """
        suspicious = self.queue.settings.visibility_timeout * SILENT_BEATS
        seen: set[tuple[str, str]] = set()
        for page in report.budget.pages(self.queue.keys.prefix("workers")):
            for entry in page.objects:
                age, which = page.at - entry.modified_at, (entry.key, entry.etag)
                if age <= suspicious:
                    continue
                seen.add(which)
                if which not in self._heartbeats:
                    report.budget.spend()
                    kept = _kept(self.queue.store, entry.key)
                    if kept is None:
                        continue
                    self._heartbeats[which] = kept
                if age > self._heartbeats[which]:
                    remove(self.queue.store, (entry,), report)
        self._heartbeats = {which: kept for which, kept in self._heartbeats.items() if which in seen}

    def _remove_older(self, kind: str, age: timedelta, report: Report) -> None:
        for page in report.budget.pages(self.queue.keys.prefix(kind)):
            remove(self.queue.store, (entry for entry in page.objects if page.at - entry.modified_at > age), report)


def _kept(store: ObjectStore, key: str) -> timedelta | None:
    """From which age on a heartbeat is deleted; None if that is unknown."""
    try:
        found = store.open(key)
        return Heartbeat.from_bytes(found.read(), key).ttl * SILENT_BEATS if found else None
    except (CorruptState, OverflowError):
        return HEARTBEAT_KEPT
    except QueueError as error:
        _log.warning("heartbeat not read, kept for the next sweep: %s: %s", key, error)
        return None


def remove(store: ObjectStore, entries: Iterable[ObjectInfo], report: Report) -> None:
    """Delete what was listed, unless it was written since. If a delete fails, the next sweep tries again."""
    for entry in entries:
        try:
            report.removed += delete_seen(store, entry.key, etag=entry.etag, modified_at=entry.modified_at)
        except QueueError as error:
            _log.warning("delete failed, kept for the next sweep: %s: %s", entry.key, error)
