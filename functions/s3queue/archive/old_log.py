"""The archive's log before it was a Delta table: one document per commit, and its conversion.

    archive/queue=emails/_log/0000000001.json    which Parquet files the first commit of `emails` added

The conversion copies nothing: each commit becomes one of the table, with the same number, in the same order. It may be
killed, repeated and run twice at once. The documents stay where they are; nobody reads them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from s3queue.encoding import (
    FORMAT,
    NONSENSE,
    as_list,
    as_name,
    as_object,
    as_text,
    as_whole,
    cut,
    dump,
    format_instant,
    load,
    parse_instant,
)
from s3queue.errors import Conflict, CorruptState, InvalidName, InvalidRequest, NewerFormat, Unavailable
from s3queue.keys import Keys, check_queue
from s3queue.store import ObjectStore, listing

from .columns import SCHEMA_VERSION
from .parts import Part
from .table import FOLDER, TRIES, ArchiveTable, Snapshot

#: Larger commits are not read: a run that adds a hundred thousand files would make one.
COMMIT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OldCommit:
    """What one run added."""

    version: int
    parts: tuple[Part, ...]
    committed_at: datetime

    def to_bytes(self, nonce: str) -> bytes:
        return dump(
            {
                "schema": SCHEMA_VERSION,
                "version": self.version,
                "committed_at": format_instant(self.committed_at),
                "parts": [asdict(part) for part in self.parts],
                "nonce": nonce,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> OldCommit:
        """Raises CorruptState, naming the key, if these bytes are no commit; NewerFormat if this side is too old."""
        found: Mapping[str, Any] = load(body, key)
        try:
            if found["v"] > FORMAT or as_whole(found["schema"]) > SCHEMA_VERSION:
                raise NewerFormat(f"{key} has schema {found['schema']}, this side knows {SCHEMA_VERSION}: upgrade it")
            return cls(
                version=as_whole(found["version"]),
                parts=tuple(_part(part) for part in as_list(found.get("parts", []))),
                committed_at=parse_instant(found["committed_at"]),
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a commit of the archive: {cut(error)}") from None


def _part(found: Any) -> Part:
    as_object(found)
    return Part(
        key=as_name(found["key"]),
        queue=as_text(found["queue"]),
        day=as_text(found["day"]),
        rows=as_whole(found["rows"]),
        bytes=as_whole(found["bytes"]),
    )


def logged_queues(store: ObjectStore) -> list[str]:
    """The queues that have an old log, whether or not it is converted."""
    prefix = f"{FOLDER}queue="
    names, after = set(), ""
    while True:
        page = store.list(prefix, delimiter="/", after=after)
        names |= {found.removeprefix(prefix).rstrip("/") for found in page.prefixes}
        if page.next_after is None:
            break
        after = page.next_after
    return [name for name in sorted(names) if _is_queue(name) and old_versions(store, name)]


def _is_queue(name: str) -> bool:
    try:
        check_queue(name)
    except InvalidName:
        return False
    return True


def old_versions(store: ObjectStore, queue: str) -> list[int]:
    """The numbers of the commits that the old log has; one LIST, usually empty."""
    log = Keys(queue).archive_log
    names = (entry.key.removeprefix(log) for page in listing(store, log) for entry in page.objects)
    digits = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted(int(found) for found in digits if found.isascii() and found.isdigit())


def unconverted(store: ObjectStore, seen: Snapshot | None, queue: str) -> list[int]:
    """Commits of the old log that the table lacks.

    A table that has more commits than the old log has been written to since: then all of them are in it.
    """
    done = seen.commits(queue) if seen else 0
    return [version for version in old_versions(store, queue) if version > done]


def convert(store: ObjectStore, archive: ArchiveTable, queue: str) -> int:
    """Register the files of the old log, commit by commit; how many commits were added.

    Raises:
        CorruptState, NewerFormat: a commit of the old log cannot be read, or one is missing; those before it are in
            the table, and nothing else should be added to this queue's archive.
        Conflict: others always committed first.
    """
    added, lost = 0, 0
    while versions := unconverted(store, archive.snapshot(), queue):
        seen = archive.prepared()
        first = versions[0]
        if first != seen.commits(queue) + 1:
            if lost < TRIES and seen.commits(queue) >= first:
                lost += 1
                continue  # another conversion went on meanwhile
            missing = Keys(queue).archive_commit(seen.commits(queue) + 1)
            raise CorruptState(f"{missing} was deleted: the archive cannot be converted without it")
        commit = _read(store, queue, first)
        try:
            archive.commit(seen, queue, commit.parts, committed_at=commit.committed_at)
        except (Conflict, Unavailable):
            lost += 1
            if lost >= TRIES:
                raise
            continue
        added += 1
    return added


def check_converted(store: ObjectStore, seen: Snapshot | None, queue: str) -> None:
    """Raises InvalidRequest if the queue's archive is still in the old log: a reader of the table would miss it."""
    if versions := unconverted(store, seen, queue):
        raise InvalidRequest(
            f"{len(versions)} commits of the archive of {queue} are in the old layout: "
            f"run `s3queue archive convert {queue}` once, or the next archive job does it"
        )


def _read(store: ObjectStore, queue: str, version: int) -> OldCommit:
    key = Keys(queue).archive_commit(version)
    found = store.open(key)
    if found is None:
        raise CorruptState(f"{key} was deleted: the archive cannot be converted without it")
    commit = OldCommit.from_bytes(found.read(COMMIT_BYTES), key)
    days = Keys(queue).archive_days
    if commit.version != version or any(part.queue != queue or not part.key.startswith(days) for part in commit.parts):
        raise CorruptState(f"{key} is not commit {version} of the archive of {queue}")
    return commit
