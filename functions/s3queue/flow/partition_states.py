"""PartitionState: which partitions have messages or a lease, who holds them, and what they wait for.  [P9]"""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from s3queue.documents.message import is_placeholder
from s3queue.documents.partition import StoredPartition
from s3queue.documents.record import Failure
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.paths import group_of, group_partition, is_ordered, is_partition, partition_of, partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.liveness import LiveOwners
from s3queue.protocol.partition_status import read_partition
from s3queue.store import LAST, Page, listing

#: Rows of one answer: each costs a LIST, and a GET if there is a lease.
MOST_ROWS = 1000
#: LISTs of leases for one answer. Of more leases, those without messages are not shown.
LEASE_PAGES = 20
#: Partitions that are read at the same time.
PARALLEL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition, as it was at the LIST of its messages and the GET of its lease."""

    #: As it is in keys: `@customer-42`, or `@=3` for a share of `partitions=8`.
    partition: str
    #: `free`: nobody holds it, and nothing has failed. `open`: nobody holds it; failed messages wait. `held`: a worker
    #: does. `overdue`: its worker's lease ran out, and nobody has taken it over. `corrupt`: the lease makes no sense.
    state: Literal["free", "open", "held", "overdue", "corrupt"]
    #: How many lie there; of more than one page, the first thousand are counted.
    messages: int
    is_exact: bool
    #: When the first one, in the order of names, was enqueued.
    first_at: datetime | None = None
    #: Who holds it, or held it last, and when the lease was written last.
    worker: str = ""
    written_at: datetime | None = None
    #: Messages that the holder has taken, and those that failed and wait for another attempt.
    taken: int = 0
    waiting: int = 0
    #: When the next of them may be tried, which one that is, and why it failed.
    next_at: datetime | None = None
    next_path: str = ""
    failure: Failure | None = None
    problem: str = ""
    #: When the holder's lease runs out, unless it is renewed, or its heartbeat keeps it.
    until: datetime | None = None

    @property
    def group(self) -> str:
        """The group's name; empty for a share."""
        return group_of(partition_path(self.partition))

    @property
    def is_group(self) -> bool:
        return is_ordered(self.partition)

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "group": self.group or None,
            "state": self.state,
            "messages": self.messages,
            "exact": self.is_exact,
            "first_at": format_instant(self.first_at) if self.first_at else None,
            "worker": self.worker or None,
            "written_at": format_instant(self.written_at) if self.written_at else None,
            "taken": self.taken,
            "waiting": self.waiting,
            "next_at": format_instant(self.next_at) if self.next_at else None,
            "next_path": self.next_path or None,
            "failure": self.failure.to_json() if self.failure else None,
            "problem": self.problem or None,
            "until": format_instant(self.until) if self.until else None,
        }


@dataclass(frozen=True, slots=True)
class PartitionPage:
    """Some partitions, S3's time, and where the next page begins; None: there is none."""

    partitions: tuple[PartitionState, ...]
    at: datetime
    next_after: str | None
    #: False: there are so many leases that some of partitions without messages are left out.
    is_exact: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "partitions": [one.to_json() for one in self.partitions],
            "at": format_instant(self.at),
            "next_after": self.next_after,
            "exact": self.is_exact,
        }


def list_partitions(
    queue: QueueAccess, *, limit: int = 50, after: str = "", group: str | None = None, leased: bool = False
) -> PartitionPage:
    """Partitions that have messages or a lease, in the order of their folders; `leased`: only those with a lease.

    Pass `next_after` back as `after` for the next page. Two LISTs or more, and for each partition a LIST and, if it has
    a lease, a GET; a GET for each holder whose lease ran out. With a `group`, only that one, which may be empty.

    Raises:
        InvalidRequest: the limit is not from 1 to 1,000, `after` is no partition, or there can be no such group.
    """
    if not 1 <= limit <= MOST_ROWS:
        raise InvalidRequest(f"limit must be from 1 to {MOST_ROWS}, not {limit}")
    if after and not is_partition(partition_path(after)):
        raise InvalidRequest(f"{after!r} is not a partition: theirs begin with @, as in next_after of the page before")
    owners = LiveOwners(queue)
    if group is not None:
        only = group_partition(group)
        first, stored, problem = _read(queue, only, may_be_leased=True)
        return PartitionPage((_state(only, first, stored, problem, owners),), first.at, None)
    found, at, next_after, leases = _names(queue, limit, after, leased)
    with ThreadPoolExecutor(PARALLEL) as readers:
        read = readers.map(lambda name: _read(queue, name, may_be_leased=leases is None or name in leases), found)
        # One after the other: each holder's heartbeat is read once.
        states = [_state(name, *one, owners) for name, one in zip(found, read, strict=True)]
    # What was finished since the LIST is left out.
    rows = tuple(one for one in states if one.messages or one.written_at or one.problem)
    return PartitionPage(rows, at, next_after, is_exact=leases is not None)


