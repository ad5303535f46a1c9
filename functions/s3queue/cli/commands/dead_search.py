"""Search: dead letters by the text of their error and a field of their payload, within a bounded number of reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from s3queue.cli.session import Session
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.payload_fields import has_field
from s3queue.errors import QueueError
from s3queue.queue import Queue

#: Payloads that one search reads at most, as one of the dashboard does, and how many together.
MOST_READS = 400
PORTION = 50


@dataclass(slots=True)
class Search:
    """One search; empty texts select all."""

    session: Session
    queue: Queue
    error: str = ""
    field: str = ""
    value: str = ""
    reads: int = 0
    #: Payloads of which it cannot be told.
    unread: int = 0
    #: The last letter that was looked at, if there are more.
    stopped_at: str = ""

    @property
    def is_spent(self) -> bool:
        return self.reads >= MOST_READS

    def take(self, letters: Iterator[DeadLetter], limit: int | None) -> list[DeadLetter]:
        """Up to `limit` letters that match."""
        found: list[DeadLetter] = []
        last = ""
        while portion := list(islice(letters, PORTION)):
            for letter, is_it in self._look(portion):
                if len(found) == limit:
                    self.stopped_at = last
                    return found
                last = letter.path
                found += [letter] if is_it else []
            if self.is_spent and next(letters, None):
                self.stopped_at = last
                break
        return found

    def _look(self, portion: list[DeadLetter]) -> Iterator[tuple[DeadLetter, bool]]:
        wanted = [self.error.lower() in f"{letter.error_type}: {letter.error}".lower() for letter in portion]
        if not self.field:
            yield from zip(portion, wanted, strict=True)
            return
        read = [letter for letter, is_it in zip(portion, wanted, strict=True) if is_it]
        self.reads += len(read)
        has = {letter.path: has for letter, has in self.session.each("search", read, self._has)}
        self.unread += sum(one is None for one in has.values())
        for letter in portion:
            yield letter, bool(has.get(letter.path))

    def _has(self, letter: DeadLetter) -> bool | None:
        try:
            stored = self.queue.store.open(self.queue.keys.dead(letter.path))
            return has_field(letter.origin, stored, self.field, self.value) if stored else None
        except QueueError:
            return None
