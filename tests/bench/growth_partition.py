"""Growth, in a partition: what the state of one message costs after so many others have ended there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any

from s3queue.documents.message import Generation
from s3queue.documents.partition import journal_bytes
from s3queue.documents.record import Record
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import Object, ObjectInfo, Page
from s3queue.stores.memory import MemoryStore
from support.counting_store import CountingStore
from support.manual_clock import ManualClock

QUEUE, PARTITION = "orders", "@=0"
PER_JOURNAL = 100
#: Between two commits.
SECONDS = 1.0


class EndlessJournals(MemoryStore):
    """A bucket with the journals of a partition, which are made when they are asked for."""

    def __init__(self, journals: int, clock: ManualClock) -> None:
        super().__init__("journals", clock=clock)
        self._began_at = clock.now()
        self._journals = journals
        self._prefix = f"{QUEUE}/records/{PARTITION}/"
        self._keys = [self._prefix + f"{_name(self._at(number), 0)}-{PER_JOURNAL}.json" for number in range(journals)]

    def path(self, journal: int, place: int = 0) -> str:
        """A message that ended in this journal, named a second before that."""
        return f"messages/{PARTITION}/{_name(self._at(journal) - timedelta(seconds=1), place)}"

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        if not key.startswith(self._prefix):
            return super().open(key, if_match=if_match)
        number = self._keys.index(key)
        at = self._at(number)
        generation = Generation(etag="e", put_at=at - timedelta(seconds=1))
        body = journal_bytes(
            tuple(
                Record(path=self.path(number, place), outcome="completed", generation=generation, finished_at=at)
                for place in range(PER_JOURNAL)
            )
        )
        return Object(**self._described(number), stream=BytesIO(body))

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        if not prefix.startswith(self._prefix):
            return super().list(prefix, after=after, delimiter=delimiter, limit=limit)
        first = next((number for number, key in enumerate(self._keys) if key > after), self._journals)
        numbers = range(first, min(first + limit, self._journals))
        objects = tuple(ObjectInfo(**self._described(number)) for number in numbers)
        goes_on = first + limit < self._journals
        return Page(objects, (), objects[-1].key if goes_on else None, self._date())

    def _at(self, number: int) -> datetime:
        return self._began_at + timedelta(seconds=SECONDS * number)

    def _described(self, number: int) -> dict[str, Any]:
        at = self._at(number).replace(microsecond=0)
        return {"key": self._keys[number], "etag": "e", "size": 1, "modified_at": at, "at": self._date()}


def _name(at: datetime, place: int) -> str:
    """As the library makes names: in the order of time."""
    digits = f"{int(at.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}-7{place:03x}-8000-{place:012x}"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition in which so many messages have ended, a hundred to a journal."""

    size: int
    store: CountingStore
    queue: Queue
    journals: EndlessJournals

    @classmethod
    def of(cls, size: int) -> Partition:
        clock = ManualClock()
        journals = EndlessJournals(size // PER_JOURNAL, clock)
        clock.advance(SECONDS * size / PER_JOURNAL)
        store = CountingStore(journals)
        settings = QueueSettings.of(partitions=1)
        return cls(size, store, Queue(store=store, name=QUEUE, settings=settings, clock=clock), journals)

    def operations(self) -> dict[str, Callable[[], Any]]:
        last = self.size // PER_JOURNAL - 1
        return {
            "status in a partition, ended last": lambda: self._ask(last),
            "status in a partition, 1,000 ended since": lambda: self._ask(last - 10),
        }

    def _ask(self, journal: int) -> None:
        assert self.queue.status(self.journals.path(journal)).state == "completed"
