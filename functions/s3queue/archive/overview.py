"""The archive at a glance: what each queue has in it, what waits, and who changed the table last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from s3queue.store import ObjectStore

from .old_log import unconverted
from .table import Snapshot, understood
from .waiting import Waiting, count_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueArchive:
    """One queue's share of the table."""

    queue: str
    commits: int
    files: int
    rows: int
    bytes: int
    first_day: str
    last_day: str
    #: Days that a compaction would merge: they have more than one file.
    days_in_pieces: int
    #: Commits that are still in the layout before the table.
    unconverted: int
    #: None: not counted.
    waiting: Waiting | None


@dataclass(frozen=True, slots=True)
class Version:
    """One change of the table."""

    number: int
    at: datetime
    operation: str
    #: Of an archive run; empty otherwise.
    queue: str


def describe(store: ObjectStore, seen: Snapshot | None, queue: str, *, waiting: bool) -> QueueArchive:
    """Raises CorruptState if the table or one of its files cannot be read."""
    parts = seen.parts(queue) if seen else []
    days = [part.day for part in parts]
    return QueueArchive(
        queue=queue,
        commits=seen.commits(queue) if seen else 0,
        files=len(parts),
        rows=sum(part.rows or 0 for part in parts),
        bytes=sum(part.bytes for part in parts),
        first_day=min(days, default=""),
        last_day=max(days, default=""),
        days_in_pieces=sum(1 for day in set(days) if days.count(day) > 1),
        unconverted=len(unconverted(store, seen, queue)),
        waiting=count_waiting(store, seen, queue) if waiting else None,
    )


def archived_queues(seen: Snapshot | None) -> set[str]:
    return {part.queue for part in seen.parts()} if seen else set()


def last_versions(seen: Snapshot, limit: int) -> list[Version]:
    """The latest first; a GET for each."""
    with understood():
        told: Sequence[dict[str, Any]] = seen.table.history(limit)
    return [
        Version(
            int(one["version"]),
            datetime.fromtimestamp(int(one.get("timestamp", 0)) / 1000, UTC),
            str(one.get("operation", "")),
            str(one.get("s3queue.queue", "")),
        )
        for one in told
    ]
