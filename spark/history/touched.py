"""What the last computation of the statistics has seen, and so which hours may have changed since.

    analytics/state.json   {"v": 1, "queues": {"emails": {"since", "looked_at", "version", "skew_seconds", "problems"}}}

An hour changes when a record is stored that finished in it. A record's LastModified is S3's time, `finished_at` its
worker's: `skew_seconds` is how far the two have ever been apart. It is written last: a computation that dies is
repeated, and gives the same.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from s3queue.archive.parts import Part
from s3queue.archive.table import ArchiveTable, Snapshot
from s3queue.encoding import (
    NONSENSE,
    as_list,
    as_number,
    as_object,
    as_text,
    as_whole,
    format_instant,
    parse_instant,
    parse_json,
)
from s3queue.errors import Conflict, CorruptState, QueueError
from s3queue.keys import STATISTICS_STATE
from s3queue.store import Object, ObjectStore, open_state

_log = logging.getLogger("spark.statistics")
VERSION = 1
#: A larger document is not read: a hundred queues with a hundred keys each.
STATE_BYTES = 16 * 1024 * 1024
#: Objects that are no records: each is looked at again, up to so many of a queue.
PROBLEMS = 100
#: LastModified has whole seconds, and S3's machines need not agree to the second.
GRAIN = timedelta(minutes=1)
DAY = timedelta(days=1)
_DAY = re.compile(r"[0-9]{4}-[01][0-9]-[0-3][0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of one queue."""

    #: Hours before were never computed.
    since: datetime
    #: What S3 stored before was seen.
    looked_at: datetime
    #: The archive's version; None: there was no archive.
    version: int | None = None
    skew: timedelta = timedelta()
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        times = {name: format_instant(getattr(self, name)) for name in ("since", "looked_at")}
        return times | {
            "version": self.version,
            "skew_seconds": self.skew.total_seconds(),
            "problems": list(self.problems),
        }

    @classmethod
    def from_json(cls, found: Any) -> Seen:
        as_object(found)
        return cls(
            since=parse_instant(found["since"]),
            looked_at=parse_instant(found["looked_at"]),
            version=None if found["version"] is None else as_whole(found["version"]),
            skew=timedelta(seconds=as_number(found["skew_seconds"])),
            problems=tuple(as_text(key) for key in as_list(found["problems"])),
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """From `start` on, before `end`."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The hours of one queue that are computed anew, and what is known of it."""

    queue: str
    hours: tuple[Interval, ...]
    #: None: nothing was seen yet, or it makes no sense any more.
    seen: Seen | None
    skew: timedelta

    @property
    def first(self) -> datetime:
        return self.hours[0].start

    def stored(self) -> list[Interval]:
        """When S3 may have stored a record that finished in one of the hours."""
        slack = self.skew + GRAIN
        return merged(Interval(one.start - slack, one.end + slack) for one in self.hours)

    def needs(self, day: str) -> bool:
        """Whether a day of the archive may hold a row of these hours, or of a record that S3 stored at such a time."""
        return any(_day(one.start - self.skew) <= day <= _day(one.end + self.skew) for one in self.stored())

    def learned(self, skew: timedelta) -> Touched:
        """With what was found of the clocks. If it is more than was known, a new record may be of an hour before those
        that were asked for: it is among them then.
        """
        if self.seen is None:
            return replace(self, skew=skew)
        if skew <= self.skew:
            return self
        start = max(self.seen.since, floor_hour(self.seen.looked_at - skew - GRAIN))
        hours = merged([Interval(start, self.hours[-1].end), *self.hours])
        return replace(self, hours=tuple(hours), skew=skew)


class Versions:
    """Versions of the archive, each read once for all queues."""

    def __init__(self, archive: ArchiveTable, now: Snapshot | None) -> None:
        self.now = now
        self._archive = archive
        self._parts: dict[int, dict[str, list[Part]]] = {}
        self._known: dict[int, Snapshot | None] = {now.version: now} if now else {}

    def parts(self, snapshot: Snapshot, queue: str) -> list[Part]:
        if snapshot.version not in self._parts:
            grouped: dict[str, list[Part]] = defaultdict(list)
            for part in snapshot.parts():
                grouped[part.queue].append(part)
            self._parts[snapshot.version] = grouped
        return self._parts[snapshot.version].get(queue, [])

    def changed_days(self, queue: str, version: int | None) -> set[str] | None:
        """Days to which runs have added rows since a version; None: unknown. A compaction alone changes nothing."""
        if self.now is None:
            return set()
        try:
            before = self._at(version) if version is not None else None
        except QueueError as error:
            _log.warning("version %s of the archive not read, computing everything: %s", version, error)
            return None
        if before and before.commits(queue) == self.now.commits(queue):
            return set()
        known = {part.key for part in self.parts(before, queue)} if before else set()
        return {part.day for part in self.parts(self.now, queue) if part.key not in known}

    def _at(self, version: int) -> Snapshot | None:
        if version not in self._known:
            self._known[version] = self._archive.snapshot(version)
        return self._known[version]


def touched(versions: Versions, queue: str, seen: Seen | None, *, since: datetime, until: datetime) -> Touched:
    """Hours from the last look on, and the days whose files in the archive are others than then."""
    whole = (Interval(since, until),)
    if seen is None or seen.since > since:
        return Touched(queue=queue, hours=whole, seen=None, skew=DAY)
    days = versions.changed_days(queue, seen.version)
    if days is None:
        return Touched(queue=queue, hours=whole, seen=seen, skew=seen.skew)
    starts = [datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC) for day in days if _DAY.fullmatch(day)]
    hours = [Interval(max(at, since), at + DAY) for at in starts if at + DAY > since]
    last = Interval(max(since, floor_hour(seen.looked_at - seen.skew - GRAIN)), until)
    return Touched(queue=queue, hours=tuple(merged([*hours, last])), seen=seen, skew=seen.skew)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same instants in intervals that do not overlap, in order."""
    found: list[Interval] = []
    for one in sorted(intervals, key=lambda one: one.start):
        if found and one.start <= found[-1].end:
            found[-1] = Interval(found[-1].start, max(found[-1].end, one.end))
        elif one.start < one.end:
            found.append(one)
    return found


def _day(at: datetime) -> str:
    return at.strftime("%Y-%m-%d")


def floor_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def read_state(store: ObjectStore) -> dict[str, Seen]:
    """Queue → what was seen of it; queues whose entry makes no sense are left out, and computed whole."""
    found = open_state(store, STATISTICS_STATE)
    return _parsed(found) if found else {}


def _parsed(found: Object) -> dict[str, Seen]:
    try:
        document = as_object(parse_json(found.read(STATE_BYTES)))
        queues: Mapping[str, Any] = as_object(document["queues"]) if document.get("v") == VERSION else {}
    except (CorruptState, *NONSENSE):
        return {}
    state = {}
    for queue, entry in queues.items():
        try:
            state[queue] = Seen.from_json(entry)
        except NONSENSE:
            continue
    return state


def write_state(store: ObjectStore, seen: Mapping[str, Seen]) -> None:
    """Put what was seen beside that of other queues. Of two computations at once, the one that looked earlier counts:
    then hours are computed once more than needed, and never once too few.
    """
    while True:
        found = open_state(store, STATISTICS_STATE)
        state = _parsed(found) if found else {}
        before = dict(state)
        for queue, one in seen.items():
            state[queue] = one
        if found and state == before:
            return
        body = json.dumps({"v": VERSION, "queues": {queue: one.to_json() for queue, one in sorted(state.items())}})
        etag = found.etag if found else None
        try:
            store.put(
                STATISTICS_STATE, body.encode(), if_match=etag, if_absent=etag is None, content_type="application/json"
            )
            return
        except Conflict:
            continue  # another computation wrote its queues
