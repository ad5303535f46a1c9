"""PartitionEvents: what happened in partitions between two polls of `tail`: their leases and journals tell it.  [P9]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from s3queue.documents.partition import PartitionLease, Waiting, read_journal
from s3queue.documents.record import Record
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState
from s3queue.paths import partition_of, partition_path
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, listing, open_state

#: Partitions whose journals are listed at every poll, also if nothing was seen to change: the last ones that did.
WATCHED = 20
#: Pages of journals of one partition that one poll reads at most.
PAGES = 5

#: Event, path, when, and what else is known of it.
Told = tuple[str, str, datetime, dict[str, Any]]


def finished_facts(record: Record) -> dict[str, Any]:
    """What an event says of an outcome."""
    facts: dict[str, Any] = {"attempt": record.attempt, "worker": record.worker}
    if record.attempts:
        took = record.attempts[-1].ended_at - record.attempts[-1].started_at
        facts["took_seconds"] = round(took.total_seconds(), 3)
    if record.failure:
        facts |= {"error_type": record.failure.type, "error": record.failure.message}
    return facts


@dataclass(slots=True)
class PartitionEvents:
    """Compares the partitions of one poll with those of the last one. It GETs leases that changed and new journals."""

    queue: Queue
    requests: Counter[str]
    _leases: dict[str, PartitionLease] = field(default_factory=dict)
    #: The last partitions in which something changed, the newest last.
    _watched: dict[str, None] = field(default_factory=dict)
    _journals: set[str] = field(default_factory=set)
    #: Path and ETag of the messages whose outcome was told.
    _told: set[tuple[str, str]] = field(default_factory=set)

    def poll(
        self,
        messages: tuple[Mapping[str, ObjectInfo], Mapping[str, ObjectInfo]],
        leases: tuple[Mapping[str, str], Mapping[str, str]],
        since: datetime,
        cursor: str,
    ) -> Iterator[Told]:
        """The events between two polls, given the messages and the leases' ETags before and now, by path.

        `since`: journals that were written before then are no news. `cursor`: nor are those with smaller names.
        """
        before, now = ({path: info.etag for path, info in some.items() if partition_of(path)} for some in messages)
        changed = {partition_of(path) for path, _ in before.items() ^ now.items()}
        for path, etag in leases[1].items():
            if partition_of(path) and etag != leases[0].get(path):
                changed.add(partition_of(path))
                yield from self._leased(partition_of(path), since)
        changed |= {partition_of(path) for path in leases[0] if path not in leases[1] and partition_of(path)}
        self._leases = {name: lease for name, lease in self._leases.items() if partition_path(name) in leases[1]}
        for name in sorted(changed):
            self._watched.pop(name, None)
            self._watched[name] = None
        for name in list(self._watched)[: max(0, len(self._watched) - max(WATCHED, len(changed)))]:
            del self._watched[name]
        for name in sorted(self._watched):
            yield from self._finished(name, since, cursor)

    def is_told(self, path: str, etag: str) -> bool:
        """Whether the outcome of a message that is gone was an event before."""
        return (path, etag) in self._told

    def _leased(self, partition: str, since: datetime) -> Iterator[Told]:
        self.requests["get"] += 1
        found = open_state(self.queue.store, self.queue.keys.lease(partition_path(partition)))
        if found is None:
            return
        try:
            lease = PartitionLease.read(found)
        except CorruptState:
            return
        former = self._leases.get(partition)
        self._leases[partition] = lease
        yield from self._outcomes(lease.ended)
        for path, one in lease.waiting.items():
            known = former.waiting.get(path) if former else None
            if self._has_failed(one, known, since, is_known=former is not None):
                facts = {"attempt": one.lease.attempt, "worker": lease.owner}
                if failure := one.lease.failure:
                    facts |= {"error_type": failure.type, "error": failure.message}
                facts |= {"retry_at": format_instant(one.lease.retry_at)} if one.lease.retry_at else {}
                yield "message.retry" if failure else "message.released", path, found.modified_at, facts
        if lease.state == "processing":
            for path, etag in lease.taken.items():
                is_same = former is not None and former.owner == lease.owner and former.taken.get(path) == etag
                if not is_same and not self.is_told(path, etag):
                    attempt = lease.waiting[path].lease.attempt + 1 if path in lease.waiting else 1
                    yield "message.claimed", path, found.modified_at, {"attempt": attempt, "worker": lease.owner}

    @staticmethod
    def _has_failed(one: Waiting, known: Waiting | None, since: datetime, *, is_known: bool) -> bool:
        if known:
            return (known.lease.attempt, known.retry_at) != (one.lease.attempt, one.retry_at)
        # In a lease that was not read before, it may have failed long ago.
        return is_known or bool(one.lease.attempts and one.lease.attempts[-1].ended_at >= since)

    def _finished(self, partition: str, since: datetime, cursor: str) -> Iterator[Told]:
        prefix = self.queue.keys.journals(partition)
        for page in listing(self.queue.store, prefix, after=prefix + cursor, pages=PAGES):
            self.requests["list"] += 1
            for entry in page.objects:
                if entry.key in self._journals or entry.modified_at < since:
                    continue
                self._journals.add(entry.key)
                self.requests["get"] += 1
                found = open_state(self.queue.store, entry.key)
                try:
                    yield from self._outcomes(read_journal(found) if found else ())
                except CorruptState:
                    continue

    def _outcomes(self, records: Iterable[Record]) -> Iterator[Told]:
        for record in records:
            etag = record.generation.etag
            # The lease tells it first, then the journal; equal bytes may be PUT anew, and end a second time.
            known = (record.path, f"{etag} {format_instant(record.finished_at)}")
            if known not in self._told:
                self._told |= {known, (record.path, etag)}
                yield f"message.{record.outcome}", record.path, record.finished_at, finished_facts(record)