def has_partitions(queue: QueueAccess) -> bool:
    """Whether the queue spreads its messages over partitions, or some partition has messages or a lease. Two LISTs at
    most.
    """
    if queue.settings.partitions:
        return True
    folders = queue.store.list(queue.keys.partitions, delimiter="/", limit=1).prefixes
    return bool(folders or queue.store.list(queue.keys.partition_leases, limit=1).objects)


def _names(
    queue: QueueAccess, limit: int, after: str, leased: bool
) -> tuple[list[str], datetime, str | None, set[str] | None]:
    """Names in the order of their folders, S3's time, the next cursor, and all that have a lease; None: too many.

    Leases have no folders: `@a` comes before `@a-b` there, and `@a-b/` before `@a/` here. So all of them are listed.
    """
    keys, leases, page = queue.keys, set[str](), None
    for page in listing(queue.store, keys.partition_leases, pages=LEASE_PAGES):
        paths = (keys.path_under("leases", entry.key) for entry in page.objects)
        leases |= {partition_of(path) for path in paths if path and is_partition(path)}
    assert page is not None
    is_whole, at = page.next_after is None, page.at
    order = sorted(leases, key=partition_path)
    order = order[bisect_right(order, partition_path(after), key=partition_path) if after else 0 :]
    if leased:
        names, is_last = order, True
    else:
        cursor: str | None = keys.message(partition_path(after)) + LAST if after else ""
        folders: list[str] = []
        size = limit
        # Other messages may have names that begin with @, and fill whole pages.
        while cursor is not None and not folders:
            page = queue.store.list(keys.partitions, after=cursor, delimiter="/", limit=size)
            folders = [path for prefix in page.prefixes if is_partition(path := prefix.removeprefix(keys.root))]
            cursor, at, size = page.next_after, page.at, MOST_ROWS
        is_last = cursor is None
        # Behind the last folder of this page there may be others, and leases must not come before them.
        both = {partition_of(path) for path in folders}
        both |= {name for name in order if is_last or partition_path(name) <= folders[-1]}
        names = sorted(both, key=partition_path)
    shown = names[:limit]
    is_last = is_last and len(names) <= limit
    return shown, at, None if is_last or not shown else shown[-1], leases if is_whole else None


def _read(
    queue: QueueAccess, partition: str, *, may_be_leased: bool
) -> tuple[Page, StoredPartition | None, CorruptState | None]:
    """A page of its messages, and its lease, or what is wrong with that."""
    stored, problem = None, None
    try:
        stored = read_partition(queue, partition) if may_be_leased else None
    except CorruptState as error:
        problem = error
    return queue.store.list(queue.keys.message(partition_path(partition))), stored, problem


def _state(
    partition: str, page: Page, stored: StoredPartition | None, problem: CorruptState | None, owners: LiveOwners
) -> PartitionState:
    entries = [entry for entry in page.objects if not is_placeholder(entry)]
    first_at, is_exact = entries[0].modified_at if entries else None, page.next_after is None
    if stored is None:
        return PartitionState(
            partition=partition,
            state="corrupt" if problem else "free",
            messages=len(entries),
            is_exact=is_exact,
            first_at=first_at,
            problem=str(problem) if problem else "",
        )
    lease = stored.lease
    state: Literal["open", "held", "overdue"] = "open" if lease.state == "open" else "held"
    if stored.is_over() and not owners.keep(lease.owner, partition_path(partition), over_at=stored.over_at):
        state = "overdue"
    following = min(lease.waiting.values(), key=lambda one: (one.retry_at, one.path), default=None)
    return PartitionState(
        partition=partition,
        state=state,
        messages=len(entries),
        is_exact=is_exact,
        first_at=first_at,
        worker=lease.owner,
        written_at=stored.written_at,
        taken=len(lease.taken) if lease.state == "processing" else 0,
        waiting=len(lease.waiting),
        next_at=lease.next_at,
        next_path=following.path if following else "",
        failure=following.lease.failure if following else None,
        until=stored.over_at if lease.state == "processing" else None,
    )
