"""What lies in the bucket at the end: outcomes and dead letters by message, and whatever should not be there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from s3queue import Queue, Record
from s3queue.documents.dead_lines import messages_of
from s3queue.documents.heartbeat import Heartbeat
from s3queue.documents.lease import GRAIN
from s3queue.errors import CorruptState
from s3queue.paths import without_mark
from s3queue.store import ObjectInfo, listing

#: Kinds of objects that exist only while something is at work or waits.
PASSING = ("messages", "delayed", "leases", "retries", "runs/slot-")
#: A heartbeat is deleted after twenty times its ttl, by the next sweep that looks.
HEARTBEAT_TTLS = 20
SWEEP = timedelta(seconds=30)


@dataclass
class Found:
    """One queue's part of the bucket, by the ids of the messages."""

    records: dict[str, Record] = field(default_factory=dict)
    #: Id → path.
    completed: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def entries(queue: Queue, kind: str) -> Iterator[ObjectInfo]:
    for page in listing(queue.store, f"{queue.name}/{kind}"):
        yield from page.objects


def left_behind(queue: Queue) -> list[str]:
    return [entry.key for kind in PASSING for entry in entries(queue, kind)]


def strays(queue: Queue) -> list[str]:
    """Heartbeats that the sweeper should have removed by now."""
    found = []
    for entry in entries(queue, "workers/"):
        stored = queue.store.open(entry.key)
        if stored is None:
            continue
        try:
            ttl = Heartbeat.from_bytes(stored.read(), entry.key).ttl
        except CorruptState:
            found.append(f"unreadable heartbeat: {entry.key}")
            continue
        if stored.at - stored.modified_at > ttl * HEARTBEAT_TTLS + GRAIN + SWEEP:
            found.append(f"old heartbeat: {entry.key}")
    return found


def examine(queue: Queue) -> Found:
    found = Found(left=left_behind(queue) + strays(queue))
    for entry in entries(queue, "records/"):
        stored = queue.store.open(entry.key)
        if stored:
            record = Record.from_bytes(stored.read(), entry.key)
            found.records[record.path] = record
            found.completed |= dict.fromkeys(_completed(record), record.path)
    for entry in entries(queue, "dead/"):
        stored, path = queue.store.open(entry.key), queue.keys.path_under("dead", entry.key)
        if stored and path:
            for _, body in messages_of(without_mark(path), stored.stream):
                if isinstance(body, bytes):
                    found.dead[str(json.loads(body)["id"])] = path
    return found


def _completed(record: Record) -> list[str]:
    """The ids of the messages in it that completed: every handler returns its message's."""
    if record.lines is not None:
        return [str(result) for _, result in record.lines.get("results", ())]
    return [str(record.result)] if record.outcome == "completed" else []
