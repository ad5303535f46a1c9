"""Journals: when the messages came whose outcomes a partition's journals tell, from a bounded number of reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from s3queue.errors import NewerFormat
from s3queue.protocol.journal import records_in
from s3queue.queue import Queue
from s3queue.store import ObjectInfo

from .parallel import in_parallel

#: Journals that are read: a name only tells when its outcomes were committed, and how many they are.
MOST_READ = 32


def arrivals(queue: Queue, journals: Sequence[ObjectInfo]) -> Iterator[tuple[datetime, int, bool]]:
    """When messages came, how many, and whether that is known.

    Of many journals the newest are read. The messages of the others are taken to have waited as long as theirs: who
    drains a backlog would else seem to get as much as is done.
    """
    newest = sorted(journals, key=lambda entry: entry.modified_at, reverse=True)
    read = in_parallel(lambda entry: _came_at(queue, entry), newest[:MOST_READ])
    waits = []
    unread = newest[MOST_READ:]
    for entry, instants in zip(newest, read, strict=False):
        yield from ((at, 1, True) for at in instants)
        waits += [entry.modified_at - at for at in instants]
        if not instants:
            unread.append(entry)
    usual = sorted(waits)[len(waits) // 2] if waits else timedelta()
    for entry in unread:
        yield entry.modified_at - usual, queue.keys.records_at(entry.key), False


def _came_at(queue: Queue, entry: ObjectInfo) -> list[datetime]:
    """Of each message in it; none if it is gone, or cannot be read."""
    try:
        return [record.generation.put_at for record in records_in(queue, entry.key)]
    except NewerFormat:
        return []
