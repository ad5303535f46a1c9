"""Flow: what came in and went out in the last hour, by the minute, from a handful of LISTs.

Nothing counts messages as they pass: that would be a write each. But a record's `LastModified` is when its message was
finished, and a name that the library made (UUIDv7) tells when its message came, even when the message is gone. Such
names sort by time, so a LIST can begin an hour ago instead of five days ago.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from s3queue.documents.message import is_placeholder
from s3queue.encoding import format_instant
from s3queue.keys import format_due
from s3queue.queue import Queue
from s3queue.store import ObjectInfo

from . import models
from .bucket_view import PAGES

MINUTES = 60
#: LISTs that one look at one kind of object may take, and those of them for delayed ones.
BUDGET = 12
DUE_PAGES = 2
#: The part of the hour that is read first.
NEWEST_FROM = timedelta(minutes=53)
#: Groups inside groups: a priority, and a shard in it.
DEPTH = 2
#: The rates are those of this many whole minutes.
RATE_MINUTES = 5
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def made_at(path: str) -> datetime | None:
    """When a name that the library made was made; None for a name that someone else chose."""
    match = _UUID7.match(path.rpartition("/")[2])
    return datetime.fromtimestamp(int(match[1] + match[2], 16) / 1000, UTC) if match else None


def floor_name(at: datetime) -> str:
    """Sorts before every name that the library makes from then on."""
    digits = f"{int(at.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"


@dataclass(slots=True)
class Recent:
    """Looks for what was written since an instant, without reading what came before it."""

    queue: Queue
    since: datetime
    #: How long before it was written an object may have got its name: the time that a message waits.
    lag: timedelta
    budget: int = 0
    exact: bool = True

    def objects(self, kind: str) -> Iterator[ObjectInfo]:
        """Objects of a kind (`records`, `dead`, or the messages themselves as "") that were written since then."""
        self.budget = BUDGET
        root = self.queue.keys.prefix(kind) if kind else self.queue.keys.root
        for entry in [*self._due(f"{root}delayed/"), *self._under(f"{root}messages/", DEPTH)]:
            if entry.modified_at >= self.since and not is_placeholder(entry):
                yield entry

    def _under(self, prefix: str, depth: int) -> Iterator[ObjectInfo]:
        """One LIST if that shows all; else the last minutes first: the rates are right even if the hour is not."""
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
        """Delayed messages sort by when they are due, and are not done before."""
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
    """The last hour by the minute, and what the last minutes say about when the queue will be empty."""
    stats = queue.stats(pages=PAGES)
    now, pending = stats.at, stats.pending
    first = _minute(now) - timedelta(minutes=MINUTES - 1)
    recent = Recent(queue, first, timedelta(seconds=stats.oldest_seconds or 0))
    entered: Counter[datetime] = Counter()
    finished: Counter[datetime] = Counter()
    died: Counter[datetime] = Counter()
    unknown = 0
    for entry in recent.objects("records"):
        finished[_minute(entry.modified_at)] += 1
        came_at = made_at(entry.key)
        if came_at is None:
            unknown += 1
        elif came_at >= first:
            entered[_minute(came_at)] += 1
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


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)
