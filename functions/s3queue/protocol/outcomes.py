"""Outcomes: writes the one record of a message, copies dead messages to `dead/`, and deletes finished ones.

Worker and sweeper finish a message by the same three steps, so that each can continue where the other crashed: the
record, then (if it died) the dead letter, then the deletion of message and lease, in this order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import IO

from s3queue import keys as names
from s3queue.clock import Chance
from s3queue.documents.batch import Lines, read_lines, spooled
from s3queue.documents.message import INLINE_BYTES, Generation
from s3queue.documents.record import Failure, Record
from s3queue.encoding import decode_metadata, encode_metadata, format_instant
from s3queue.errors import Conflict, CorruptState, NewerFormat, Unavailable
from s3queue.keys import Keys
from s3queue.store import UNKNOWN_TRIES, Object, ObjectInfo, ObjectStore, delete_seen, delete_unique, put_surely

#: S3 accepts 2 KB of user metadata; the producer's is kept, ours is shortened to fit.
METADATA_BYTES = 2000
#: Prefix of the metadata that a dead letter carries, and that a replay removes.
DEAD_METADATA = "s3queue-"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The steps that finish a message of one queue."""

    store: ObjectStore
    keys: Keys
    chance: Chance

    def read(self, path: str) -> Record | None:
        """The record of a path; None if there is none, or if it cannot be read.

        Raises:
            NewerFormat: a newer version wrote the record, and only that version can read it.
        """
        key = self.keys.record(path)
        found = self.store.open(key)
        return _readable(found) if found else None

    def write_record(self, record: Record, is_alive: Callable[[], bool]) -> Record:
        """Write the outcome unless there is one already; returns the one that counts.  [P1] [P3]

        The first writer of a generation wins. Another generation's record is replaced by whoever holds the lease, since
        nobody can have finished a newer one meanwhile, or whose message still lies there; a zombie leaves it alone.

        Raises:
            Unavailable: unknown whether it was written; calling again is safe.
            NewerFormat: a newer version wrote the record, and only that version can read it.
        """
        record = replace(record, nonce=self.chance.token())
        key = self.keys.record(record.path)
        body = record.to_bytes()
        for _ in range(UNKNOWN_TRIES):
            try:
                put_surely(self.store, key, body, if_absent=True)
                return record
            except Conflict:
                found = self.store.open(key)
            if found is None:
                continue
            stored = _readable(found)
            if stored and stored.generation == record.generation:
                return stored
            if stored and not is_alive() and self._is_superseded(record):
                return stored
            try:
                put_surely(self.store, key, body, if_match=found.etag)
                return record
            except Conflict:
                continue
        raise Unavailable(f"record not written: {key}: too many writers at once; try again")

    def _is_superseded(self, record: Record) -> bool:
        """Whether something else than this record's message lies there, or nothing. S3's dates cannot tell which of
        two generations came first: a multipart upload is dated by its start."""
        present = self.store.head(self.keys.message(record.path))
        return present is None or (present.etag, present.modified_at) != (
            record.generation.etag,
            record.generation.put_at,
        )

    def bury(
        self,
        record: Record,
        message: ObjectInfo,
        lines: Lines | None,
        check: Callable[[], None],
        is_alive: Callable[[], bool],
    ) -> Record:
        """Record a death and move the message to `dead/`; the caller holds a burying lease and clears afterwards.

        `check` raises once the lease is over. If the message was completed meanwhile, that record is kept.  [P3]
        """
        written = self.write_record(record, is_alive)
        check()
        if written.generation == record.generation and (written.outcome == "dead" or written.dead_lines):
            self.move_to_dead(written, message, lines)
            check()
        return written

    def move_to_dead(self, record: Record, message: ObjectInfo, lines: Lines | None) -> None:
        """Copy the message, or the dead lines of a batch. Safe to repeat: the same bytes go to the same keys."""
        key = self.keys.message(record.path)
        etag = record.generation.etag
        if not lines or not (lines.done or lines.dead):
            metadata = _dead_metadata(message, record, record.failure)
            try:
                self.store.copy(
                    key,
                    self.keys.dead(record.path),
                    if_match=etag,
                    metadata=metadata,
                    content_type=message.content_type,
                )
            except Conflict:
                return  # the producer PUT the name again: that generation has an outcome of its own
            return
        try:
            found = self.store.open(key, if_match=etag)
        except Conflict:
            return
        if found:
            self._move_lines(record, message, lines, spooled(found.stream))

    def _move_lines(self, record: Record, message: ObjectInfo, lines: Lines, batch: IO[bytes]) -> None:
        """Every dead line becomes a dead letter of its own; lines that are neither done nor dead stay together."""
        with batch, tempfile.SpooledTemporaryFile(max_size=INLINE_BYTES) as rest:
            for number, line in read_lines(batch, INLINE_BYTES):
                failure = lines.dead.get(number)
                if failure:
                    self.store.put(
                        self.keys.dead(names.line_path(record.path, number)),
                        line if isinstance(line, bytes) else line.copied(batch),
                        metadata=_dead_metadata(message, record, failure, line=number),
                        content_type="application/json",
                    )
                elif number not in lines.done:
                    for piece in [line] if isinstance(line, bytes) else line.pieces(batch):
                        rest.write(piece)
                    rest.write(b"\n")
            if rest.tell():
                rest.seek(0)
                metadata = _dead_metadata(message, record, record.failure)
                self.store.put(
                    self.keys.dead(record.path),
                    rest,
                    metadata=metadata,
                    content_type=message.content_type,
                )

    def clear(
        self,
        path: str,
        generation: Generation,
        lease_etag: str,
        is_alive: Callable[[], bool],
        *,
        is_repeated: bool = False,
    ) -> bool:
        """Delete the message, then the lease; True if a newer generation may be in the message's place.

        The order matters: a lease is deleted only after its message, so whoever creates a first lease on a message
        that exists knows that the message was never finished.  [P4] [P6]
        """
        deleted = self._delete_message(path, generation, is_alive, is_repeated)
        delete_unique(self.store, self.keys.lease(path), if_match=lease_etag)
        return not deleted

    def _delete_message(
        self, path: str, generation: Generation, is_alive: Callable[[], bool], is_repeated: bool
    ) -> bool:
        """Delete this generation; False if another object, or none, was there.  [P1]

        Equal bytes have equal ETags: in a second call they may be a new PUT or a replay, so look before asking.
        """
        key = self.keys.message(path)
        if is_repeated:
            found = self.store.head(key)
            if found is None or (found.etag, found.modified_at) != (generation.etag, generation.put_at):
                return found is None
        return delete_seen(self.store, key, etag=generation.etag, modified_at=generation.put_at, is_alive=is_alive)

    def bury_misnamed(self, path: str, reason: str) -> Record | None:
        """Bury a message whose key leaves no room for a lease. No handler runs, and every step is safe to repeat."""
        message = self.store.head(self.keys.message(path))
        if message is None:
            return None
        generation = Generation(etag=message.etag, put_at=message.modified_at)
        buried = self.keys.buried_path(path)
        failure = Failure("InvalidName", f"{reason}; the key was {self.keys.message(path)}")
        record = Record(
            path=buried,
            outcome="dead",
            generation=generation,
            finished_at=message.at,
            failure=failure,
            size=message.size,
        )
        self.write_record(record, lambda: True)
        metadata = _dead_metadata(message, record, failure)
        try:
            self.store.copy(
                message.key,
                self.keys.dead(buried),
                if_match=message.etag,
                metadata=metadata,
                content_type=message.content_type,
            )
        except Conflict:
            return None
        delete_seen(self.store, message.key, etag=message.etag, modified_at=message.modified_at)
        return record


