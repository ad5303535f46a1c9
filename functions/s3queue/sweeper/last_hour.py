"""LastHourStep: counts what has finished since the last look, from a few LISTs and a sample of the records.

Nothing counts messages while they pass: that would cost a write each. But S3 dates each record when it is stored, and
names that the library makes begin with the time at which their message was enqueued: a LIST can begin with the oldest
message that was there at the last look. What is found is published with the stats, so it costs no PUT of its own.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from s3queue.documents.hour_document import HOUR, HourDocument
from s3queue.documents.message import is_placeholder
from s3queue.documents.partition import read_journal
from s3queue.documents.record import Record
from s3queue.encoding import load
from s3queue.errors import CorruptState, QueueError
from s3queue.paths import PARTITION, due_of, format_due, name_before
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.stats import STATS_BYTES
from s3queue.store import ObjectInfo, Page, open_state

from .budget import OutOfBudget
from .report import Report

_log = logging.getLogger(__name__)
#: Between two looks while the queue has work, and while it has none.
BUSY_SECONDS = 60.0
IDLE_SECONDS = 600.0
#: Records that one look reads; if there are more, so many of them, by chance.
SAMPLE = 20
#: LISTs of one look, for records and for dead letters each; beyond that, its count is a lower bound.
LISTS = 24
#: Of these, for names that others have chosen: they are in no order of time.
OTHER_LISTS = 2
#: Levels of folders: priorities, and shards in them.
DEPTH = 2
#: How far a producer's clock, which is in the names, may be behind S3's.
CLOCK_ERROR = timedelta(minutes=1)
#: What was stored so lately may not be dated yet.
SETTLED = timedelta(seconds=2)
#: Behind all names that begin with a time.
_BEHIND_TIMES = "g"


@dataclass(slots=True)
class LastHourStep:
    """What one sweeper knows of its queue's last hour. Keep the instance between sweeps."""

    queue: QueueAccess
    hour: HourDocument | None = None
    #: Messages that died between the last two looks, as far as the records tell that were read.
    died: int = 0
    #: By S3's clock: that of a function which is frozen between its sweeps stands still meanwhile.
    _looked_at: datetime | None = None
    #: The oldest message that any sweep has seen since the last look, and until then.
    _oldest_at: datetime | None = None
    _listed: int = 0
    _is_complete: bool = True

    def take(self, kinds: set[str], report: Report, root: Page, *, oldest_at: datetime | None, is_busy: bool) -> bool:
        """Look, if it is time to; whether anything was found. `oldest_at`: of the messages that this sweep has seen.

        Never fails a sweep: what could not be read now is looked for at the next one.
        """
        if oldest_at:
            self._oldest_at = min(self._oldest_at or oldest_at, oldest_at)
        if not self._is_due(root.at, is_busy) or not self.queue.settings.history or "records" not in kinds:
            return False
        try:
            found = self._look(kinds, report, root, oldest_at or root.at)
        except OutOfBudget:
            return False
        except QueueError as error:
            _log.warning("last hour not counted, trying again at the next sweep: %s: %s", self.queue.name, error)
            return False
        except Exception:
            # Whatever it was: messages do not wait for figures. They begin anew, and not before the next look.
            _log.exception("last hour not counted, beginning anew: %s", self.queue.name)
            self.hour, self._looked_at = None, root.at
            return False
        self._looked_at = root.at
        return found

    def _is_due(self, now: datetime, is_busy: bool) -> bool:
        pause = BUSY_SECONDS if is_busy else IDLE_SECONDS
        return self._looked_at is None or abs((now - self._looked_at).total_seconds()) >= pause

    def _look(self, kinds: set[str], report: Report, root: Page, oldest_at: datetime) -> bool:
        until = root.at.replace(microsecond=0) - SETTLED
        hour = self.hour = self.hour or self._published(report, root, until)
        since = max(hour.looked_at, until - HOUR)
        if since >= until:
            return False
        named_since = min(since, hour.oldest_at, self._oldest_at or since) - CLOCK_ERROR
        self._is_complete = True
        found = [*self._stored("records", report, named_since, since, until)]
        # Who reads every record knows who died. Letters are dated as their records are, or a moment later.
        is_sampled = len(found) > SAMPLE and "dead" in kinds
        letters = [*self._stored("dead", report, named_since, since, until)] if is_sampled else []
        read = self._read_some(found, report)
        for entry in found:
            hour.count(entry.modified_at, self.queue.keys.records_at(entry.key))
        for entry, records in read:
            path = self.queue.keys.path_under("records", entry.key)
            hour.slice_at(entry.modified_at).add(records, len(found) / len(read), due_of(path) if path else None)
        dead = sum(any(map(_died, records)) for _, records in read)
        self.died = math.ceil(dead * len(found) / len(read)) if read else 0
        for entry in letters:
            hour.slice_at(entry.modified_at).letters += 1
        if not self._is_complete:
            hour.slice_at(until).complete = False
        hour.looked_at, hour.oldest_at, self._oldest_at = until, oldest_at, oldest_at
        hour.forget(until)
        return bool(found) or not self._is_complete

    def _published(self, report: Report, root: Page, now: datetime) -> HourDocument:
        """What the last process knew. It is read only if the LIST of the queue shows it, or cannot tell."""
        key = self.queue.keys.stats
        if root.next_after is not None or any(entry.key == key for entry in root.objects):
            report.budget.check()
            found = open_state(report.budget.store, key)
            try:
                hour = HourDocument.from_json(load(found.read(STATS_BYTES), key).get("hour")) if found else None
            except CorruptState:
                hour = None
            if hour and hour.looked_at <= now:
                return hour
        return HourDocument(looked_at=now - HOUR, oldest_at=now - 2 * HOUR)

    def _stored(
        self, kind: str, report: Report, named_since: datetime, since: datetime, until: datetime
    ) -> Iterator[ObjectInfo]:
        """Objects of a kind that S3 stored since then."""
        self._listed = 0
        for entry in self._listing(kind, report, named_since):
            if since <= entry.modified_at < until and not is_placeholder(entry):
                yield entry

    def _listing(self, kind: str, report: Report, named_since: datetime) -> Iterator[ObjectInfo]:
        prefix = self.queue.keys.prefix(kind)
        top = self._list(report, prefix, "")
        if top is None:
            return
        self._is_complete = self._is_complete and top.next_after is None
        for folder in top.prefixes:
            name = folder.removeprefix(prefix)
            if name == "delayed/":
                yield from self._flat(report, folder, folder + format_due(named_since))
            elif name.startswith(PARTITION):
                yield from self._flat(report, folder, folder + name_before(named_since))
            elif name == "messages/":
                yield from self._named(report, folder, named_since, DEPTH)

    def _flat(self, report: Report, folder: str, after: str) -> Iterator[ObjectInfo]:
        cursor: str | None = after
        while cursor is not None and (page := self._list(report, folder, cursor, flat=True)):
            yield from page.objects
            cursor = page.next_after

    def _named(self, report: Report, folder: str, named_since: datetime, depth: int) -> Iterator[ObjectInfo]:
        # What lies in a shard has no further ones.
        is_shard = len(folder.rstrip("/").rpartition("/")[2]) == 2
        shards = 0 if is_shard or not depth else self.queue.settings.shards
        folders = [f"{folder}{number:02x}/" for number in range(shards)]
        others = 0
        cursor: str | None = folder + name_before(named_since)
        while cursor is not None and (page := self._list(report, folder, cursor)):
            yield from page.objects
            folders += page.prefixes
            cursor = page.next_after
            others += cursor is not None and cursor > folder + _BEHIND_TIMES
            if others >= OTHER_LISTS and cursor is not None:
                self._is_complete = False
                break
        for inner in dict.fromkeys(folders) if depth else ():
            yield from self._named(report, inner, named_since, depth - 1)

    def _list(self, report: Report, prefix: str, after: str, *, flat: bool = False) -> Page | None:
        """One LIST; None if this look has had enough of them."""
        if self._listed >= LISTS:
            self._is_complete = False
            return None
        self._listed += 1
        report.budget.check()
        return report.budget.store.list(prefix, after=after, delimiter="" if flat else "/")

    def _read_some(self, found: list[ObjectInfo], report: Report) -> list[tuple[ObjectInfo, tuple[Record, ...]]]:
        read = []
        for entry in heapq.nsmallest(SAMPLE, found, _lot):
            report.budget.check()
            try:
                stored = open_state(report.budget.store, entry.key)
                if stored is None:
                    continue
                is_journal = entry.key.startswith(self.queue.keys.journals(PARTITION).rstrip("/"))
                read.append((entry, read_journal(stored) if is_journal else (Record.read(stored),)))
            except CorruptState:
                continue  # garbage: the archive and the API tell of it
        return read


def _died(record: Record) -> bool:
    return record.outcome == "dead" or bool((record.lines or {}).get("dead"))


def _lot(entry: ObjectInfo) -> bytes:
    """A digest has nothing to do with how long a message took, and is the same for whoever looks again."""
    return hashlib.sha256(f"{entry.key}\n{entry.etag}".encode("utf-8", "surrogatepass")).digest()
