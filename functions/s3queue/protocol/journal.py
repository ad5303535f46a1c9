"""Journals: what became of the messages of a partition, after they are gone.  [P9]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from s3queue.documents.message import MOVED
from s3queue.documents.once import ended_since
from s3queue.documents.partition import PartitionLease, read_journal
from s3queue.documents.record import Record
from s3queue.encoding import EARLIEST
from s3queue.errors import CorruptState, NewerFormat
from s3queue.paths import name_before, partition_of, partition_path
from s3queue.store import ObjectInfo, listing, open_state

from .access import QueueAccess

#: How far the clock that names a journal, when its outcomes are committed, may be behind S3's; it never is so far.
NAMED_WITHIN = timedelta(days=1)


def find_outcome(
    queue: QueueAccess,
    path: str,
    put_id: str = "",
    *,
    since: datetime | None = None,
    keep: Callable[[], None] = lambda: None,
) -> Record | None:
    """The last outcome of a message of a partition: in its lease, or in a journal; None if there is none.

    With a `put_id`, that of any message which carries it. Journals are read one by one, the newest first, and none from
    before `since`: this is for people, and for the few messages that may have been PUT twice. `keep` is called before
    each of them: whoever holds the partition meanwhile must not lose it.
    """
    partition = partition_of(path)
    found = open_state(queue.store, queue.keys.lease(partition_path(partition)))
    if found:
        try:
            if record := outcome_in(PartitionLease.read(found).ended, path, put_id):
                return record
        except NewerFormat:
            raise
        except CorruptState:
            pass
    return find_in_journals(queue, path, put_id, since=since or ended_since(put_id), keep=keep)


def find_in_journals(
    queue: QueueAccess,
    path: str,
    put_id: str = "",
    *,
    since: datetime | None = None,
    readers: int = 1,
    keep: Callable[[], None] = lambda: None,
) -> Record | None:
    """As `find_outcome`, in journals only; `since`: only in those that were written then or later.

    With `readers`, several are read at a time, few at first: the newest one has it most likely. `keep` is called before
    they are read, for a holder whose lease that may outlast.
    """
    _, found = list_journals(queue, partition_of(path), since)
    newest_first = found[::-1]
    last: Record | None = None
    last_at = EARLIEST
    size = 1
    while newest_first:
        chunk, newest_first = newest_first[:size], newest_first[size:]
        size = min(2 * size, readers)
        keep()
        for info, records in zip(chunk, _read_all(queue, [info.key for info in chunk]), strict=True):
            if last and info.modified_at != last_at:
                return last
            record = outcome_in(records, path, put_id)
            # S3's dates have whole seconds: of one second, any journal may have the last outcome.
            if record and (last is None or record.generation.put_at > last.generation.put_at):
                last, last_at = record, info.modified_at
    return last


def _read_all(queue: QueueAccess, names: list[str]) -> Iterable[tuple[Record, ...]]:
    if len(names) == 1:
        return [records_in(queue, names[0])]
    with ThreadPoolExecutor(len(names)) as readers:
        return [*readers.map(lambda name: records_in(queue, name), names)]


def list_journals(queue: QueueAccess, partition: str, since: datetime | None) -> tuple[datetime, list[ObjectInfo]]:
    """Those that were written since then, the oldest first, and S3's time at the last LIST. One LIST for a thousand.

    Names begin with the time of the commit, and no outcome is committed before its message was PUT: older ones are not
    listed, also if they were written later, by whoever found the commit.
    """
    prefix = queue.keys.journals(partition)
    after = f"{prefix}{name_before(since - NAMED_WITHIN)}" if since else ""
    found: list[ObjectInfo] = []
    at = EARLIEST
    for page in listing(queue.store, prefix, after=after):
        at = page.at
        found += [info for info in page.objects if since is None or info.modified_at >= since]
    # By S3's dates: names are in the order of time for each process, and within a second not for several.
    return at, sorted(found, key=lambda info: (info.modified_at, info.key))


def records_in(queue: QueueAccess, key: str) -> tuple[Record, ...]:
    """The outcomes in a journal; none if it is gone, or garbage. One GET.

    Raises:
        NewerFormat: a newer version wrote it.
    """
    journal = open_state(queue.store, key)
    if journal is None:
        return ()
    try:
        return read_journal(journal)
    except NewerFormat:
        raise
    except CorruptState:
        return ()


def outcome_in(records: Iterable[Record], path: str, put_id: str = "") -> Record | None:
    """The outcome of a path, or of whatever carries the put id. A message that was moved has no other identity."""
    if put_id.startswith(MOVED):
        return next((one for one in records if one.put_id == put_id), None)
    return next((one for one in records if one.path == path or (put_id and one.put_id == put_id)), None)
