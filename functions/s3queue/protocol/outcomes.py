"""Outcomes: writes the one record of a message, copies dead messages to `dead/`, and deletes finished ones.

Worker and sweeper finish a message by the same three steps, so that each can continue where the other crashed: the
record, then (if it died) the dead letter, then the deletion of message and lease, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import IO

from s3queue import paths as names
from s3queue.clock import Chance
from s3queue.documents.batch import Lines, empty_spool, read_lines, spooled
from s3queue.documents.dead_facts import dead_metadata, generation_mark, is_letter_of
from s3queue.documents.message import INLINE_BYTES, Generation
from s3queue.documents.record import Failure, Record
from s3queue.errors import AccessDenied, Conflict, CorruptState, InvalidRequest, NewerFormat, Unavailable
from s3queue.keys import Keys
from s3queue.store import (
    UNKNOWN_TRIES,
    Object,
    ObjectInfo,
    ObjectStore,
    delete_seen,
    delete_unique,
    open_state,
    put_surely,
)

NDJSON = "application/x-ndjson"
#: Longer lines are not held in memory when they are buried.
HELD_BYTES = INLINE_BYTES
#: The metadata of an empty letter that stands for a message which nobody can read.
UNREADABLE = "s3queue-unreadable"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The steps that finish a message of one queue."""

    store: ObjectStore
    keys: Keys
    chance: Chance
    #: Stores what a record has sent: done before that record is replaced by another generation's.  [P7]
    perform: Callable[[Record], None] = lambda record: None

    def read(self, path: str) -> Record | None:
        """The record of a path; None if there is none, or if it cannot be read.

        Raises:
            NewerFormat: a newer version wrote the record, and only that version can read it.
        """
        key = self.keys.record(path)
        found = open_state(self.store, key)
        return _readable(found) if found else None

    def write_record(
        self, record: Record, is_alive: Callable[[], bool], noticed: Callable[[datetime], None] | None = None
    ) -> Record:
        """Write the outcome unless there is one already; returns the one that counts.  [P1] [P3]

        The first writer of a generation wins. Another generation's record is replaced by whoever holds the lease, since
        nobody can have finished a newer one meanwhile, or whose message still lies there; a zombie leaves it alone.
        `noticed` is told when a record that is there already was written, before that is judged.

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
                found = open_state(self.store, key)
            if found is None:
                continue
            if noticed:
                noticed(found.modified_at)
            stored = _readable(found)
            if stored and stored.generation == record.generation:
                return stored
            if stored and _is_cancelled_meanwhile(stored, record):
                return stored
            if stored and not is_alive() and self._is_superseded(record):
                return stored
            if stored:
                self.perform(stored)
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
        *,
        keeps_letters: bool = True,
    ) -> tuple[Record, bool]:
        """Record a death and move the message to `dead/`; the caller holds a burying lease and clears afterwards.

        `check` raises once the lease is over. If the message was completed meanwhile, that record is kept.  [P3]
        The record that counts, and False if the message could not be read and must stay where it is.
        """
        is_moved = True
        written = self.write_record(record, is_alive)
        check()
        is_kept = keeps_letters and written.generation == record.generation
        if is_kept and (written.outcome == "dead" or written.dead_lines):
            is_moved = self.move_to_dead(written, message, lines)
            check()
        return written, is_moved

    def move_to_dead(self, record: Record, message: ObjectInfo, lines: Lines | None) -> bool:
        """Copy the message, or PUT the lines of a batch that did not complete; False if it cannot be read.

        Safe to repeat: a letter of this generation that is there already is left as it is.
        """
        try:
            if lines and (lines.done or lines.dead):
                self._move_lines(record, message, lines)
            else:
                found = self._write_letter(record.path, record.generation, lambda key: self._copy(record, message, key))
                if found and UNREADABLE in found.metadata:
                    return False  # it only stands for the message, which is all there is
        except AccessDenied as refused:
            self._stand_for(record, message, refused)
            return False
        return True

    def _write_letter(self, path: str, generation: Generation, write: Callable[[str], None]) -> ObjectInfo | None:
        """Let `write` create the letter of a generation at a free key, unless it is there already: then that one.

        What died before under the same name may still wait for a decision, and `a.ndjson.lines` may die while the lines
        of `a.ndjson` do: no letter is ever overwritten.  [P1]
        """
        key = letter = self.keys.dead(path)
        mark = generation_mark(generation)
        while (found := self._written(letter, write)) and not is_letter_of(found, generation):
            letter, mark = f"{key}~{mark}", self.chance.token()[: len(mark)]
        return found

    def _written(self, letter: str, write: Callable[[str], None]) -> ObjectInfo | None:
        """The letter that is there already; None if this one was written now."""
        for _ in range(UNKNOWN_TRIES):
            if found := self.store.head(letter):
                return found
            with suppress(Conflict):
                write(letter)
                return None
        raise Unavailable(f"dead letter not written: {letter}: refused, and nothing is there; try again")

    def _copy(self, record: Record, message: ObjectInfo, key: str) -> None:
        metadata = dead_metadata(message, record, record.failure)
        try:
            self._copy_as(record, message, key, metadata)
        except InvalidRequest:
            # The producer's own metadata or content type cannot be written again: the letter goes without it.
            bare = replace(message, metadata={}, content_type="")
            self._copy_as(record, bare, key, dead_metadata(bare, record, record.failure, dropped="all"))

    def _copy_as(self, record: Record, message: ObjectInfo, key: str, metadata: Mapping[str, str]) -> None:
        """Raises Conflict if another letter is there."""
        etag, described = record.generation.etag, message.content_type
        try:
            self.store.copy(message.key, key, if_match=etag, if_absent=True, metadata=metadata, content_type=described)
        except Conflict:
            now = self.store.head(message.key)
            if now and now.etag == etag:
                raise
            # The producer PUT the name again: that generation has an outcome of its own.

    def _move_lines(self, record: Record, message: ObjectInfo, lines: Lines) -> None:
        path = names.lines_path(record.path)
        self._write_letter(path, record.generation, lambda key: self._put_lines(record, message, lines, key))

    def _put_lines(self, record: Record, message: ObjectInfo, lines: Lines, key: str) -> None:
        """All lines that did not complete go into one object: one PUT, however many of them died."""
        try:
            found = self.store.open(self.keys.message(record.path), if_match=record.generation.etag)
        except Conflict:
            return
        if found is None:
            return
        from s3queue.documents.dead_lines import bury_line

        counts: Counter[str] = Counter()
        unfinished = record.failure or Failure("Error", "it did not complete")
        with spooled(found.stream) as batch, empty_spool() as letter:
            for number, line in read_lines(batch, HELD_BYTES):
                if number not in lines.done:
                    failure = lines.dead.get(number, unfinished)
                    counts[failure.type] += 1
                    bury_line(letter, number, failure, line, batch, died_before=names.is_lines(record.path))
            if not counts:
                return
            letter.seek(0)
            first = next(iter(lines.dead.values()), unfinished)
            metadata = dead_metadata(message, record, first, counts)
            try:
                self._put_new(key, letter, metadata, NDJSON)
            except InvalidRequest:
                letter.seek(0)
                metadata = dead_metadata(replace(message, metadata={}), record, first, counts, dropped="all")
                self._put_new(key, letter, metadata, NDJSON)

    def _stand_for(self, record: Record, message: ObjectInfo, refused: AccessDenied) -> None:
        """A message that nobody may read (archived, a foreign key) stays where it is; an empty letter stands for it."""
        bare = replace(message, metadata={}, content_type="")
        metadata = dead_metadata(bare, record, record.failure or Failure.of(refused), unreadable="true")
        self._write_letter(record.path, record.generation, lambda key: self._put_new(key, b"", metadata))

    def _put_new(self, key: str, body: bytes | IO[bytes], metadata: Mapping[str, str], content_type: str = "") -> None:
        self.store.put(key, body, if_absent=True, metadata=metadata, content_type=content_type, once=True)

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

    def bury_misnamed(self, path: str, reason: str, *, keeps_letters: bool = True) -> Record | None:
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
        if keeps_letters:
            self._write_letter(buried, generation, lambda key: self._copy(record, message, key))
        delete_seen(self.store, message.key, etag=message.etag, modified_at=message.modified_at)
        return record


def _is_cancelled_meanwhile(stored: Record, record: Record) -> bool:
    """Whether an operator cancelled equal bytes that were PUT while this message was at work: they are one message."""
    was, now = stored.generation, record.generation
    return stored.outcome == "cancelled" and was.etag == now.etag and was.put_at > now.put_at


def _readable(found: Object) -> Record | None:
    """The record; None if the bytes are not one, so that it may be replaced. A newer format raises, and is kept."""
    try:
        return Record.read(found)
    except NewerFormat:
        raise
    except CorruptState:
        return None
