"""The live tail: what became of messages since an instant, from LISTs and a bounded number of reads."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from s3queue.encoding import format_instant
from s3queue.queue import Queue

from .browse import rows_at, rows_of
from .parallel import in_parallel
from .recent import Recent
from .search_models import Tail, TailEvent

#: Records and leases that one call reads at most, each.
MOST_READ = 40
#: Events of one answer: a single journal of a partition may tell of thousands.
MOST_EVENTS = 500
#: Without an instant, it begins so long ago; nobody looks further back than the longest.
BEGINNING, LONGEST = timedelta(minutes=1), timedelta(hours=1)


def tail(queue: Queue, after: datetime | None) -> Tail:
    """The newest events since then: what was claimed, has failed and waits, or has ended."""
    leases = queue.store.list(queue.keys.prefix("leases"))
    now = leases.at
    since = max(after or now - BEGINNING, now - LONGEST)
    recent = Recent(queue, since, LONGEST)
    entries = {
        "records": list(recent.objects("records")),
        "leases": [entry for entry in leases.objects if entry.modified_at >= since],
    }
    events: list[TailEvent] = []
    missed = 0
    for kind, found in entries.items():
        newest = sorted(found, key=lambda entry: entry.modified_at, reverse=True)
        missed += sum(rows_at(queue, entry.key) for entry in newest[MOST_READ:])
        for rows in in_parallel(partial(rows_of, queue, kind), newest[:MOST_READ]):
            events += [
                TailEvent(
                    at=row.since,
                    state=row.state,
                    path=row.path,
                    attempt=row.attempt,
                    worker=row.worker,
                    error=row.error,
                    size=row.size,
                )
                for row in rows
            ]
    events.sort(key=lambda event: event.at)
    missed += max(0, len(events) - MOST_EVENTS)
    return Tail(at=format_instant(now), events=events[-MOST_EVENTS:], missed=missed)
