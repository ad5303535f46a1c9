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
    found = (info for page in listing(queue.store, queue.keys.journals(partition_of(path))) for info in page.objects)
    names = [info.key for info in found if since is None or info.modified_at >= since]
    for key in reversed(names):
        keep()
        journal = queue.store.open(key)
        if journal is None:
            continue
        try:
            if record := outcome_in(read_journal(journal), path, put_id):
                return record
        except NewerFormat:
            raise
        except CorruptState:
            continue
    return None


def outcome_in(records: Iterable[Record], path: str, put_id: str = "") -> Record | None:
    """The outcome of a path, or of whatever carries the put id. A message that was moved has no other identity."""
    if put_id.startswith(MOVED):
        return next((one for one in records if one.put_id == put_id), None)
    return next((one for one in records if one.path == path or (put_id and one.put_id == put_id)), None)
