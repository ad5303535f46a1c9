"""Which partitions have messages, for a worker that looks for something to do.  [P9]"""

from __future__ import annotations

from collections.abc import Iterator

from s3queue.paths import is_partition
from s3queue.store import listing

from .access import QueueAccess

#: Partitions with a lease that one look tries: each costs a GET of its lease.
LEASED = 16
#: With so many that have no lease, or fewer in all, no further page is read.
FREE = 32


def find_partitions(queue: QueueAccess, seen: set[str], *, pages: int, most: int) -> Iterator[tuple[str, bool]]:
    """The path of each partition, and whether it has a lease: that may be open, or have run out. In no order.

    `seen` are their folders, as far as a LIST of the messages showed them: others may follow.
    """
    keys = queue.keys
    if not seen:
        return
    leased = {
        path
        for page in listing(queue.store, keys.partition_leases, pages=pages)
        for entry in page.objects
        if (path := keys.path_under("leases", entry.key))
    }
    found = {folder.removeprefix(keys.root) for folder in seen}
    cursor: str | None = f"{max(seen)}\U0010ffff"
    for _ in range(pages):
        if cursor is None or len(found) < FREE or len(found - leased) >= FREE:
            break
        page = queue.store.list(keys.partitions, after=cursor, delimiter="/")
        found |= {path for folder in page.prefixes if is_partition(path := folder.removeprefix(keys.root))}
        cursor = page.next_after
    hints = 0
    for path in queue.chance.shuffled(sorted(found))[:most]:
        is_leased = path in leased
        hints += is_leased
        if not is_leased or hints <= LEASED:
            yield path, is_leased
