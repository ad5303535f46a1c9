"""RunPartitions: which partitions of a queue a Spark run has something to do in.  [P9]

A run takes what is there, partition after partition. Unlike a pull worker, which looks again in a second, a run that
finds nothing ends, and the next one costs a minute of cores: so it looks at every lease, each one once per write, and
whoever launches a run asks first whether there is work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from s3queue.documents.lease import GRAIN, NEVER
from s3queue.errors import CorruptState, NewerFormat
from s3queue.flow.partitions import has_work
from s3queue.paths import is_ordered, is_partition, partition_of
from s3queue.protocol.partition_status import read_partition
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, listing

#: Pages of folders, of a thousand partitions each, that one look lists.
PAGES = 100


@dataclass(frozen=True, slots=True)
class _Known:
    """What one write of a lease said."""

    #: When it is worth a try: a message that failed is due, or the lease has run out.
    worth_at: datetime
    is_open: bool = False
    #: Whether other messages may run before: a group waits for the one that failed.
    may_go_on: bool = False


class RunPartitions:
    """Keep the instance for as long as the run: it remembers what the leases said."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: (key, ETag) of a lease → what it said.
        self._known: dict[tuple[str, str], _Known] = {}
        #: Partition → its lease at the last LIST.
        self._leases: dict[str, ObjectInfo] = {}
        #: When the next message that failed may be tried, and the time of the last LIST, both by S3's clock.
        self.next_at: datetime | None = None
        self.at: datetime | None = None

    def find(self) -> list[str]:
        """Partitions that are worth a try, in no order. A LIST per 1,000 leases, a LIST per 1,000 folders, and a GET
        for each lease that was written since the last call.
        """
        self._list_leases()
        worth = {partition for partition, entry in self._leases.items() if self._is_worth(partition, entry)}
        free = {partition for partition in self._folders() if partition not in self._leases}
        # Several runs must not try all of them in the same order.
        return self._queue.chance.shuffled(sorted(worth | free))

    def has_any(self) -> bool:
        """Whether a run would find something to do in any of them."""
        return any(has_work(self._queue.leases, partition) for partition in self.find())

    def tried(self, partition: str) -> None:
        """A run is about to try it. If its lease stays as it is, its holder lives: it is not worth another try soon."""
        if entry := self._leases.get(partition):
            self._known[entry.key, entry.etag] = _Known(entry.at + self._queue.settings.visibility_timeout)

    def _list_leases(self) -> None:
        keys, leases = self._queue.keys, dict[str, ObjectInfo]()
        for page in listing(self._queue.store, keys.partition_leases):
            self.at = page.at
            for entry in page.objects:
                path = keys.path_under("leases", entry.key)
                if path and is_partition(path):
                    leases[partition_of(path)] = entry
        self._leases, self.next_at = leases, None
        present = {(entry.key, entry.etag) for entry in leases.values()}
        self._known = {which: known for which, known in self._known.items() if which in present}

    def _is_worth(self, partition: str, entry: ObjectInfo) -> bool:
        which = (entry.key, entry.etag)
        known = self._known[which] = self._known.get(which) or self._read(partition, entry)
        if known.worth_at <= entry.at:
            return True
        if not known.is_open:
            return False
        if known.worth_at != NEVER:
            self.next_at = min(self.next_at or known.worth_at, known.worth_at)
        return known.may_go_on and has_work(self._queue.leases, partition)

    def _read(self, partition: str, entry: ObjectInfo) -> _Known:
        try:
            stored = read_partition(self._queue, partition)
        except NewerFormat:
            return _Known(NEVER)
        except CorruptState:
            # Whoever finds it takes it for a lease that was written then.
            return _Known(entry.modified_at + self._queue.settings.visibility_timeout + GRAIN)
        if stored is None:
            return _Known(entry.at)
        if stored.lease.state == "processing":
            return _Known(stored.over_at)
        next_at = stored.lease.next_at
        return _Known(next_at or NEVER, is_open=True, may_go_on=next_at is None or not is_ordered(partition))

    def _folders(self) -> Iterator[str]:
        keys, cursor = self._queue.keys, ""
        for _ in range(PAGES):
            page = self._queue.store.list(keys.partitions, after=cursor, delimiter="/")
            yield from (
                partition_of(path) for folder in page.prefixes if is_partition(path := folder.removeprefix(keys.root))
            )
            if page.next_after is None:
                return
            cursor = page.next_after
