"""The last hour in `stats.json`: what has finished lately, in slices of five minutes, as a sweeper has seen it.

    "hour": {"looked_at": "2026-11-16T12:03:41Z", "oldest_at": "2026-11-16T12:03:02Z",
             "slices": [{"at": "2026-11-16T12:00:00Z", "minutes": [22, 19, 25, 9, 0], "read": 60, "effort": 93.7, …}]}

What was counted are objects, by the time at which S3 stored them. What was read is a sample of them: sums and
histograms are weighted, so that they stand for all. A histogram's bucket is ten per cent wide.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from s3queue.encoding import (
    LARGEST,
    NONSENSE,
    as_list,
    as_number,
    as_object,
    as_text,
    as_whole,
    format_instant,
    parse_instant,
)

from .record import Record

SLICE = timedelta(minutes=5)
HOUR = timedelta(hours=1)
_MINUTES = int(SLICE / timedelta(minutes=1))
#: Each bucket of a histogram ends where its duration is so many times that of the one before; the first ends at 1 ms.
_WIDTH = 1.1
_FIRST_SECONDS = 0.001
#: A percentile is the middle of a bucket, so this is how far off it can be.
VALUE_ERROR = round(math.sqrt(_WIDTH) - 1, 3)
_LAST_BUCKET = 400
#: Types of errors that one slice tells of.
ERRORS = 10
_ERROR_CHARACTERS = 100
#: What is summed up of the records that were read.
SUMS = ("messages", "completed", "dead", "cancelled", "retried")
#: More are not read: thirteen, and what is forgotten late.
_SLICES = 30


Counts = defaultdict[str, float]
Histogram = defaultdict[int, float]


def bucket_of(seconds: float) -> int:
    """The bucket of a histogram; 0 up to a millisecond."""
    if seconds <= _FIRST_SECONDS:
        return 0
    return min(_LAST_BUCKET, math.ceil(math.log(seconds / _FIRST_SECONDS) / math.log(_WIDTH)))


def seconds_of(bucket: int) -> float:
    """The middle of a bucket."""
    return 0.0 if bucket == 0 else float(f"{_FIRST_SECONDS * _WIDTH ** (bucket - 0.5):.3g}")


@dataclass(slots=True, kw_only=True)
class Slice:
    """Five minutes of a queue."""

    at: datetime
    #: Outcomes, by the minute, as names tell: those of a journal, the lines of a batch, else one.
    minutes: list[int] = field(default_factory=lambda: [0] * _MINUTES)
    #: Objects that were found, and of them, those that were read.
    objects: int = 0
    read: int = 0
    #: The square of how many each object that was read stands for, summed up: how uneven the sample is.
    effort: float = 0.0
    sums: Counts = field(default_factory=lambda: defaultdict(float))
    #: Bucket → objects.
    wait: Histogram = field(default_factory=lambda: defaultdict(float))
    run: Histogram = field(default_factory=lambda: defaultdict(float))
    #: Attempts that failed, by the type of the error.
    errors: Counts = field(default_factory=lambda: defaultdict(float))
    #: Letters that were written to `dead/`.
    letters: int = 0
    #: False: not everything was listed, and the counts are lower bounds.
    complete: bool = True

    @property
    def finished(self) -> int:
        return sum(self.minutes)

    def add(self, records: Iterable[Record], weight: float, due_at: datetime | None) -> None:
        """Add the outcomes in one object, which stands for `weight` objects."""
        self.read += 1
        self.effort += weight * weight
        for record in records:
            self._add(record, weight, due_at)

    def _add(self, record: Record, weight: float, due_at: datetime | None) -> None:
        lines = record.lines or {}
        total = int(lines.get("total") or 1)
        dead = int(lines.get("dead", 0)) if lines else int(record.outcome == "dead")
        completed = int(lines.get("completed", 0)) if lines else int(record.outcome == "completed")
        counted = {"messages": total, "completed": completed, "dead": dead}
        counted |= {"cancelled": total if record.outcome == "cancelled" else 0, "retried": int(record.attempt > 1)}
        for name, number in counted.items():
            self.sums[name] += number * weight
        if record.attempts:
            ready_at = max(record.generation.put_at, due_at or record.generation.put_at)
            first, last = record.attempts[0], record.attempts[-1]
            self.wait[bucket_of((first.started_at - ready_at).total_seconds())] += weight
            self.run[bucket_of((last.ended_at - last.started_at).total_seconds())] += weight
        for attempt in record.attempts:
            if attempt.failure:
                self.errors[attempt.failure.type[:_ERROR_CHARACTERS]] += weight

    def to_json(self) -> dict[str, Any]:
        return {
            "at": format_instant(self.at),
            "minutes": self.minutes,
            "objects": self.objects,
            "read": self.read,
            "effort": _short(self.effort),
            "sums": {name: _short(number) for name, number in self.sums.items() if number},
            "wait": {str(bucket): _short(number) for bucket, number in sorted(self.wait.items())},
            "run": {str(bucket): _short(number) for bucket, number in sorted(self.run.items())},
            "errors": {name: _short(number) for name, number in most_common(self.errors, ERRORS)},
            "letters": self.letters,
        } | ({} if self.complete else {"complete": False})

    @classmethod
    def from_json(cls, found: Any) -> Slice:
        as_object(found)
        minutes = [as_whole(count) for count in as_list(found["minutes"])]
        if len(minutes) != _MINUTES:
            raise ValueError(f"{len(minutes)} minutes")
        return cls(
            at=slice_of(parse_instant(found["at"])),
            minutes=minutes,
            objects=as_whole(found["objects"]),
            read=as_whole(found["read"]),
            effort=_amount(found["effort"]),
            sums=_counts({name: as_object(found["sums"]).get(name, 0) for name in SUMS}),
            wait=_histogram(found["wait"]),
            run=_histogram(found["run"]),
            errors=_counts(as_object(found["errors"])),
            letters=as_whole(found["letters"]),
            complete=found.get("complete", True) is True,
        )


@dataclass(slots=True, kw_only=True)
class HourDocument:
    """What one sweeper knows of the last hour."""

    #: Everything before is counted.
    looked_at: datetime
    #: When the oldest message was PUT, or due, that was there at that time: what finishes next may be as old.
    oldest_at: datetime
    slices: dict[datetime, Slice] = field(default_factory=dict)

    def slice_at(self, at: datetime) -> Slice:
        start = slice_of(at)
        return self.slices.setdefault(start, Slice(at=start))

    def count(self, at: datetime, outcomes: int) -> None:
        """An object with so many outcomes was stored at that time."""
        found = self.slice_at(at)
        found.objects += 1
        found.minutes[int((at - found.at) / timedelta(minutes=1))] += outcomes

    def forget(self, now: datetime) -> None:
        """Drop what is older than an hour."""
        self.slices = {at: one for at, one in self.slices.items() if at > now - HOUR - SLICE}

    def to_json(self) -> dict[str, Any]:
        return {
            "looked_at": format_instant(self.looked_at),
            "oldest_at": format_instant(self.oldest_at),
            "slices": [one.to_json() for _, one in sorted(self.slices.items())],
        }

    @classmethod
    def from_json(cls, found: Any) -> HourDocument | None:
        """None if it makes no sense, or there is none: the figures begin anew."""
        try:
            as_object(found)
            slices = [Slice.from_json(one) for one in as_list(found["slices"])[:_SLICES]]
            return cls(
                looked_at=parse_instant(found["looked_at"]),
                oldest_at=parse_instant(found["oldest_at"]),
                slices={one.at: one for one in slices},
            )
        except NONSENSE:
            return None


def slice_of(at: datetime) -> datetime:
    """When its slice begins."""
    return at.replace(minute=at.minute - at.minute % _MINUTES, second=0, microsecond=0)


def most_common(counts: Mapping[str, float], limit: int) -> list[tuple[str, float]]:
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:limit]


def _counts(found: Mapping[str, Any]) -> Counts:
    return defaultdict(float, {as_text(name)[:_ERROR_CHARACTERS]: _amount(count) for name, count in found.items()})


def _histogram(found: Any) -> Histogram:
    counts = _counts(as_object(found))
    return defaultdict(float, {as_whole(int(name), most=_LAST_BUCKET): count for name, count in counts.items()})


def _amount(value: Any) -> float:
    """A sum that a sweeper can have written: none is negative, and all of them together are a number."""
    if not 0 <= as_number(value) <= LARGEST:
        raise ValueError("a sum is out of reach")
    return float(value)


def _short(number: float) -> float | int:
    return int(number) if number == int(number) else float(f"{number:.5g}")
