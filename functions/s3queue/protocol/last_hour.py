"""LastHour: the figures of a queue's last hour, as a sweeper counted them. No Spark, one GET."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from s3queue.documents.hour_document import (
    HOUR,
    SLICE,
    VALUE_ERROR,
    HourDocument,
    Slice,
    most_common,
    seconds_of,
    slice_of,
)
from s3queue.encoding import format_instant, load
from s3queue.errors import CorruptState
from s3queue.keys import Keys
from s3queue.store import ObjectStore, open_state

from .stats import STATS_BYTES

K = TypeVar("K", str, int)
#: Types of errors that are told.
LISTED = 10
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Of 20 hours, the error is larger in one: ln(2 / 0.05) / 2, as Dvoretzky, Kiefer and Wolfowitz say.
_CONFIDENCE = math.log(2 / 0.05) / 2
NO_SWEEPER = "no sweeper has counted yet; one does within a minute, or ten, after something has finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHour:
    """What finished within the last hour. `finished` counts outcomes, of a batch its lines if its name tells; the other
    counts are of messages, and estimates if not every record was read.
    """

    queue: str
    #: Why there are no figures; empty if there are.
    reason: str = ""
    since: datetime | None = None
    #: When the sweeper looked last: what finished later is not in it.
    counted_at: datetime | None = None
    finished: int = 0
    messages: float = 0
    completed: float = 0
    dead: float = 0
    cancelled: float = 0
    #: Objects that took more than one attempt.
    retried: float = 0
    success_rate: float | None = None
    wait: dict[str, float | None] = field(default_factory=dict)
    run: dict[str, float | None] = field(default_factory=dict)
    #: Failed attempts by the type of their error, the most frequent first.
    errors: tuple[tuple[str, float], ...] = ()
    #: Objects that were finished, by the minute.
    minutes: tuple[tuple[datetime, int], ...] = ()
    #: Objects that were read; `sampled`: not all.
    read: int = 0
    sampled: bool = False
    #: How far off a percentile's rank may be, with 95 % confidence: 0.04 means that p95 is between p91 and p99.
    rank_error: float = 0.0
    #: How far off its value may be besides, as a share of it.
    value_error: float = VALUE_ERROR
    #: False: `finished` is a lower bound, because not everything could be listed.
    complete: bool = True

    @property
    def available(self) -> bool:
        return not self.reason

    def to_json(self) -> dict[str, Any]:
        told = asdict(self)
        for what in ("wait", "run"):
            found = told.pop(what)
            told |= {f"{what}_{name}_seconds": found.get(name) for name in _QUANTILES}
        return told | {
            "available": self.available,
            "since": format_instant(self.since) if self.since else None,
            "counted_at": format_instant(self.counted_at) if self.counted_at else None,
            "errors": [{"error_type": name, "failed_attempts": count} for name, count in self.errors],
            "minutes": [{"at": format_instant(at), "finished": count} for at, count in self.minutes],
        }


def read_last_hour(store: ObjectStore, keys: Keys, *, history: bool = True) -> LastHour:
    """See `Queue.last_hour`."""
    if not history:
        return LastHour(queue=keys.queue, reason="the queue keeps no records (history=False): nothing can be counted")
    found = open_state(store, keys.stats)
    if found is None:
        return LastHour(queue=keys.queue, reason=NO_SWEEPER)
    try:
        hour = HourDocument.from_json(load(found.read(STATS_BYTES), found.key).get("hour"))
    except CorruptState:
        hour = None
    return figures(keys.queue, hour, found.at) if hour else LastHour(queue=keys.queue, reason=NO_SWEEPER)


def figures(queue: str, hour: HourDocument, now: datetime) -> LastHour:
    """From what a sweeper wrote, as seen now: older slices do not count any more."""
    since = slice_of(now) - HOUR + SLICE
    # Slices of a document from the future would be somebody's joke.
    slices = [one for at, one in sorted(hour.slices.items()) if since <= at <= now]
    sums, errors = (_summed(getattr(one, name) for one in slices) for name in ("sums", "errors"))
    wait, run = (_summed(getattr(one, name) for one in slices) for name in ("wait", "run"))
    # A sample misses what is rare: letters are counted one by one.
    sums["dead"] += sum(max(0.0, one.letters - one.sums["dead"]) for one in slices)
    finished, read = sum(one.finished for one in slices), sum(one.read for one in slices)
    ended = sums["completed"] + sums["dead"]
    return LastHour(
        queue=queue,
        since=since,
        counted_at=hour.looked_at,
        finished=finished,
        messages=round(sums["messages"], 1),
        completed=round(sums["completed"], 1),
        dead=round(sums["dead"], 1),
        cancelled=round(sums["cancelled"], 1),
        retried=round(sums["retried"], 1),
        success_rate=round(sums["completed"] / ended, 4) if ended else None,
        wait={name: _quantile(wait, share) for name, share in _QUANTILES.items()},
        run={name: _quantile(run, share) for name, share in _QUANTILES.items()},
        errors=tuple((name, round(count, 1)) for name, count in most_common(errors, LISTED)),
        minutes=tuple(
            (one.at + timedelta(minutes=number), count) for one in slices for number, count in enumerate(one.minutes)
        ),
        read=read,
        sampled=any(map(_is_sampled, slices)),
        rank_error=_rank_error(slices),
        complete=all(one.complete for one in slices),
    )


def _summed(counts: Iterable[Mapping[K, float]]) -> defaultdict[K, float]:
    summed: defaultdict[K, float] = defaultdict(float)
    for one in counts:
        for name, count in one.items():
            summed[name] += count
    return summed


def _is_sampled(one: Slice) -> bool:
    return one.read < one.objects


def _rank_error(slices: list[Slice]) -> float:
    """A sample whose objects stand for different numbers of others is worth fewer than it has."""
    objects, effort = sum(one.objects for one in slices), sum(one.effort for one in slices)
    if not any(map(_is_sampled, slices)):
        return 0.0
    return round(min(1.0, math.sqrt(_CONFIDENCE * effort) / objects), 4) if effort else 1.0


def _quantile(counts: Mapping[int, float], share: float) -> float | None:
    wanted = sum(counts.values()) * share
    passed = 0.0
    for bucket, count in sorted(counts.items()):
        passed += count
        if passed >= wanted - 1e-9:
            return seconds_of(bucket)
    return None
