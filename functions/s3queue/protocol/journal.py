"""Journals: what became of the messages of a partition, after they are gone.  [P9]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from s3queue.documents.message import MOVED
from s3queue.documents.once import moved_since
from s3queue.documents.partition import PartitionLease, read_journal
from s3queue.documents.record import Record
from s3queue.errors import CorruptState, NewerFormat
from s3queue.keys import partition_of, partition_path
from s3queue.store import listing

from .access import QueueAccess


def find_outcome(
    queue: QueueAccess, path: str, put_id: str = "", *, keep: Callable[[], None] = lambda: None
) -> Record | None:
    """The last outcome of a message of a partition: in its lease, or in a journal; None if there is none.

    With a `put_id`, that of any message which carries it. Journals are read one by one, the newest first: this is for
    people, and for the few messages that may have been PUT twice. `keep` is called before each of them: whoever holds
    the partition meanwhile must not lose it.
    """
    partition = partition_of(path)
    found = queue.store.open(queue.keys.lease(partition_path(partition)))
    if found:
        try:
            if record := outcome_in(PartitionLease.read(found).ended, path, put_id):
                return record
        except NewerFormat:
            raise
        except CorruptState:
            pass
    return find_in_journals(queue, path, put_id, since=moved_since(put_id), keep=keep)


def find_in_journals(
    queue: QueueAccess,
    path: str,
    put_id: str = "",
    *,
    since: datetime | None = None,
    keep: Callable[[], None] = lambda: None,
) -> Record | None:
    """As `find_outcome`, in journals only; `since`: only in those that were written then or later."""
    pages = listing(queue.store, queue.keys.journals(partition_of(path)))
    found = [info for page in pages for info in page.objects if since is None or info.modified_at >= since]
    # By S3's dates: names are in the order of time for each process, and within a second not for several.
    found.sort(key=lambda info: (info.modified_at, info.key), reverse=True)
    last: Record | None = None
    for place, info in enumerate(found):
        if last and info.modified_at != found[place - 1].modified_at:
            break
        keep()
        journal = queue.store.open(info.key)
        if journal is None:
            continue
        try:
            record = outcome_in(read_journal(journal), path, put_id)
        except NewerFormat:
            raise
        except CorruptState:
            continue
        if record and (last is None or record.generation.put_at > last.generation.put_at):
            last = record
    return last


def outcome_in(records: Iterable[Record], path: str, put_id: str = "") -> Record | None:
    """The outcome of a path, or of whatever carries the put id. A message that was moved has no other identity."""
    if put_id.startswith(MOVED):
        return next((one for one in records if one.put_id == put_id), None)
    return next((one for one in records if one.path == path or (put_id and one.put_id == put_id)), None)
