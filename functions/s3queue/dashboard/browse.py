"""Browse: messages by state, a page at a time, and the history of one message; its payload only on request."""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta
from typing import cast

from s3queue.documents.lease import Lease
from s3queue.documents.message import is_placeholder
from s3queue.documents.record import Record
from s3queue.encoding import as_whole, decode_metadata, format_instant
from s3queue.errors import CorruptState, InvalidRequest, MessageNotFound
from s3queue.flow.listing import ListedState, is_of_partition, listed_in_partition, start_of
from s3queue.paths import due_of, is_batch, lines_of, priority_of
from s3queue.protocol.partition_status import busy_paths
from s3queue.protocol.status import State, Status
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, Page, listing, open_state

from . import models
from .message_models import Body, MessageLife, MessageRow, Messages
from .parallel import in_parallel
from .recent import Recent
from .throughput import MINUTES

#: Longer payloads are cut to this size.
BODY_BYTES = 64 * 1024
#: LIST pages of leases that are compared with one page of messages, at most.
LEASE_PAGES = 5


def browse(queue: Queue, state: models.Listed, prefix: str, cursor: str, limit: int, *, few: bool = False) -> Messages:
    """Messages in the order of their paths. A page with fewer rows than `limit` need not be the last one.

    With `few`, no more than `limit` objects are read for it, although none of them may be a row.
    """
    if state in ("pending", "delayed"):
        return _unclaimed(queue, state, prefix, cursor, limit)
    if state == "dead" or (state == "cancelled" and not few):
        return _listed(queue, state, prefix, cursor, limit)
    kind = "records" if state in ("completed", "cancelled") else "leases"
    page = _page(queue, kind, prefix, cursor, limit)
    found = in_parallel(lambda entry: rows_of(queue, kind, entry), page.objects)
    rows = [row for several in found for row in several if row.path.startswith(_path(prefix))]
    wanted = ("processing", "burying", "corrupt") if state == "processing" else (state,)
    return Messages(messages=[row for row in rows if row.state in wanted], next_cursor=_cursor(queue, kind, page))


def _listed(queue: Queue, state: ListedState, prefix: str, cursor: str, limit: int) -> Messages:
    page = queue.list(state, prefix=_path(prefix), after=cursor, limit=limit)
    rows = [
        MessageRow(
            path=one.path,
            state=state,
            priority=priority_of(one.path),
            size=one.size,
            since=format_instant(one.since),
            due_at=format_instant(one.due_at) if one.due_at else None,
            attempt=one.attempt,
            worker=one.worker or None,
            error=f"{one.failure.type}: {one.failure.message}" if one.failure else None,
        )
        for one in page.messages
    ]
    return Messages(messages=rows, next_cursor=page.next_after)


def newest(queue: Queue, limit: int) -> Messages:
    """Messages finished within the last hour, newest first. A plain LIST would begin with records five days old."""
    now = queue.store.list(queue.keys.root, limit=1).at
    recent = Recent(queue, now - timedelta(minutes=MINUTES), timedelta())
    entries: list[ObjectInfo] = []
    many = 0
    for entry in sorted(recent.objects("records"), key=lambda entry: entry.modified_at, reverse=True):
        if many >= limit:
            break
        entries.append(entry)
        many += rows_at(queue, entry.key)
    found = in_parallel(lambda entry: rows_of(queue, "records", entry), entries)
    rows = [row for several in found for row in several if row.state == "completed"]
    rows.sort(key=lambda row: row.since, reverse=True)
    return Messages(messages=rows[:limit], next_cursor=None)


def _page(queue: Queue, kind: str, prefix: str, cursor: str, limit: int) -> Page:
    root = queue.keys.prefix(kind) if kind else queue.keys.root
    return queue.store.list(start_of(queue, kind, _path(prefix)), after=root + cursor if cursor else "", limit=limit)


def _path(prefix: str) -> str:
    """The beginning of a path, also if that of a name was given."""
    return prefix if prefix.startswith(("messages/", "delayed/")) or not prefix else f"messages/{prefix}"


def _cursor(queue: Queue, kind: str, page: Page) -> str | None:
    root = queue.keys.prefix(kind) if kind else queue.keys.root
    return page.next_after.removeprefix(root) if page.next_after else None


def _unclaimed(queue: Queue, state: str, prefix: str, cursor: str, limit: int) -> Messages:
    folder = "delayed/" if state == "delayed" else "messages/"
    page = _page(queue, "", prefix if prefix.startswith(folder) else folder + prefix, cursor, limit)
    paths = {
        path: entry for entry in page.objects if (path := queue.keys.path(entry.key)) and not is_placeholder(entry)
    }
    leased = _leased(queue, paths) if paths else set()
    rows = []
    for path, entry in paths.items():
        if path in leased:
            continue
        due_at = due_of(path)
        rows.append(
            MessageRow(
                path=path,
                state="delayed" if due_at and due_at > page.at else "pending",
                priority=priority_of(path),
                size=entry.size,
                since=format_instant(entry.modified_at),
                due_at=format_instant(due_at) if due_at else None,
                lines=_lines(path),
            )
        )
    return Messages(messages=rows, next_cursor=_cursor(queue, "", page))


