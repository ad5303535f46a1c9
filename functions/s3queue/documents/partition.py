"""PartitionLease and Journal: one lease for many messages, and the outcomes that were committed with it.  [P9]

The lease is the commit point: an outcome counts once the lease names it. The journal says the same for longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from s3queue.encoding import (
    LATEST,
    LONGEST,
    NONSENSE,
    as_duration,
    as_flag,
    as_list,
    as_name,
    as_object,
    as_text,
    as_whole,
    cut,
    dump,
    filled,
    format_instant,
    load_current,
    parse_instant,
)
from s3queue.errors import CorruptState
from s3queue.paths import is_ordered, partition_of
from s3queue.store import Object

from .lease import GRAIN, NEVER, Lease
from .message import Generation
from .record import Attempt, Failure, Record

#: Larger objects are not read: the outcomes of one commit are a few MiB at most.
PARTITION_BYTES = 24 * 1024 * 1024
#: Outcomes with more bytes than this are committed one part after the other.
PART_BYTES = 4 * 1024 * 1024
#: In a lease that is larger than this, messages that wait are described in short.
_LONG_BYTES = PARTITION_BYTES // 2
#: Of the error of a message that is described in short.
_SHORT = 200
#: Attempts that are kept of a message that waits: all waiting ones are written with every commit.
ATTEMPTS_KEPT = 3
#: Failed messages that one partition may keep waiting. With more, it takes no other messages until one of them is due.
MOST_WAITING = 200


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message of a partition that failed, and is tried again; `lease` says what the lease of its own would say."""

    path: str
    lease: Lease
    #: Its worker may have died of it: it runs alone, so that the next death is known to be its own.
    is_suspect: bool = False

    def is_for(self, present: Generation) -> bool:
        """Whether what lies there now is what this is about; if not, its name was PUT anew."""
        return self.lease.waits_for(present)

    @property
    def retry_at(self) -> datetime:
        return self.lease.retry_at or NEVER

    def in_short(self) -> Waiting:
        """What decides, and the beginning of the last error; of one that never runs again, nothing more than itself."""
        failure = self.lease.failure
        if failure and self.retry_at != NEVER:
            failure = Failure(failure.type[:_SHORT], failure.message[:_SHORT])
        else:
            failure = None
        return replace(self, lease=replace(self.lease, failure=failure, attempts=()))

    def to_json(self) -> dict[str, Any]:
        lease, generation = self.lease, self.lease.generation
        return filled(
            {
                "path": self.path,
                "attempt": lease.attempt,
                "message_etag": lease.leased_etag,
                "enqueued_at": format_instant(generation.put_at) if generation else None,
                "put_id": lease.put_id or None,
                "retry_at": format_instant(min(self.retry_at, LATEST)),
                "failure": lease.failure.to_json() if lease.failure else None,
                "attempts": [attempt.to_json() for attempt in lease.attempts[-ATTEMPTS_KEPT:]],
                "postponed": lease.postponed or None,
                "suspect": self.is_suspect or None,
                "cancelling": lease.is_cancelling or None,
            }
        )

    @classmethod
    def from_json(cls, found: Any, owner: str) -> Waiting:
        as_object(found)
        etag, put_at = as_text(found["message_etag"]), found.get("enqueued_at")
        lease = Lease(
            state="waiting",
            attempt=as_whole(found.get("attempt", 0)),
            owner=owner,
            nonce="",
            timeout=timedelta(),
            generation=Generation(etag=etag, put_at=parse_instant(put_at)) if put_at else None,
            put_id=as_text(found.get("put_id", "")),
            expected_etag=etag,
            retry_at=parse_instant(found["retry_at"]),
            failure=Failure.from_json(found["failure"]) if found.get("failure") else None,
            attempts=tuple(Attempt.from_json(attempt) for attempt in as_list(found.get("attempts", []))),
            postponed=as_whole(found.get("postponed", 0)),
            is_cancelling=found.get("cancelling") is True,
        )
        return cls(as_name(found["path"]), lease, as_flag(found.get("suspect", False)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLease:
    """`leases/@{partition}`: who works on the messages of a partition, and what became of the last ones."""

    #: `open`: nobody works on them; only the failed messages are kept.
    state: Literal["processing", "open"]
    owner: str
    timeout: timedelta
    nonce: str = ""
    #: Path → ETag of the messages that may be running under this write of the lease.
    taken: Mapping[str, str] = field(default_factory=dict)
    #: By path: messages that failed, or whose worker may have died of them.
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    #: Outcomes that count, while the messages may still lie there; and the name of the journal that gets them.
    ended: tuple[Record, ...] = ()
    journal: str = ""

    @property
    def next_waiting(self) -> Waiting | None:
        """The failed message that is tried next; None if none ever will.

        In a group that is the first: after the death of their holder others may wait behind it, and be due before it.
        """
        waiting = [one for one in self.waiting.values() if one.retry_at != NEVER]
        if waiting and is_ordered(partition_of(waiting[0].path)):
            return min(waiting, key=lambda one: one.path.encode())
        return min(waiting, key=lambda one: one.retry_at, default=None)

    @property
    def next_at(self) -> datetime | None:
        """When a failed message may be tried again; None if none ever will."""
        return self.next_waiting.retry_at if self.next_waiting else None

    def to_bytes(self) -> bytes:
        """What nobody could read would lose attempts and outcomes: long errors are cut before that."""
        body = self._to_bytes()
        if len(body) <= _LONG_BYTES:
            return body
        return replace(self, waiting={path: one.in_short() for path, one in self.waiting.items()})._to_bytes()

    def _to_bytes(self) -> bytes:
        return dump(
            {
                "state": self.state,
                "owner": self.owner,
                "nonce": self.nonce,
                "timeout_seconds": min(max(self.timeout, timedelta()), LONGEST).total_seconds(),
                "taken": dict(self.taken),
                "waiting": [one.to_json() for one in self.waiting.values()],
                "ended": [record.within_document() for record in self.ended],
                "journal": self.journal,
            }
        )

    @classmethod
    def read(cls, found: Object) -> PartitionLease:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(PARTITION_BYTES), found.key)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> PartitionLease:
        """Raises CorruptState, which names the key, if it is not one; NewerFormat if a newer version wrote it."""
        document = load_current(body, key)
        try:
            if document["state"] not in ("processing", "open"):
                raise ValueError(f"unknown state {document['state']!r}")
            owner = as_name(document["owner"])
            waiting = (Waiting.from_json(one, owner) for one in as_list(document.get("waiting", [])))
            return cls(
                state=document["state"],
                owner=owner,
                nonce=as_text(document["nonce"]),
                timeout=as_duration(document["timeout_seconds"]),
                taken={as_name(path): as_text(etag) for path, etag in as_object(document.get("taken", {})).items()},
                waiting={one.path: one for one in waiting},
                ended=_records(document.get("ended", []), key),
                journal=as_name(document["journal"]) if document.get("journal") else "",
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not the lease of a partition: {cut(error)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition:
    """The lease of a partition as it was read, with the ETag that a write must match, and S3's time at the GET."""

    lease: PartitionLease
    etag: str
    written_at: datetime
    read_at: datetime

    @classmethod
    def of(cls, found: Object, lease: PartitionLease) -> StoredPartition:
        return cls(lease=lease, etag=found.etag, written_at=found.modified_at, read_at=found.at)

    @property
    def over_at(self) -> datetime:
        """When it runs out, unless its owner's heartbeat keeps it alive."""
        return self.written_at + self.lease.timeout + GRAIN

    def is_over(self) -> bool:
        return self.lease.state == "processing" and self.read_at > self.over_at


def in_parts(ended: Iterable[Record]) -> list[tuple[Record, ...]]:
    """Outcomes in parts that a lease, and a journal, have room for; at least one, which may be empty."""
    parts: list[list[Record]] = [[]]
    size = 0
    for record in ended:
        size += len(record.to_bytes())
        if size > PART_BYTES and parts[-1]:
            parts.append([])
            size = len(record.to_bytes())
        parts[-1].append(record)
    return [tuple(part) for part in parts]


def journal_bytes(records: tuple[Record, ...]) -> bytes:
    """`records/@{partition}/{name}.json`: the same bytes, whoever writes it."""
    return dump({"records": [record.within_document() for record in records]})


def read_journal(found: Object) -> tuple[Record, ...]:
    """As `journal_from_bytes`; one that is too large is corrupt, and is not read."""
    return journal_from_bytes(found.read(PARTITION_BYTES), found.key)


def journal_from_bytes(body: bytes, key: str) -> tuple[Record, ...]:
    """Raises CorruptState, which names the key, if it is not a journal; NewerFormat if a newer version wrote it."""
    document = load_current(body, key)
    try:
        return _records(document["records"], key)
    except NONSENSE as error:
        raise CorruptState(f"{key} is not a journal: {cut(error)}") from None


def _records(found: Any, key: str) -> tuple[Record, ...]:
    return tuple(Record.from_json(as_object(record), key) for record in as_list(found))
