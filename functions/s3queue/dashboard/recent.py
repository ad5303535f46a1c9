"""Recent: the objects of a queue that were written since an instant, from a few LISTs.

Nothing counts messages while they pass: that would cost a write each. But the `LastModified` of a record is when its
message was finished, and a name that the library made (UUIDv7) contains when its message was enqueued. Such names sort
by time, so a LIST can begin with the last hour instead of five days ago. A journal, which has the outcomes of many
messages of a partition, has such a name, too: it tells when they were committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from s3queue.documents.message import is_placeholder
from s3queue.paths import PARTITION, format_due
from s3queue.queue import Queue
from s3queue.store import ObjectInfo

#: LISTs for one kind of object at most, and how many of them for delayed messages.
BUDGET = 12
DUE_PAGES = 2
#: LISTs for the partitions of a queue, beside these: eight with a long history each need one of their own.
PARTITION_PAGES = 24
#: How far a worker's clock, which names its journals, may be behind S3's.
CLOCK_ERROR = timedelta(minutes=1)
#: The part of the hour that is read first.
NEWEST_FROM = timedelta(minutes=53)
#: Levels of groups: priorities, and shards in them.
DEPTH = 2
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def made_at(path: str) -> datetime | None:
    """When the library made this name; None if the producer chose it."""
    match = _UUID7.match(path.rpartition("/")[2])
    return datetime.fromtimestamp(int(match[1] + match[2], 16) / 1000, UTC) if match else None


def floor_name(at: datetime) -> str:
    """A text that sorts before every name that the library makes at or after this instant."""
    digits = f"{int(at.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"


@dataclass(slots=True)
class Recent:
    """Lists the objects that were written since an instant, and few of the older ones."""

    queue: Queue
    since: datetime
    #: How much older than the object its name can be: as long as a message waits.
    lag: timedelta
    budget: int = 0
    exact: bool = True

    def objects(self, kind: str) -> Iterator[ObjectInfo]:
        """Objects of a kind (`records`, `dead`, or "" for messages) that were written since then."""
        self.budget = BUDGET
        root = self.queue.keys.prefix(kind) if kind else self.queue.keys.root
        for entry in self._below(root):
            if entry.modified_at >= self.since and not is_placeholder(entry):
                yield entry

    def _below(self, root: str) -> Iterator[ObjectInfo]:
        self._spend()
        top = self.queue.store.list(root, delimiter="/")

        def may_have(folder: str) -> bool:
            return top.next_after is not None or any(prefix.startswith(root + folder) for prefix in top.prefixes)

        if may_have(PARTITION):
            yield from self._in_partitions(root + PARTITION, self.since - CLOCK_ERROR)
        if may_have("delayed/"):
            yield from self._due(f"{root}delayed/")
        if may_have("messages/"):
            yield from self._under(f"{root}messages/", DEPTH)

    def _under(self, prefix: str, depth: int) -> Iterator[ObjectInfo]:
        """One LIST if that shows all. Otherwise the last minutes come first, so that at least the rates are right."""
        if not self._spend():
            return
        top = self.queue.store.list(prefix, delimiter="/")
        groups = list(top.prefixes)
        if top.next_after is None:
            yield from top.objects
        else:
            start, middle = self.since - self.lag, self.since + NEWEST_FROM - self.lag
            yield from self._between(prefix, prefix + floor_name(middle), None, groups)
            yield from self._between(prefix, prefix + floor_name(start), prefix + floor_name(middle), groups)
        partitions = prefix + PARTITION
        if depth == DEPTH and any(group.startswith(partitions) for group in groups):
            yield from self._in_partitions(partitions, self.since - self.lag)
            groups = [group for group in groups if not group.startswith(partitions)]
        for group in dict.fromkeys(groups):
            if depth:
                yield from self._under(group, depth - 1)

    def _in_partitions(self, prefix: str, named_since: datetime) -> Iterator[ObjectInfo]:
        """Any number of folders with little in them, or a few with much: where a page ends in one, its older names are
        passed over.
        """
        cursor: str | None = prefix
        for _ in range(PARTITION_PAGES):
            page = self.queue.store.list(prefix, after=cursor or "")
            yield from page.objects
            cursor = page.next_after
            if cursor is None:
                return
            partition, slash, _ = cursor.removeprefix(prefix).partition("/")
            if slash:
                cursor = max(cursor, f"{prefix}{partition}/{floor_name(named_since)}")
        self.exact = False

    def _between(self, prefix: str, after: str, until: str | None, groups: list[str]) -> Iterator[ObjectInfo]:
        cursor: str | None = after
        while cursor is not None and (until is None or cursor < until) and self._spend():
            page = self.queue.store.list(prefix, after=cursor, delimiter="/")
            yield from (entry for entry in page.objects if until is None or entry.key <= until)
            groups += page.prefixes
            cursor = page.next_after

    def _due(self, prefix: str) -> Iterator[ObjectInfo]:
        """Delayed messages: their keys are in the order of their due times, and none is finished before that."""
        after: str | None = prefix if prefix == f"{self.queue.keys.root}delayed/" else prefix + format_due(self.since)
        for _ in range(DUE_PAGES):
            if after is not None and self._spend():
                page = self.queue.store.list(prefix, after=after)
                yield from page.objects
                after = page.next_after
        self.exact = self.exact and after is None

    def _spend(self) -> bool:
        self.budget -= 1
        self.exact = self.exact and self.budget >= 0
        return self.budget >= 0