def _readable(found: Object) -> Record | None:
    """The record; None if the bytes are not one, so that it may be replaced. A newer format raises, and is kept."""
    try:
        return Record.read(found)
    except NewerFormat:
        raise
    except CorruptState:
        return None


def _dead_metadata(message: ObjectInfo, record: Record, failure: Failure | None, *, line: int = 0) -> dict[str, str]:
    """The producer's metadata, and the failure, shortened to S3's limit."""
    metadata = {name: value for name, value in message.metadata.items() if not name.lower().startswith(DEAD_METADATA)}
    facts = {
        "error-type": failure.type if failure else "Error",
        "attempts": str(record.attempt),
        "died-at": format_instant(record.finished_at),
        "enqueued-at": format_instant(record.generation.put_at),
        "line": str(line) if line else "",
        "worker": record.worker,
        "error": failure.message[:600] if failure else "",
    }
    for name, value in facts.items():
        room = METADATA_BYTES - sum(len(key) + len(text) for key, text in metadata.items()) - len(DEAD_METADATA + name)
        encoded = encode_metadata({DEAD_METADATA + name: value})
        while value and len(next(iter(encoded.values()))) > room:
            value = value[: len(value) // 2]
            encoded = encode_metadata({DEAD_METADATA + name: value})
        if value:
            metadata |= encoded
    return metadata


def dead_facts(metadata: Mapping[str, str]) -> dict[str, str]:
    """What a dead letter's metadata says about the failure: error-type, error, attempts, died-at, worker, line."""
    decoded = decode_metadata(metadata)
    return {name.removeprefix(DEAD_METADATA): text for name, text in decoded.items() if name.startswith(DEAD_METADATA)}
