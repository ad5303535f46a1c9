"""Lease: who processes a message, which attempt this is, or when it may be tried again. Every write is conditional."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from s3queue.encoding import (
    LATEST,
    LONGEST,
    NONSENSE,
    as_duration,
    as_list,
    as_name,
    as_number,
    as_text,
    as_whole,
    cut,
    dump,
    format_instant,
    load_current,
    parse_instant,
)
from s3queue.errors import CorruptState
from s3queue.paths import is_batch
from s3queue.store import Object

from .batch import Lines
from .message import MOVED, Generation, Message
from .record import Attempt, Failure, Record

State = Literal["processing", "waiting", "burying"]
#: `Date` and `LastModified` are whole seconds, so a difference of the two can be wrong by this much.
GRAIN = timedelta(seconds=2)
#: The lease of a dead message that cannot be moved waits until then.
NEVER = LATEST
#: Attempts that a lease keeps, so that a huge max_attempts does not make a huge lease.
ATTEMPTS_KEPT = 20
#: Larger objects are not read. Twenty attempts with the longest texts, all of them escaped, make half a MiB.
LEASE_BYTES = 1024 * 1024
#: The lease of a batch also names each line that failed or died: at most a million, of 17 bytes each.
BATCH_LEASE_BYTES = 24 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The state of one message that is being processed, waits for its next attempt, or is being buried."""

    state: State
    attempt: int
    owner: str
    #: Gives two writes of equal content different ETags, and shows after a lost answer whether the write won.  [P2]
    nonce: str
    timeout: timedelta
    #: When the present attempt was claimed, by S3's clock; None in the first write, because its answer tells the time.
    claimed_at: datetime | None = None
    #: The generation that the attempts belong to; None in the first write, which comes before the message is read.
    generation: Generation | None = None
    #: That message's put id: nobody else knows it once someone has deleted the message.
    put_id: str = ""
    #: The ETag that the first write expects to lease, from the event or the LIST that named the message; it tells the
    #: sweeper, should this worker die before it knows the generation, whether the name has been PUT anew since.
    expected_etag: str = ""
    retry_at: datetime | None = None
    failure: Failure | None = None
    attempts: tuple[Attempt, ...] = ()
    lines: Lines | None = None
    #: What the handler last reported: the fraction that is done, and a text.
    progress: tuple[float, str] | None = None
    #: How often its handler has postponed it.
    postponed: int = 0
    #: The claim's: it stays the same however often the lease is written, so another process can show that it is its.
    fence: str = ""
    #: An operator's, who cancels or purges the message: no handler runs under it, so it is no attempt.
    is_cancelling: bool = False

    @property
    def leased_etag(self) -> str:
        """The ETag of the message that it is for, as far as that is known."""
        return self.generation.etag if self.generation else self.expected_etag

    def waits_for(self, present: Generation) -> bool:
        """Whether what lies there now is what this lease waits to try again; if not, its name was PUT anew.

        Equal bytes are the same message while it is at work. One that waits for ever is dead, and one that is being
        purged may be gone: any other PUT is anew.
        """
        if self.generation and (self.retry_at == NEVER or self.is_cancelling):
            return self.generation == present
        return self.leased_etag in ("", present.etag)

    def is_ended_by(self, record: Record) -> bool:
        """Whether this record is the outcome of what the attempts and lines of this lease belong to. Equal bytes that
        were PUT after it, and before its message was deleted, have had none.  [P1] [P5]

        S3's dates decide nothing. The first lease of a message names no generation, but the record has its fence.
        """
        return record.generation == self.generation or bool(record.fence and record.fence == self.fence)

    def anew(self, message: Message) -> Lease:
        """This claim, as the first one of what lies there: attempts belong to a generation.  [P5]"""
        begun = replace(self, attempt=1, generation=message.generation, put_id=message.put_id, postponed=0)
        return replace(begun, failure=None, attempts=(), lines=None, fence="")

    def on(self, message: Message, claimed_at: datetime) -> Lease:
        """This lease, on what lies there now.

        Equal bytes are the same message while it is at work, but sends belong to one generation: two records with the
        same sends would store them twice. So the lines of a batch that has sent something begin again.  [P7]
        """
        present, lines = message.generation, self.lines
        if lines and lines.has_sends and self.generation not in (None, present):
            lines = None
        # Who could not read it does not know its put id.
        put_id = message.put_id or self.put_id
        return replace(self, generation=present, put_id=put_id, claimed_at=claimed_at, lines=lines)

    def vanished(self, path: str, at: datetime, worker: str) -> Record:
        """The outcome of its message, which is known by its generation, and which someone deleted.

        It has the message's put id: if that is PUT a second time meanwhile, this is its outcome, too.  [P1] But not the
        id of a replay, whose letter may still be there: whoever replays that again wants it to run.
        """
        assert self.generation
        return Record(
            path=path,
            outcome="dead",
            generation=self.generation,
            finished_at=at,
            attempt=self.attempt,
            worker=worker,
            attempts=self.attempts,
            failure=Failure("MessageVanished", "someone deleted the message before it was finished; not s3queue"),
            put_id="" if self.put_id.startswith(MOVED) else self.put_id,
            fence=self.fence,
        )

    def to_bytes(self) -> bytes:
        return dump(
            {
                "state": self.state,
                "attempt": self.attempt,
                "owner": self.owner,
                "nonce": self.nonce,
                "timeout_seconds": min(max(self.timeout, timedelta()), LONGEST).total_seconds(),
                "claimed_at": format_instant(self.claimed_at) if self.claimed_at else None,
                "message_etag": self.generation.etag if self.generation else None,
                "enqueued_at": format_instant(self.generation.put_at) if self.generation else None,
                "put_id": self.put_id or None,
                "expected_etag": self.expected_etag,
                "retry_at": format_instant(min(self.retry_at, LATEST)) if self.retry_at else None,
                "failure": self.failure.to_json() if self.failure else None,
                "attempts": [attempt.to_json() for attempt in self.attempts[-ATTEMPTS_KEPT:]],
                "lines": self.lines.to_json() if self.lines else None,
                "progress": list(self.progress) if self.progress else None,
                "postponed": self.postponed or None,
                "fence": self.fence,
                "cancelling": self.is_cancelling or None,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Lease:
        """Raises CorruptState, which names the key, if it is not a lease; NewerFormat if a newer version wrote it."""
        found = load_current(body, key)
        try:
            return cls._from_json(found)
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a lease: {cut(error)}") from None

    @classmethod
    def read(cls, found: Object) -> Lease:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        limit = BATCH_LEASE_BYTES if is_batch(found.key) else LEASE_BYTES
        return cls.from_bytes(found.read(limit), found.key)

    @classmethod
    def _from_json(cls, found: Mapping[str, Any]) -> Lease:
        if found["state"] not in ("processing", "waiting", "burying"):
            raise ValueError(f"unknown state {found['state']!r}")
        progress = found.get("progress")
        return cls(
            state=found["state"],
            attempt=as_whole(found.get("attempt", 0)),
            owner=as_name(found["owner"]),
            nonce=as_text(found["nonce"]),
            timeout=as_duration(found["timeout_seconds"]),
            claimed_at=parse_instant(found["claimed_at"]) if found.get("claimed_at") else None,
            generation=Generation(etag=as_text(found["message_etag"]), put_at=parse_instant(found["enqueued_at"]))
            if found.get("message_etag")
            else None,
            put_id=as_text(found.get("put_id") or ""),
            expected_etag=as_text(found.get("expected_etag", "")),
            retry_at=parse_instant(found["retry_at"]) if found.get("retry_at") else None,
            failure=Failure.from_json(found["failure"]) if found.get("failure") else None,
            attempts=tuple(Attempt.from_json(attempt) for attempt in as_list(found.get("attempts", []))),
            lines=Lines.from_json(found["lines"]) if found.get("lines") else None,
            progress=(as_number(progress[0]), as_text(progress[1])) if progress else None,
            postponed=as_whole(found.get("postponed", 0)),
            fence=as_text(found.get("fence", "")),
            is_cancelling=found.get("cancelling") is True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLease:
    """A lease as it was read, with the ETag that a write must match, and S3's time at the GET."""

    lease: Lease
    key: str
    etag: str
    #: When it was written, and when it was read, both by S3's clock.
    written_at: datetime
    read_at: datetime

    @classmethod
    def read(cls, found: Object) -> StoredLease:
        """Raises CorruptState, which names the key, if it is not a lease; NewerFormat if a newer version wrote it."""
        return cls.of(found, Lease.read(found))

    @classmethod
    def of(cls, found: Object, lease: Lease) -> StoredLease:
        return cls(lease=lease, key=found.key, etag=found.etag, written_at=found.modified_at, read_at=found.at)

    @property
    def over_at(self) -> datetime:
        """When it runs out, unless its owner's heartbeat keeps it alive."""
        return self.written_at + self.lease.timeout + GRAIN

    def is_over(self) -> bool:
        """Whether it has run out, by S3's clock. A waiting lease does not run out; it becomes due."""
        return self.lease.state != "waiting" and self.read_at > self.over_at

    def is_due(self) -> bool:
        """Whether it waits for the next attempt, and the next attempt may start now."""
        retry_at = self.lease.retry_at
        return self.lease.state == "waiting" and (retry_at is None or retry_at <= self.read_at)
