"""DeadLetters: messages that could not be processed, why, and how to replay them (`aws s3 mv` works too)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from s3queue.clock import as_duration
from s3queue.documents.message import INLINE_BYTES
from s3queue.documents.record import Record
from s3queue.encoding import format_instant, parse_instant
from s3queue.errors import Conflict, MessageNotFound, QueueError, Unavailable
from s3queue.keys import line_of, name_of
from s3queue.store import UNKNOWN_TRIES, ObjectInfo, listing

from .access import QueueAccess
from .outcomes import DEAD_METADATA, Outcomes, dead_facts

#: HEADs that run at the same time: a letter's error is in its metadata, which a LIST does not show.
READERS = 16
#: The answer to a HEAD counts for this long.
HEAD_VALID_SECONDS = 1.0
#: HEADs that are asked for before the first result is used.
PORTION = 4 * READERS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that died, and its last error."""

    path: str
    size: int
    died_at: datetime
    error_type: str
    error: str
    attempts: int
    worker: str = ""
    #: The line of the batch that it came from, counted from 1; 0 if it was a single message.
    line: int = 0
    enqueued_at: datetime | None = None
    #: The ETag, for conditional deletes.
    etag: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "size": self.size,
            "died_at": format_instant(self.died_at),
            "error_type": self.error_type,
            "error": self.error,
            "attempts": self.attempts,
            "worker": self.worker,
            "line": self.line,
            "enqueued_at": format_instant(self.enqueued_at) if self.enqueued_at else None,
        }


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
                        if letter and (error_type is None or letter.error_type == error_type):
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
        origin = line_of(path)
        outcomes = Outcomes(self.queue.store, self.queue.keys, self.queue.chance)
        return letter, body, outcomes.read(path) or (outcomes.read(origin[0]) if origin else None)

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
        return dict(Counter(letter.error_type for letter in self.list()).most_common())

    def metrics(self) -> dict[str, Any]:
        """How many there are, the ages of the oldest and the newest in seconds, and the counts by error type."""
        letters = list(self.list())
        now = self.queue.store.list(self.queue.keys.prefix("dead"), limit=1).at
        ages = [(now - letter.died_at).total_seconds() for letter in letters]
        return {
            "count": len(letters),
            "oldest_seconds": max(ages, default=None),
            "newest_seconds": min(ages, default=None),
            "by_error_type": dict(Counter(letter.error_type for letter in letters).most_common()),
        }

    def replay(self, path: str) -> str:
        """Put a dead letter back as a message that has all its attempts again; returns the message's path.

        It is copied first and deleted then: a crash in between leaves both, and replaying again is safe.

        Raises:
            MessageNotFound: no dead letter has this path.
            Conflict: a message with that name exists already; let it finish, or delete one of the two.
        """
        store, keys = self.queue.store, self.queue.keys
        source, target = keys.dead(path), f"messages/{name_of(path)}"
        found = store.open(source)
        if found is None:
            raise self._missing(path)
        metadata = {name: text for name, text in found.metadata.items() if not name.lower().startswith(DEAD_METADATA)}
        taken = f"{self.queue.name}/{target} exists already; let it finish, or delete one of the two"
        if found.size <= INLINE_BYTES:
            try:
                store.put(
                    keys.message(target),
                    found.read(),
                    if_absent=True,
                    metadata=metadata,
                    content_type=found.content_type,
                )
            except Conflict as conflict:
                raise Conflict(taken) from conflict
        else:
            found.stream.close()
            if store.head(keys.message(target)):
                raise Conflict(taken)
            store.copy(
                source, keys.message(target), if_match=found.etag, metadata=metadata, content_type=found.content_type
            )
        self._drop(found)
        self.queue.events.emit("message.enqueued", queue=self.queue.name, path=target, size=found.size, replayed=True)
        return target

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
        return bool(found and now == letter and self._drop(found))

    def replay_many(self, paths: Iterable[str]) -> dict[str, str]:
        """Replay each; path → the new message's path, or, if it failed, the error's name and text."""
        done: dict[str, str] = {}
        for path in paths:
            try:
                done[path] = self.replay(path)
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
        return self.replay_many([letter.path for letter in selected])

    def delete(self, path: str) -> None:
        """Delete one dead letter for good; its record stays.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        found = self.queue.store.head(self.queue.keys.dead(path))
        if found is None:
            raise self._missing(path)
        self._drop(found)

    def purge(self, *, error_type: str | None = None, older_than: float | timedelta | None = None) -> int:
        """Delete the letters that the filter selects for good; returns how many."""
        letters = list(self.list(error_type=error_type, older_than=older_than))
        return sum(self.discard(letter) for letter in letters)

    def _letter(self, info: ObjectInfo) -> DeadLetter | None:
        path = self.queue.keys.path_under("dead", info.key)
        if path is None:
            return None
        facts = dead_facts(info.metadata)
        return DeadLetter(
            path=path,
            size=info.size,
            died_at=_instant(facts.get("died-at")) or info.modified_at,
            error_type=facts.get("error-type", "unknown"),
            error=facts.get("error", ""),
            attempts=int(facts["attempts"]) if facts.get("attempts", "").isdigit() else 0,
            worker=facts.get("worker", ""),
            line=int(facts["line"]) if facts.get("line", "").isdigit() else 0,
            enqueued_at=_instant(facts.get("enqueued-at")),
            etag=info.etag,
        )

    def _missing(self, path: str) -> MessageNotFound:
        return MessageNotFound(f"no such dead letter: {self.queue.name}/{path}; `s3queue dead list` shows all of them")


def _is_within(age: timedelta, older_than: float | timedelta | None, newer_than: float | timedelta | None) -> bool:
    return (older_than is None or age >= as_duration(older_than)) and (
        newer_than is None or age <= as_duration(newer_than)
    )


def _instant(text: str | None) -> datetime | None:
    try:
        return parse_instant(text) if text else None
    except ValueError:
        return None
