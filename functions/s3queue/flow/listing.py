"""Listing: the messages of a queue by their state, in the order of their paths, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from s3queue.documents.lease import Lease
from s3queue.documents.message import is_placeholder
from s3queue.documents.record import Failure, Record
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.keys import due_of
from s3queue.protocol.access import QueueAccess
from s3queue.store import Object, ObjectInfo, Page, listing

ListedState = Literal["pending", "delayed", "processing", "waiting", "completed", "dead", "cancelled"]
STATES: tuple[ListedState, ...] = ListedState.__args__  # type: ignore[attr-defined]
#: Rows of one answer.
MOST_ROWS = 1000
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
    start = root + prefix if prefix else folder
    if not start.startswith(folder):
        raise InvalidRequest(f"the prefix {prefix!r} is not one of {state} messages; theirs begin with {folder}")
    rows: list[ListedMessage] = []
    cursor: str | None = root + after if after else ""
    for _ in range(MOST_PAGES):
        assert cursor is not None
        page = queue.store.list(start, after=cursor, limit=limit)
        for row in read(queue, state, page):
            rows.append(row)
            if len(rows) == limit:
                is_last = page.next_after is None and row.path == _last(queue, root, page)
                return MessagePage(tuple(rows), None if is_last else row.path)
        cursor = page.next_after
        if cursor is None:
            break
    return MessagePage(tuple(rows), cursor.removeprefix(root) if cursor else None)


def _last(queue: QueueAccess, root: str, page: Page) -> str:
    return page.objects[-1].key.removeprefix(root) if page.objects else ""


def _unclaimed(queue: QueueAccess, state: ListedState, page: Page) -> Iterable[ListedMessage]:
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
            yield ListedMessage(path=path, state=found, since=entry.modified_at, due_at=due_at, size=entry.size)


def _leased(queue: QueueAccess, paths: Iterable[str]) -> set[str]:
    """The paths that have a lease: one range of the leases, since both have the same order."""
    first, last = min(paths), max(paths)
    found: set[str] = set()
    after = queue.keys.lease(first)[:-1]
    for page in listing(queue.store, queue.keys.prefix("leases"), after=after):
        found |= {path for entry in page.objects if (path := queue.keys.path_under("leases", entry.key))}
        if page.next_after is None or page.next_after > queue.keys.lease(last):
            break
    return found


def _leases(queue: QueueAccess, state: ListedState, page: Page) -> Iterable[ListedMessage]:
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
    return (row for row in _read(queue, "leases", page, describe) if row.state in wanted)


def _records(queue: QueueAccess, state: ListedState, page: Page) -> Iterable[ListedMessage]:
    def describe(path: str, found: Object) -> ListedMessage:
        record = Record.read(found)
        return ListedMessage(
            path=path,
            state=record.outcome,
            since=record.finished_at,
            size=record.size,
            attempt=record.attempt,
            worker=record.worker,
            failure=record.failure,
        )

    return (row for row in _read(queue, "records", page, describe) if row.state == state)


def _read(
    queue: QueueAccess, kind: str, page: Page, describe: Callable[[str, Object], ListedMessage]
) -> Iterable[ListedMessage]:
    """The documents of a page, read side by side; one that is gone by now is left out."""

    def read(entry: ObjectInfo) -> ListedMessage | None:
        path = queue.keys.path_under(kind, entry.key)
        found = queue.store.open(entry.key) if path else None
        if path is None or found is None:
            return None
        try:
            return describe(path, found)
        except CorruptState as error:
            return ListedMessage(path=path, state="corrupt", since=entry.modified_at, failure=Failure.of(error))

    with ThreadPoolExecutor(PARALLEL) as readers:
        return [row for row in readers.map(read, page.objects) if row]


def _letters(queue: QueueAccess, state: ListedState, page: Page) -> Iterable[ListedMessage]:
    for entry in page.objects:
        if path := queue.keys.path_under("dead", entry.key):
            yield ListedMessage(path=path, state="dead", since=entry.modified_at, size=entry.size)


_Reader = Callable[[QueueAccess, ListedState, Page], Iterable[ListedMessage]]
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
