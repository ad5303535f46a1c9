"""Listing: the messages of a queue by their state, in the order of their paths, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from s3queue.documents.lease import Lease
from s3queue.documents.message import is_placeholder
from s3queue.documents.partition import PartitionLease, read_journal
from s3queue.documents.record import Failure, Record
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.paths import PARTITION, due_of, partition_of, partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.partition_status import busy_paths
from s3queue.store import Object, ObjectInfo, Page, listing, open_state

ListedState = Literal["pending", "delayed", "processing", "waiting", "completed", "dead", "cancelled"]
STATES: tuple[ListedState, ...] = ListedState.__args__  # type: ignore[attr-defined]
#: Rows of one answer.
MOST_ROWS = 1000
#: Begins the paths of all messages of partitions.
_IN_PARTITIONS = f"messages/{PARTITION}"
#: LISTs of one answer: in a large queue, few of a page may have the state that is asked for.
MOST_PAGES = 20
#: Documents that are read at the same time.
PARALLEL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMessage:
    """One message, as far as its state tells."""

    path: str
    #: As asked for; also `burying` and `corrupt` where `processing` was asked for: somebody has to look at them.
    state: str
    #: Since when it is in this state, by S3's clock: when it was enqueued, claimed, failed, or finished.
    since: datetime
    #: From when on it may run, or be tried again.
    due_at: datetime | None = None
    size: int | None = None
    #: How often it was tried, and who did so last.
    attempt: int | None = None
    worker: str = ""
    failure: Failure | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "state": self.state,
            "since": format_instant(self.since),
            "due_at": format_instant(self.due_at) if self.due_at else None,
            "size": self.size,
            "attempt": self.attempt,
            "worker": self.worker or None,
            "failure": self.failure.to_json() if self.failure else None,
        }


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages, and where the next page begins; None: there is none. A page may be empty and not the last."""

    messages: tuple[ListedMessage, ...]
    next_after: str | None

    def to_json(self) -> dict[str, Any]:
        return {"messages": [one.to_json() for one in self.messages], "next_after": self.next_after}


#: The key of an object, and the messages that it tells of.
_Rows = tuple[str, Sequence[ListedMessage]]


def list_messages(queue: QueueAccess, state: ListedState, *, limit: int, after: str, prefix: str) -> MessagePage:
    """See `Queue.list`."""
    if state not in STATES:
        raise InvalidRequest(f"there is no state {state!r}; the states are {', '.join(STATES)}")
    if not 1 <= limit <= MOST_ROWS:
        raise InvalidRequest(f"limit must be from 1 to {MOST_ROWS}, not {limit}")
    kind, read = _KINDS[state]
    if state == "dead" and not queue.settings.dead_letters:
        kind, read = "records", _records
    root = queue.keys.prefix(kind) if kind else queue.keys.root
    # Messages and their documents have the same order, so one cursor is enough for every state.
    folder = root if kind else queue.keys.prefix("delayed" if state == "delayed" else "messages")
    starts = starts_of(queue, kind, prefix) if prefix else [folder]
    if not starts[0].startswith(folder):
        raise InvalidRequest(f"the prefix {prefix!r} is not one of {state} messages; theirs begin with {folder}")
    rows: list[ListedMessage] = []
    cursor = root + after if after else ""
    for _ in range(MOST_PAGES):
        page = queue.store.list(starts[0], after=cursor, limit=limit)
        for key, found in read(queue, state, page):
            # One object of a partition has many messages, and is never cut.
            rows += [row for row in found if row.path.startswith(prefix)]
            if len(rows) >= limit:
                is_last = len(starts) == 1 and page.next_after is None and key == page.objects[-1].key
                return MessagePage(tuple(rows), None if is_last else key.removeprefix(root))
        if page.next_after is None:
            del starts[0]
            if not starts:
                return MessagePage(tuple(rows), None)
        cursor = page.next_after or max(cursor, starts[0][:-1])
    return MessagePage(tuple(rows), cursor.removeprefix(root))


def starts_of(queue: QueueAccess, kind: str, prefix: str) -> list[str]:
    """As `start_of`; a name may begin as the folder of a partition does, and its documents are elsewhere."""
    start = start_of(queue, kind, prefix)
    is_name = kind in ("leases", "records") and prefix.startswith(_IN_PARTITIONS) and not partition_of(prefix)
    return [start, queue.keys.prefix(kind) + prefix] if is_name else [start]


def start_of(queue: QueueAccess, kind: str, prefix: str) -> str:
    """How the keys of a kind begin whose messages have this prefix. Other keys may begin so, too: look at the paths."""
    if kind in ("leases", "records") and (partition := partition_of(prefix)):
        # Documents of a partition are not under the paths of its messages.
        return queue.keys.journals(partition) if kind == "records" else queue.keys.lease(partition_path(partition))
    if kind in ("leases", "records") and prefix.startswith(_IN_PARTITIONS):
        return queue.keys.prefix(kind) + prefix.removeprefix("messages/")
    if kind in ("leases", "records") and _IN_PARTITIONS.startswith(prefix):
        return queue.keys.prefix(kind)
    return (queue.keys.prefix(kind) if kind else queue.keys.root) + prefix


