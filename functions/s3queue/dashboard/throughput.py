"""Flow: how many messages came in and went out in each minute of the last hour, from a few LISTs.

Nothing counts messages while they pass: that would cost a write each. But the `LastModified` of a record is when its
message was finished, and a name that the library made (UUIDv7) contains when its message was enqueued. Such names sort
by time, so a LIST can begin with the last hour instead of five days ago.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from s3queue.documents.message import is_placeholder
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState
from s3queue.paths import format_due
from s3queue.queue import Queue
from s3queue.store import ObjectInfo

from . import models
from .bucket_view import PAGES, in_parallel

MINUTES = 60
#: LISTs for one kind of object at most, and how many of them for delayed messages.
BUDGET = 12
DUE_PAGES = 2
#: The part of the hour that is read first.
NEWEST_FROM = timedelta(minutes=53)
#: Levels of groups: priorities, and shards in them.
DEPTH = 2
#: The rates are averages of this many whole minutes.
RATE_MINUTES = 5
#: Records that are read because their names do not show when their messages came.
RECORDS_READ = 32
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
        for entry in [*self._due(f"{root}delayed/"), *self._under(f"{root}messages/", DEPTH)]:
            if entry.modified_at >= self.since and not is_placeholder(entry):
                yield entry

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
        for group in dict.fromkeys(groups):
            if depth:
                yield from self._under(group, depth - 1)

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


def flow(queue: Queue) -> models.Flow:
    """The last hour by the minute, the present rates, and when the queue will be empty at these rates."""
    stats = queue.stats(pages=PAGES)
    now, pending = stats.at, stats.pending
    first = _minute(now) - timedelta(minutes=MINUTES - 1)
    recent = Recent(queue, first, timedelta(seconds=stats.oldest_seconds or 0))
    entered: Counter[datetime] = Counter()
    finished: Counter[datetime] = Counter()
    died: Counter[datetime] = Counter()
    unknown = 0
    unnamed: list[ObjectInfo] = []
    for entry in recent.objects("records"):
        finished[_minute(entry.modified_at)] += 1
        came_at = made_at(entry.key)
        if came_at is None:
            unnamed.append(entry)
        elif came_at >= first:
            entered[_minute(came_at)] += 1
    # Only its record says when a message came whose name the producer chose. Of very many, the newest are read; the
    # others count when they were finished, so that none is forgotten.
    unnamed.sort(key=lambda entry: entry.modified_at, reverse=True)
    known = in_parallel(lambda entry: _came_at(queue, entry), unnamed[:RECORDS_READ])
    for entry, came_at in zip(unnamed, [*known, *([None] * len(unnamed))], strict=False):
        unknown += came_at is None
        if (came_at or entry.modified_at) >= first:
            entered[_minute(came_at or entry.modified_at)] += 1
    for entry in recent.objects(""):
        entered[_minute(entry.modified_at)] += 1
    for entry in recent.objects("dead"):
        died[_minute(entry.modified_at)] += 1
    minutes = [first + timedelta(minutes=index) for index in range(MINUTES)]
    whole = minutes[-RATE_MINUTES - 1 : -1]
    came, went = (sum(counts[minute] for minute in whole) / RATE_MINUTES for counts in (entered, finished))
    drain = pending / (went - came) * 60 if pending and went > came else None
    return models.Flow(
        at=format_instant(now),
        minutes=[
            models.Minute(
                at=format_instant(minute), entered=entered[minute], finished=finished[minute], died=died[minute]
            )
            for minute in minutes
        ],
        entered_per_minute=came,
        finished_per_minute=went,
        drain_seconds=drain if pending else 0.0,
        exact=recent.exact and stats.exact,
        unknown_entries=unknown,
    )


def _came_at(queue: Queue, entry: ObjectInfo) -> datetime | None:
    path = queue.keys.path_under("records", entry.key)
    try:
        record = queue.outcome_of(path) if path else None
    except CorruptState:
        return None
    return record.generation.put_at if record else None


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)
