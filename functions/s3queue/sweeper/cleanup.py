"""Cleanup: deletes heartbeats of dead workers, unused locks, and what is past its retention.

That is: dead letters, runs, and the markers of dedup ids.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from s3queue.documents.heartbeat import Heartbeat
from s3queue.documents.lease import GRAIN
from s3queue.errors import CorruptState, InvalidRequest, QueueError
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.liveness import RUN
from s3queue.protocol.locks import read_lock
from s3queue.store import Object, ObjectInfo, ObjectStore, Page, delete_seen, open_state

from .report import Report

_log = logging.getLogger(__name__)
#: A worker that has not written its heartbeat for this many times as long as it counts is gone for good, and the
#: heartbeat is deleted.
SILENT_BEATS = 20
#: A heartbeat that cannot be read does not say for how long it counts: one of a launcher counts for ten minutes.
HEARTBEAT_KEPT = timedelta(minutes=30)
#: A lock document is small and carries its fencing token; it is deleted when nobody has written it for this long, and
#: for longer than its own ttl.
LOCK_KEPT = timedelta(days=1)
#: A limit that nobody has written for this long counts nothing any more: the longest window is an hour.
LIMIT_KEPT = timedelta(hours=2)
#: How often locks and limits are listed.
LOCKS_SECONDS = 600.0
#: How often dead letters are checked for their retention.
RETENTION_SECONDS = 3600.0
#: Letters of this age and less are told of, so that deaths can be counted: a little more than the time between checks.
RECENT = timedelta(seconds=3 * RETENTION_SECONDS)
#: What is checked for its retention, in this order.
RETAINED = ("dead", "dedup", "runs")


@dataclass(slots=True)
class Cleanup:
    """Deletes old objects of one queue. Keep the instance between sweeps."""

    queue: QueueAccess
    #: The key after which a clean-up goes on that the budget ended.
    cursor: str = ""
    _checked_at: float = float("-inf")
    _locks_checked_at: float = float("-inf")
    #: Key and ETag of a heartbeat that was read → from which age on it is deleted.
    _heartbeats: dict[tuple[str, str], timedelta] = field(default_factory=dict)

    def is_needed(self, kinds: set[str]) -> bool:
        """Whether any kind has to be listed now."""
        now = self.queue.clock.monotonic()
        is_retention_due = now - self._checked_at >= RETENTION_SECONDS and not kinds.isdisjoint(RETAINED)
        are_locks_due = now - self._locks_checked_at >= LOCKS_SECONDS and bool(kinds & {"locks", "limits"})
        return bool(self.cursor) or "workers" in kinds or are_locks_due or is_retention_due

    def remove_left_behind(self, kinds: set[str], report: Report) -> None:
        now = self.queue.clock.monotonic()
        if "workers" in kinds:
            self._remove_heartbeats(report)
        are_locks_due = now - self._locks_checked_at >= LOCKS_SECONDS
        if "locks" in kinds and (are_locks_due or self._is_within("locks")):
            self._remove_locks(report)
        if "limits" in kinds and are_locks_due:
            self._remove_older("limits", LIMIT_KEPT, report)
        if are_locks_due:
            self._locks_checked_at = now
        if now - self._checked_at >= RETENTION_SECONDS or self.cursor:
            settings = self.queue.settings
            for kind in RETAINED:
                if kind in kinds:
                    kept = settings.dead_retention if kind == "dead" else settings.record_retention
                    self._remove_older(kind, kept, report)
            self._checked_at = now
        self.cursor = ""

    def _is_within(self, kind: str) -> bool:
        return self.cursor.startswith(self.queue.keys.prefix(kind))

    def _pages(self, kind: str, report: Report) -> Iterator[Page]:
        """The pages of a kind, from where the last clean-up ended if it ended in this kind."""
        prefix = self.queue.keys.prefix(kind)
        if self.cursor and not self._is_within(kind) and kind in RETAINED:
            # It ended in a later kind: that one comes first, and this one is not begun before it.
            if any(self._is_within(later) for later in RETAINED[RETAINED.index(kind) :]):
                return
            self.cursor = ""
        cursor = self.cursor if self._is_within(kind) else prefix
        for page in report.budget.pages(prefix, cursor):
            yield page
            if kind in RETAINED:
                self.cursor = page.next_after or ""

    def _remove_heartbeats(self, report: Report) -> None:
        """The queue's timeout only says which heartbeats are worth a look: someone may have changed it since they were
        written. Each is deleted by its own time.
        """
        suspicious = self.queue.settings.visibility_timeout * SILENT_BEATS
        seen: set[tuple[str, str]] = set()
        for page in self._pages("workers", report):
            for entry in page.objects:
                age, which = page.at - entry.modified_at, (entry.key, entry.etag)
                if age <= suspicious:
                    continue
                seen.add(which)
                if which not in self._heartbeats:
                    report.budget.check()
                    kept = _kept(report.budget.store, entry.key)
                    if kept is None:
                        continue
                    self._heartbeats[which] = kept
                if age > self._heartbeats[which]:
                    remove([entry], report)
        self._heartbeats = {which: kept for which, kept in self._heartbeats.items() if which in seen}

    def _remove_older(self, kind: str, age: timedelta, report: Report) -> None:
        is_whole, recent = not self.cursor, list[ObjectInfo]()
        for page in self._pages(kind, report):
            if kind == "dead":
                recent += (entry for entry in page.objects if page.at - entry.modified_at <= RECENT)
            old = (entry for entry in page.objects if page.at - entry.modified_at > age)
            remove((entry for entry in old if kind != "runs" or not self._is_at_work(entry.key, report)), report)
        if kind == "dead" and is_whole:
            report.letters = recent

    def _is_at_work(self, key: str, report: Report) -> bool:
        """Whether a Spark run has a heartbeat: a message may run, or the run may wait for its start, for longer than
        records are kept, and neither its slot nor its manifest is written meanwhile.  [P2]
        """
        report.budget.check(2)
        store, name = report.budget.store, key.rpartition("/")[2].removesuffix(".json")
        try:
            run = name if name.startswith(RUN) else _run_of(open_state(store, key))
            return bool(run) and store.head(self.queue.keys.worker(run)) is not None
        except (CorruptState, InvalidRequest):
            return False
        except QueueError as error:
            _log.warning("run not looked at, kept for the next sweep: %s: %s", key, error)
            return True

    def _remove_locks(self, report: Report) -> None:
        """Delete locks that nobody has written for long, unless their own ttl is longer still."""
        for page in self._pages("locks", report):
            for entry in page.objects:
                age = page.at - entry.modified_at
                if age <= LOCK_KEPT:
                    continue
                report.budget.check(2)
                try:
                    found = read_lock(report.budget.store, entry.key)
                except QueueError as error:
                    report.corrupt[entry.key] = str(error)
                    continue
                if found and found.etag == entry.etag and age > found.ttl + GRAIN:
                    remove([entry], report)


def _kept(store: ObjectStore, key: str) -> timedelta | None:
    """From which age on a heartbeat is deleted; None if that is unknown."""
    try:
        found = open_state(store, key)
        return Heartbeat.read(found).ttl * SILENT_BEATS if found else None
    except (CorruptState, OverflowError):
        return HEARTBEAT_KEPT
    except QueueError as error:
        _log.warning("heartbeat not read, kept for the next sweep: %s: %s", key, error)
        return None


def _run_of(slot: Object | None) -> str:
    # Not above: most queues have none.
    from s3queue.documents.run_documents import Slot

    return Slot.read(slot).run if slot else ""


def remove(entries: Iterable[ObjectInfo], report: Report) -> None:
    """Delete what was listed, unless it was written since. If a delete fails, the next sweep tries again."""
    for entry in entries:
        report.budget.check()
        try:
            report.removed += delete_seen(
                report.budget.store, entry.key, etag=entry.etag, modified_at=entry.modified_at
            )
        except QueueError as error:
            _log.warning("delete failed, kept for the next sweep: %s: %s", entry.key, error)