def _unclaimed(queue: QueueAccess, state: ListedState, page: Page) -> Iterable[_Rows]:
    paths = {
        path: entry for entry in page.objects if (path := queue.keys.path(entry.key)) and not is_placeholder(entry)
    }
    leased = _leased(queue, paths) if paths else set()
    for path, entry in paths.items():
        due_at = due_of(path)
        is_delayed = due_at is not None and due_at > page.at
        # A delayed message that is due may run like any other; it is listed where it lies.
        if path not in leased and (state == "delayed") == path.startswith("delayed/"):
            found = "delayed" if is_delayed else "pending"
            row = ListedMessage(path=path, state=found, since=entry.modified_at, due_at=due_at, size=entry.size)
            yield entry.key, (row,)


def _leased(queue: QueueAccess, paths: Iterable[str]) -> set[str]:
    """The paths that have a lease: one range of the leases, since both have the same order."""
    first, last = min(paths), max(paths)
    found = busy_paths(queue, paths)
    after = queue.keys.lease(first)[:-1]
    for page in listing(queue.store, queue.keys.prefix("leases"), after=after):
        found |= {path for entry in page.objects if (path := queue.keys.path_under("leases", entry.key))}
        if page.next_after is None or page.next_after > queue.keys.lease(last):
            break
    return found


def _leases(queue: QueueAccess, state: ListedState, page: Page) -> Iterable[_Rows]:
    def describe(path: str, found: Object) -> ListedMessage:
        lease = Lease.read(found)
        return ListedMessage(
            path=path,
            state=lease.state,
            since=found.modified_at,
            due_at=lease.retry_at,
            attempt=lease.attempt,
            worker=lease.owner,
            failure=lease.failure,
        )

    wanted = ("waiting",) if state == "waiting" else ("processing", "burying", "corrupt")
    return _wanted(_read(queue, "leases", page, describe), wanted)


def _records(queue: QueueAccess, state: ListedState, page: Page) -> Iterable[_Rows]:
    def describe(path: str, found: Object) -> ListedMessage:
        return _finished(path, Record.read(found))

    return _wanted(_read(queue, "records", page, describe), (state,))


def _finished(path: str, record: Record) -> ListedMessage:
    return ListedMessage(
        path=path,
        state=record.outcome,
        since=record.finished_at,
        size=record.size,
        attempt=record.attempt,
        worker=record.worker,
        failure=record.failure,
    )


def _wanted(found: Iterable[_Rows], states: tuple[str, ...]) -> Iterable[_Rows]:
    return ((key, [row for row in rows if row.state in states]) for key, rows in found)


def listed_in_partition(key: str, found: Object) -> list[ListedMessage]:
    """What the lease of a partition says of messages that are processed or wait, or a journal of finished ones.  [P9]

    Raises:
        CorruptState: it is neither.
    """
    if key.partition("/")[2].startswith("records/"):
        return [_finished(record.path, record) for record in read_journal(found)]
    lease = PartitionLease.read(found)
    ended = {record.path: record.generation.etag for record in lease.ended}
    taken = {path for path, etag in lease.taken.items() if lease.state == "processing" and ended.get(path) != etag}
    rows = [
        ListedMessage(
            path=path,
            state="processing",
            since=found.modified_at,
            attempt=(lease.waiting[path].lease.attempt if path in lease.waiting else 0) + 1,
            worker=lease.owner,
        )
        for path in taken
    ]
    rows += [
        ListedMessage(
            path=one.path,
            state="waiting",
            since=found.modified_at,
            due_at=one.retry_at,
            attempt=one.lease.attempt,
            worker=one.lease.owner,
            failure=one.lease.failure,
        )
        for one in lease.waiting.values()
        if one.path not in taken
    ]
    return sorted(rows, key=lambda row: row.path)


def is_of_partition(queue: QueueAccess, key: str) -> bool:
    """Whether it is the lease of a partition, or a journal."""
    return key.startswith((queue.keys.partition_leases, queue.keys.prefix("records") + PARTITION))


def _read(
    queue: QueueAccess, kind: str, page: Page, describe: Callable[[str, Object], ListedMessage]
) -> Iterable[_Rows]:
    """The documents of a page, read side by side; one that is gone by now is left out."""

    def read(entry: ObjectInfo) -> _Rows:
        is_shared = is_of_partition(queue, entry.key)
        path = entry.key.removeprefix(queue.keys.prefix(kind)) if is_shared else queue.keys.path_under(kind, entry.key)
        found = open_state(queue.store, entry.key) if path else None
        if path is None or found is None:
            return entry.key, ()
        try:
            return entry.key, listed_in_partition(entry.key, found) if is_shared else (describe(path, found),)
        except CorruptState as error:
            row = ListedMessage(path=path, state="corrupt", since=entry.modified_at, failure=Failure.of(error))
            return entry.key, (row,)

    with ThreadPoolExecutor(PARALLEL) as readers:
        return list(readers.map(read, page.objects))


def _letters(queue: QueueAccess, state: ListedState, page: Page) -> Iterable[_Rows]:
    for entry in page.objects:
        if path := queue.keys.path_under("dead", entry.key):
            yield entry.key, (ListedMessage(path=path, state="dead", since=entry.modified_at, size=entry.size),)


_Reader = Callable[[QueueAccess, ListedState, Page], Iterable[_Rows]]
#: State → which kind of object is listed (none: the messages themselves), and how a page of them is read.
_KINDS: dict[ListedState, tuple[str, _Reader]] = {
    "pending": ("", _unclaimed),
    "delayed": ("", _unclaimed),
    "processing": ("leases", _leases),
    "waiting": ("leases", _leases),
    "completed": ("records", _records),
    "cancelled": ("records", _records),
    "dead": ("dead", _letters),
}
