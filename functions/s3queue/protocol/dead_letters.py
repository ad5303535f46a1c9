"""DeadLetters: messages that could not be processed, why, and how to replay them (`aws s3 mv` works too)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from s3queue.clock import as_duration
from s3queue.documents.dead_letter import DEAD_METADATA, DeadLetter, DeadLine, count_by_error_type, dead_lines
from s3queue.documents.message import INLINE_BYTES
from s3queue.documents.record import Record
from s3queue.encoding import encode_metadata
from s3queue.errors import Conflict, MessageNotFound, QueueError, Unavailable
from s3queue.keys import LINES, is_lines, name_of, without_mark
from s3queue.store import UNKNOWN_TRIES, Object, ObjectInfo, delete_seen, delete_unique, listing

from .access import QueueAccess
from .outcomes import Outcomes

#: HEADs that run at the same time: a letter's error is in its metadata, which a LIST does not show.
READERS = 16
#: The answer to a HEAD counts for this long.
HEAD_VALID_SECONDS = 1.0
#: HEADs that are asked for before the first result is used.
PORTION = 4 * READERS


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one queue."""

    queue: QueueAccess

    def list(
        self,
        *,
        error_type: str | None = None,
        older_than: float | timedelta | None = None,
        newer_than: float | timedelta | None = None,
        after: str = "",
    ) -> Iterator[DeadLetter]:
        """Dead letters in the order of their paths, starting after `after`; one HEAD each, page by page."""
        keys, store = self.queue.keys, self.queue.store
        start = keys.dead(after) if after else ""
        with ThreadPoolExecutor(READERS) as readers:
            for page in listing(store, keys.prefix("dead"), after=start):
                wanted = [
                    entry for entry in page.objects if _is_within(page.at - entry.modified_at, older_than, newer_than)
                ]
                # In portions: a caller who takes only the first few should not pay for a thousand.
                for first in range(0, len(wanted), PORTION):
                    for info in readers.map(lambda entry: store.head(entry.key), wanted[first : first + PORTION]):
                        letter = self._letter(info) if info else None
                        if letter and (error_type is None or error_type in letter.counts):
                            yield letter

    def get(self, path: str) -> tuple[DeadLetter, bytes, Record | None]:
        """A dead letter, its payload, and its record: for a line, that of the batch; None once its retention is over.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        found = self.queue.store.open(self.queue.keys.dead(path))
        letter = self._letter(found) if found else None
        if found is None or letter is None:
            raise self._missing(path)
        body = found.read()
        return letter, body, self.record(path)

    def record(self, path: str) -> Record | None:
        """The record of what died, for the dead lines of a batch that of the batch; None once its retention is over."""
        outcomes = Outcomes(self.queue.store, self.queue.keys, self.queue.chance)
        origin = without_mark(path)
        found = outcomes.read(origin)
        return outcomes.read(origin.removesuffix(LINES)) if found is None and is_lines(origin) else found

    def lines(self, path: str) -> Sequence[DeadLine]:
        """The dead lines of a batch, with their numbers and errors; none if the letter is a whole message.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        found = self.queue.store.open(self.queue.keys.dead(path))
        if found is None:
            raise self._missing(path)
        return dead_lines(found.stream) if is_lines(without_mark(path)) else []

    def describe(self, path: str) -> DeadLetter:
        """A dead letter without its payload, which may be large. One HEAD.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        found = self.queue.store.head(self.queue.keys.dead(path))
        letter = self._letter(found) if found else None
        if letter is None:
            raise self._missing(path)
        return letter

    def by_error_type(self) -> dict[str, int]:
        """How many died of which error, most frequent first."""
        return count_by_error_type(self.list())

    def metrics(self) -> dict[str, Any]:
        """How many there are, the ages of the oldest and the newest in seconds, and the counts by error type."""
        letters = list(self.list())
        now = self.queue.store.list(self.queue.keys.prefix("dead"), limit=1).at
        # A death is dated by the worker's idea of S3's time, which may be a little ahead of the LIST's whole second.
        ages = [max(0.0, (now - letter.died_at).total_seconds()) for letter in letters]
        return {
            "count": sum(sum(letter.counts.values()) for letter in letters),
            "oldest_seconds": max(ages, default=None),
            "newest_seconds": min(ages, default=None),
            "by_error_type": count_by_error_type(letters),
        }

    def replay(self, path: str, *, error_type: str | None = None) -> str:
        """Put a dead letter back as a message that has all its attempts again; returns the message's path.

        Copied first and deleted then: a crash in between leaves both, and replaying again is safe. What was replayed
        before and has completed since is not run again: only its letter is deleted. Of a batch's dead lines,
        `error_type` replays those with that error; the others stay.

        Raises:
            MessageNotFound: no dead letter has this path.
            Conflict: a message of that name is there already; let it finish, or delete one of the two.
            Unreadable: the message still cannot be read where it lies.
            Unavailable: unknown whether it was replayed; calling again is safe.
        """
        found = self.queue.store.open(self.queue.keys.dead(path))
        if found is None:
            raise self._missing(path)
        letter = DeadLetter.of(path, found)
        if error_type is not None and letter.lines and letter.counts.keys() - {error_type}:
            return self._replay_lines(path, found, error_type)
        target = f"messages/{name_of(without_mark(path))}"
        if letter.is_unreadable:
            found.stream.close()
            return self._replay_in_place(without_mark(path), found)
        metadata = {name: text for name, text in found.metadata.items() if not name.lower().startswith(DEAD_METADATA)}
        if self._is_finished_since(target, found):
            found.stream.close()
        elif found.size <= INLINE_BYTES:
            self._put(target, found.read(), metadata, found.content_type)
        else:
            found.stream.close()
            self._copy(found, target, metadata)
        self._drop(found)
        self.queue.events.emit("message.enqueued", queue=self.queue.name, path=target, size=found.size, replayed=True)
        return target

    def _put(self, target: str, body: bytes, metadata: Mapping[str, str], kind: str) -> None:
        key = self.queue.keys.message(target)
        try:
            self.queue.store.put(key, body, if_absent=True, metadata=metadata, content_type=kind, once=True)
        except Conflict as conflict:
            raise self._taken(target) from conflict

    def _copy(self, letter: ObjectInfo, target: str, metadata: Mapping[str, str]) -> None:
        store, key = self.queue.store, self.queue.keys.message(target)
        if store.head(key):
            raise self._taken(target)
        store.copy(letter.key, key, if_match=letter.etag, metadata=metadata, content_type=letter.content_type)

    def _is_finished_since(self, target: str, letter: ObjectInfo) -> bool:
        """Whether these bytes were replayed before and completed: PUT strictly after they had died.

        Within one second S3 cannot tell a replay from the death before it; then replaying once more loses nothing.
        """
        outcomes = Outcomes(self.queue.store, self.queue.keys, self.queue.chance)
        record = outcomes.read(target)
        if record is None or record.outcome != "completed" or record.dead_lines:
            return False
        return record.generation.etag == letter.etag and record.generation.put_at > letter.modified_at

    def _replay_in_place(self, path: str, letter: ObjectInfo) -> str:
        """A message that could not be read lies where it was PUT: COPY it onto itself, which makes it a new one."""
        store, key = self.queue.store, self.queue.keys.message(path)
        message = store.head(key)
        if message:
            store.copy(key, key, if_match=message.etag, metadata=message.metadata, content_type=message.content_type)
            self._free(path)
        self._drop(letter)
        if message is None:
            raise self._missing(path)
        return path

    def _free(self, path: str) -> None:
        """Delete the lease that kept workers off an unreadable message."""
        held = self.queue.read_lease(path)
        if held and held.lease.state == "waiting":
            delete_unique(self.queue.store, held.key, if_match=held.etag)

    def _replay_lines(self, path: str, letter: Object, error_type: str) -> str:
        """Those lines of a batch that died of one error, as a batch of their own; the letter keeps the others."""
        lines = dead_lines(letter.stream)
        chosen = [line for line in lines if line.failure.type == error_type]
        stem = without_mark(path).removesuffix(LINES).removesuffix(".ndjson")
        # The same letter and choice give the same name: whoever repeats it after a crash makes no second batch.
        mark = hashlib.sha256(f"{letter.etag} {error_type}".encode()).hexdigest()[:12]
        target = f"messages/{name_of(stem)}-{mark}.ndjson"
        body = b"".join(line.body + b"\n" for line in chosen)
        outcomes = Outcomes(self.queue.store, self.queue.keys, self.queue.chance)
        if outcomes.read(target) is None:
            with suppress(Conflict):
                self._put(target, body, {}, "application/x-ndjson")
        self._keep(letter, [line for line in lines if line.failure.type != error_type])
        return target

    def _keep(self, letter: ObjectInfo, lines: Sequence[DeadLine]) -> None:
        """Write the letter anew with fewer lines.

        Raises:
            Conflict: it was changed since it was read.
        """
        if not lines:
            self._drop(letter)
            return
        counts = Counter(line.failure.type for line in lines)
        facts = {"lines": str(len(lines)), "error-types": json.dumps(dict(counts.most_common()))}
        facts |= {"error-type": lines[0].failure.type, "error": lines[0].failure.message[:200]}
        metadata = dict(letter.metadata) | encode_metadata({DEAD_METADATA + name: text for name, text in facts.items()})
        body = b"".join(line.to_bytes() for line in lines)
        store = self.queue.store
        store.put(
            letter.key, body, if_match=letter.etag, metadata=metadata, content_type=letter.content_type, once=True
        )

    def _taken(self, target: str) -> Conflict:
        return Conflict(f"{self.queue.name}/{target} exists already: let it finish, or delete one of the two")

    def _drop(self, letter: ObjectInfo) -> bool:
        """Delete the letter that was read; False if it is gone, or the message has died again: same ETag.  [P1]

        HEAD and DELETE are two requests. If the HEAD took too long, it is repeated; after several tries the letter is
        kept.
        """
        store, clock = self.queue.store, self.queue.clock
        unknown: Unavailable | None = None
        for _ in range(UNKNOWN_TRIES):
            before = clock.monotonic()
            found = store.head(letter.key)
            if found is None or (found.modified_at, found.metadata) != (letter.modified_at, letter.metadata):
                return found is None and unknown is not None
            if clock.monotonic() - before >= HEAD_VALID_SECONDS:
                continue
            try:
                store.delete(letter.key, if_match=letter.etag)
                return True
            except Conflict:
                return False
            except Unavailable as error:
                unknown = error
        if unknown:
            raise unknown
        return False

    def discard(self, letter: DeadLetter) -> bool:
        """Delete a letter that was listed; False if it is gone, or the message has died again since."""
        found = self.queue.store.head(self.queue.keys.dead(letter.path))
        now = self._letter(found) if found else None
        if found is None or now != letter:
            return False
        if letter.is_unreadable:
            self._delete_in_place(without_mark(letter.path))
        return self._drop(found)

    def _delete_in_place(self, path: str) -> None:
        """An unreadable message lies where it was PUT, and goes with its letter: the message first, then its lease."""
        key = self.queue.keys.message(path)
        message = next((entry for entry in self.queue.store.list(key, limit=1).objects if entry.key == key), None)
        if message:
            delete_seen(self.queue.store, key, etag=message.etag, modified_at=message.modified_at)
        self._free(path)

    def replay_many(self, paths: Iterable[str], *, error_type: str | None = None) -> dict[str, str]:
        """Replay each; path → the new message's path, or, if it failed, the error's name and text."""
        done: dict[str, str] = {}
        for path in paths:
            try:
                done[path] = self.replay(path, error_type=error_type)
            except QueueError as error:
                done[path] = f"{type(error).__name__}: {error}"
        return done

    def replay_all(
        self,
        *,
        error_type: str | None = None,
        older_than: float | timedelta | None = None,
        newer_than: float | timedelta | None = None,
    ) -> dict[str, str]:
        """Replay the letters that the filter selects; see `list` and `replay_many`."""
        selected = self.list(error_type=error_type, older_than=older_than, newer_than=newer_than)
        return self.replay_many([letter.path for letter in selected], error_type=error_type)

    def delete(self, path: str) -> None:
        """Delete one dead letter for good; its record stays.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        self.discard(self.describe(path))

    def purge(self, *, error_type: str | None = None, older_than: float | timedelta | None = None) -> int:
        """Delete the letters that the filter selects for good; returns how many."""
        deleted = 0
        for letter in list(self.list(error_type=error_type, older_than=older_than)):
            if error_type is not None and letter.lines and letter.counts.keys() - {error_type}:
                deleted += self._discard_lines(letter, error_type)
            else:
                deleted += self.discard(letter)
        return deleted

    def _discard_lines(self, letter: DeadLetter, error_type: str) -> bool:
        """Delete the lines of a letter that died of one error; False if the letter was changed since it was listed."""
        found = self.queue.store.open(self.queue.keys.dead(letter.path))
        if found is None or found.etag != letter.etag:
            return False
        with suppress(Conflict):
            self._keep(found, [line for line in dead_lines(found.stream) if line.failure.type != error_type])
            return True
        return False

    def _letter(self, info: ObjectInfo) -> DeadLetter | None:
        path = self.queue.keys.path_under("dead", info.key)
        if path is None:
            return None
        return DeadLetter.of(path, info)

    def _missing(self, path: str) -> MessageNotFound:
        return MessageNotFound(f"no such dead letter: {self.queue.name}/{path}; `s3queue dead list` shows all of them")


def _is_within(age: timedelta, older_than: float | timedelta | None, newer_than: float | timedelta | None) -> bool:
    return (older_than is None or age >= as_duration(older_than)) and (
        newer_than is None or age <= as_duration(newer_than)
    )
