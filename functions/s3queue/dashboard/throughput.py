"""Flow: how many messages came in and went out in each minute of the last hour, from a few LISTs."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from s3queue.encoding import format_instant
from s3queue.errors import CorruptState
from s3queue.flow.listing import is_of_partition
from s3queue.protocol.counting import CountedLetters, lines_at
from s3queue.queue import Queue
from s3queue.store import ObjectInfo

from .bucket_view import PAGES
from .journals import arrivals
from .parallel import in_parallel
from .queue_models import Flow, Minute
from .recent import Recent, made_at

MINUTES = 60
#: The rates are averages of this many whole minutes.
RATE_MINUTES = 5
#: Records that are read because their names do not show when their messages came.
RECORDS_READ = 32


def flow(queue: Queue) -> Flow:
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
    journals: list[ObjectInfo] = []
    for entry in recent.objects("records"):
        many = queue.keys.records_at(entry.key)
        finished[_minute(entry.modified_at)] += many
        if is_of_partition(queue, entry.key):
            journals.append(entry)
            continue
        came_at = made_at(entry.key)
        if came_at is None:
            unnamed.append(entry)
        elif came_at >= first:
            entered[_minute(came_at)] += many
    # Only its record says when a message came whose name the producer chose. Of very many, the newest are read; the
    # others count when they were finished, so that none is forgotten.
    unnamed.sort(key=lambda entry: entry.modified_at, reverse=True)
    known = in_parallel(lambda entry: _came_at(queue, entry), unnamed[:RECORDS_READ])
    for entry, came_at in zip(unnamed, [*known, *([None] * len(unnamed))], strict=False):
        many = queue.keys.records_at(entry.key)
        unknown += many if came_at is None else 0
        if (came_at or entry.modified_at) >= first:
            entered[_minute(came_at or entry.modified_at)] += many
    for at, many, is_known in arrivals(queue, journals):
        unknown += 0 if is_known else many
        if at >= first:
            entered[_minute(at)] += many
    for entry in recent.objects(""):
        entered[_minute(entry.modified_at)] += lines_at(entry.key)
    letters = CountedLetters(queue.store, queue.keys)
    for entry in recent.objects("dead"):
        died[_minute(entry.modified_at)] += letters.lines(entry)
    minutes = [first + timedelta(minutes=index) for index in range(MINUTES)]
    whole = minutes[-RATE_MINUTES - 1 : -1]
    came, went = (sum(counts[minute] for minute in whole) / RATE_MINUTES for counts in (entered, finished))
    drain = pending / (went - came) * 60 if pending and went > came else None
    return Flow(
        at=format_instant(now),
        minutes=[
            Minute(at=format_instant(minute), entered=entered[minute], finished=finished[minute], died=died[minute])
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
