"""Journals: what became of the messages of a partition, after they are gone.  [P9]"""

from __future__ import annotations

from s3queue.documents.partition import PartitionLease, read_journal
from s3queue.documents.record import Record
from s3queue.errors import CorruptState, NewerFormat
from s3queue.keys import partition_of, partition_path
from s3queue.store import listing

from .access import QueueAccess


def find_outcome(queue: QueueAccess, path: str, put_id: str = "") -> Record | None:
    """The last outcome of a message of a partition: in its lease, or in a journal; None if there is none.

    With a `put_id`, that of any message which carries it. Journals are read one by one, the newest first: this is for
    people, and for the few messages that may have been PUT twice.
    """
    partition = partition_of(path)
    found = queue.store.open(queue.keys.lease(partition_path(partition)))
    if found:
        try:
            if record := _find(PartitionLease.read(found).ended, path, put_id):
                return record
        except NewerFormat:
            raise
        except CorruptState:
            pass
    names = [info.key for page in listing(queue.store, queue.keys.journals(partition)) for info in page.objects]
    for key in reversed(names):
        journal = queue.store.open(key)
        if journal is None:
            continue
        try:
            if record := _find(read_journal(journal), path, put_id):
                return record
        except NewerFormat:
            raise
        except CorruptState:
            continue
    return None


def _find(records: tuple[Record, ...], path: str, put_id: str) -> Record | None:
    return next((one for one in records if one.path == path or (put_id and one.put_id == put_id)), None)
