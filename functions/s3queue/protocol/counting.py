"""Counting: adds up messages from what LISTs show. A batch counts as its lines, as far as its name tells.

What a name cannot tell is read within a bound: how many lines of a batch a dead letter holds, and whether a lease that
nobody writes waits for its next attempt. Beyond the bound, and where nobody can tell, an object counts as one message,
and `at_least` names the count that is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from s3queue.documents.acknowledgements import Acknowledgements
from s3queue.documents.message import is_placeholder
from s3queue.errors import CorruptState
from s3queue.keys import Keys
from s3queue.paths import LINES, due_of, is_batch, is_lines, is_partition, lines_of, without_mark
from s3queue.store import ObjectInfo, ObjectStore, Page, look_at, open_state

#: Letters with dead lines of a batch that one count reads, a HEAD each.
LETTERS_READ = 10
#: Leases without a reminder that one count reads, a GET each, the oldest first.
LEASES_READ = 10
_MINUTE = timedelta(minutes=1)


def lines_at(path: str) -> int:
    """The messages at a path, or one if its name does not tell."""
    return lines_of(path) or 1


@dataclass(slots=True)
class Counter:
    """Adds up what LISTs of messages and leases show; both the sweeper and `measure` count with it."""

    keys: Keys
    now: datetime
    #: Messages: of a batch, its lines.
    unleased: int = 0
    delayed: int = 0
    objects: int = 0
    #: Which of the two are lower bounds.
    at_least: set[str] = field(default_factory=set)
    oldest: datetime | None = None
    newest: datetime | None = None
    #: Since when there is work: of a message that is processed or delayed, too.
    busy_since: datetime | None = None
    #: When the first of all messages that may run was PUT or due, also of those that have a lease.
    first_at: datetime | None = None

    def add(self, messages: Iterable[ObjectInfo], leased: Set[str]) -> None:
        for message in messages:
            path = self.keys.path(message.key)
            if path is None or is_placeholder(message):
                continue
            self.busy_since = min(self.busy_since or message.modified_at, message.modified_at)
            due_at = due_of(path)
            # The age of a delayed message counts from its due time, not from its PUT: it was asked to wait.
            since = due_at or message.modified_at
            self.first_at = min(self.first_at or since, since)
            if path in leased:
                continue
            lines = lines_of(path)
            self.objects += 1
            is_delayed = bool(due_at and since > self.now)
            if lines is None:
                self.at_least.add("delayed" if is_delayed else "pending")
            if is_delayed:
                self.delayed += lines or 1
                continue
            self.unleased += lines or 1
            self.oldest = min(self.oldest or since, since)
            self.newest = max(self.newest or since, since)

    def age(self, since: datetime | None) -> float | None:
        return max(timedelta(), self.now - since).total_seconds() if since else None


@dataclass(slots=True)
class CountedLeases:
    """Leases, and which of them wait for their next attempt."""

    store: ObjectStore
    keys: Keys
    #: Not all of them, or not all of the reminders, were listed.
    is_cut: bool = False
    at_least: set[str] = field(default_factory=set)
    #: Path → when S3 stored its lease.
    _written: dict[str, datetime] = field(default_factory=dict)
    _reminded: set[str] = field(default_factory=set)

    @property
    def paths(self) -> Set[str]:
        return self._written.keys()

    @property
    def messages(self) -> int:
        return sum(map(lines_at, self._written))

    def add(self, page: Page) -> None:
        for entry in page.objects:
            self._written[self.keys.path_under("leases", entry.key) or entry.key] = entry.modified_at

    def remind(self, page: Page) -> None:
        found = (self.keys.reminded(entry.key) for entry in page.objects)
        self._reminded |= {reminded[1] for reminded in found if reminded}

    def waiting(self, now: datetime) -> int:
        """How many messages wait: those with a reminder, and those whose reminder is gone and that nobody has taken."""
        waits = self._reminded if self.is_cut else self._reminded & self._written.keys()
        if not self.is_cut:
            waits = waits | self._forgotten(now)
        for path in self._written:
            if lines_of(path) is None:
                self.at_least.add("failed" if path in waits else "processing")
        return min(self.messages, sum(map(lines_at, waits)))

    def _forgotten(self, now: datetime) -> set[str]:
        """A sweep has handed them over, and no worker has come: as if they were processed, for hours.

        If all that are read wait, so do the others, most likely.
        """
        old = [
            path
            for path, written_at in sorted(self._written.items(), key=lambda one: one[1])
            if now - written_at > _MINUTE and path not in self._reminded and not is_partition(path)
        ]
        waits = {path for path in old[:LEASES_READ] if self._waits(path)}
        return {*old} if len(waits) == LEASES_READ else waits

    def _waits(self, path: str) -> bool:
        from s3queue.documents.lease import Lease

        found = open_state(self.store, self.keys.lease(path))
        try:
            return found is not None and Lease.read(found).state == "waiting"
        except CorruptState:
            return False


@dataclass(slots=True)
class CountedLetters:
    """Dead letters: each is one message, or several dead lines of a batch."""

    store: ObjectStore
    keys: Keys
    messages: int = 0
    objects: int = 0
    acknowledged: int = 0
    #: How many of the outcomes that the counted records hold these are, and of how many objects.
    recorded: int = 0
    recorded_objects: int = 0
    at_least: set[str] = field(default_factory=set)
    _read: int = 0

    def add(self, page: Page, seen: Acknowledgements, records: CountedRecords) -> None:
        for entry in page.objects:
            path = self.keys.path_under("dead", entry.key)
            lines = self.lines(entry)
            self.messages += lines
            self.objects += 1
            self.acknowledged += lines if path and seen.covers(path, entry.modified_at) else 0
            if not records.may_have(entry.modified_at):
                continue
            origin = without_mark(entry.key)
            if not is_lines(origin):
                self.recorded += 1
                self.recorded_objects += 1
            elif lines_of(origin.removesuffix(LINES)) is not None:
                # Its batch's record counts as all its lines, the dead ones among them.
                self.recorded += lines

    def lines(self, entry: ObjectInfo) -> int:
        """How many messages a letter holds; 1 if it is not known."""
        if not is_lines(without_mark(entry.key)):
            return 1
        # Here: whoever counts without letters of batches need not load it.
        from s3queue.documents.dead_letter import DeadLetter

        found = None
        if self._read < LETTERS_READ:
            self._read += 1
            info = look_at(self.store, entry.key)
            found = DeadLetter.of(entry.key, info).lines if info else 1
        if not found:
            self.at_least.add("dead")
        return found or 1


@dataclass(slots=True)
class CountedRecords:
    """Records: the outcomes of one message, of the lines of a batch, or of some messages of a partition."""

    keys: Keys
    outcomes: int = 0
    #: A batch is one; a message of a partition is one, too.
    objects: int = 0
    #: Of these, the messages of partitions; and the journals that hold their outcomes.
    journaled: int = 0
    journals: int = 0
    #: Outcomes of the last minute.
    recent: int = 0
    is_cut: bool = False
    at_least: set[str] = field(default_factory=set)
    _oldest: datetime | None = None

    def add(self, page: Page) -> None:
        for entry in page.objects:
            self._oldest = min(self._oldest or entry.modified_at, entry.modified_at)
            many = self.keys.records_at(entry.key)
            self.outcomes += many
            objects = 1 if is_batch(entry.key) else many
            self.objects += objects
            if self.keys.path_under("records", entry.key) is None:
                self.journaled += objects
                self.journals += 1
            self.recent += many if page.at - entry.modified_at <= _MINUTE else 0
            if lines_of(entry.key) is None:
                self.at_least.add("completed")

    def may_have(self, died_at: datetime) -> bool:
        """Whether the outcome of a letter that was written then can be one of these: records expire by their age, and
        letters later. A record is written before its letter, a journal after those of its commit.
        """
        return self._oldest is not None and died_at >= self._oldest - _MINUTE