def _leased(queue: Queue, paths: dict[str, ObjectInfo]) -> set[str]:
    """The paths that have a lease. Messages and leases have the same order, so one range of leases is enough."""
    last = queue.keys.lease(max(paths))
    leased = busy_paths(queue, paths)
    after = queue.keys.lease(min(paths))[:-1]
    for page in listing(queue.store, queue.keys.prefix("leases"), after=after, pages=LEASE_PAGES):
        leased.update(path for entry in page.objects if (path := queue.keys.path_under("leases", entry.key)))
        if page.next_after is None or page.next_after > last:
            break
    return leased


def rows_of(queue: Queue, kind: str, entry: ObjectInfo) -> list[MessageRow]:
    """What one record or lease tells: of a partition, several messages."""
    if not is_of_partition(queue, entry.key):
        row = _row(queue, kind, entry)
        return [row] if row else []
    found = open_state(queue.store, entry.key)
    try:
        listed = listed_in_partition(entry.key, found) if found else []
    except CorruptState as error:
        path = entry.key.removeprefix(queue.keys.prefix(kind))
        since = format_instant(entry.modified_at)
        return [MessageRow(path=path, state="corrupt", priority=0, size=None, since=since, error=str(error))]
    return [
        MessageRow(
            path=one.path,
            state=cast(State, one.state),
            priority=0,
            size=one.size,
            since=format_instant(one.since),
            due_at=format_instant(one.due_at) if one.due_at else None,
            attempt=one.attempt,
            worker=one.worker,
            error=f"{one.failure.type}: {one.failure.message}" if one.failure else None,
        )
        for one in listed
    ]


def rows_at(queue: Queue, key: str) -> int:
    """How many `rows_of` makes of an object, as far as its name tells: those of a journal."""
    return queue.keys.records_at(key) if is_of_partition(queue, key) else 1


def _row(queue: Queue, kind: str, entry: ObjectInfo) -> MessageRow | None:
    path = queue.keys.path_under(kind, entry.key)
    found = open_state(queue.store, entry.key) if path else None
    if path is None or found is None:
        return None
    row = MessageRow(
        path=path,
        state="corrupt",
        priority=priority_of(path),
        size=None,
        since=format_instant(entry.modified_at),
    )
    try:
        if kind == "records":
            record = Record.read(found)
            row.state, row.size, row.attempt, row.worker = record.outcome, record.size, record.attempt, record.worker
            row.error = f"{record.failure.type}: {record.failure.message}" if record.failure else None
            row.lines = as_whole((record.lines or {}).get("total", 0)) or None
            row.dead_lines = record.dead_lines
        else:
            lease = Lease.read(found)
            row.lines = _lines(path)
            row.state, row.attempt, row.worker = lease.state, lease.attempt, lease.owner
            row.due_at = format_instant(lease.retry_at) if lease.retry_at else None
            row.error = f"{lease.failure.type}: {lease.failure.message}" if lease.failure else None
    except CorruptState as error:
        row.error = str(error)
    return row


def _lines(path: str) -> int | None:
    """Of a batch, if its name tells."""
    return lines_of(path) if is_batch(path) else None


def life(queue: Queue, path: str, *, with_body: bool) -> MessageLife:
    """Everything that is known about one message.

    Raises:
        MessageNotFound: no message, record or dead letter has this path.
    """
    if not path.startswith(("messages/", "delayed/")):
        raise MessageNotFound(f"{path!r} is not a path: a path starts with messages/ or delayed/")
    problem = queue.keys.problem(path)
    if problem:
        raise InvalidRequest(f"path: {problem}")
    status = queue.status(path)
    due_at = due_of(path)
    claimed_at = status.lease.claimed_at if status.lease else None
    return MessageLife(
        **status.to_json(),
        priority=priority_of(path),
        due_at=format_instant(due_at) if due_at else None,
        claimed_at=format_instant(claimed_at) if claimed_at else None,
        body=_body(queue, path, status) if with_body else None,
    )


def _body(queue: Queue, path: str, status: Status) -> Body | None:
    found = queue.store.open(queue.keys.message(path)) or queue.store.open(queue.keys.dead(path))
    if found is None and status.kept:
        found = queue.store.open(status.kept.key)
    if found is None:
        return None
    with found.stream as stream:
        raw = stream.read(BODY_BYTES)
    truncated = found.size > len(raw)
    text: str | None
    try:
        # The cut may split a character: that does not make the rest binary.
        text = raw.decode("utf-8", "ignore" if truncated else "strict")
    except UnicodeDecodeError:
        text = None
    if text is not None and "\0" in text:
        text = None
    return Body(
        text=text,
        base64=None if text is not None else b64encode(raw).decode(),
        size=found.size,
        truncated=truncated,
        content_type=found.content_type,
        metadata=decode_metadata(found.metadata),
    )
