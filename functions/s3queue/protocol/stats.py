"""Stats: counts, ages and rates of a queue, from LISTs only, and as the sweeper publishes them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from s3queue.documents.acknowledgements import Acknowledgements
from s3queue.documents.message import is_placeholder
from s3queue.encoding import NONSENSE, as_number, as_whole, cut, dump, format_instant, load, parse_instant
from s3queue.errors import CorruptState
from s3queue.keys import Keys
from s3queue.paths import due_of, is_lines, without_mark
from s3queue.store import ObjectInfo, ObjectStore, Page, listing

from .kinds import find_kinds

_log = logging.getLogger(__name__)
_COUNTED = ("leases", "messages", "delayed", "retries", "records", "dead")
#: Pages that one count reads at most, unless all are asked for; after that a count is a lower bound.
PAGES = 20
#: Larger objects are not read: a dozen numbers.
STATS_BYTES = 64 * 1024
#: Numbers that may be unknown.
_UNKNOWN = ("oldest_seconds", "newest_seconds", "finished_per_minute", "rescued", "busy_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A queue at one moment. Messages are counted as objects: a batch counts as one, however many lines it has."""

    #: May run now, and is not being processed.
    pending: int = 0
    #: In `delayed/`, and not due yet.
    delayed: int = 0
    processing: int = 0
    #: Failed at least once, and waits for its next attempt.
    failed: int = 0
    #: Records without a dead letter, until their retention is over: also of what was cancelled, or died without one.
    completed: int = 0
    #: Dead letters; each dead line of a batch counts.
    dead: int = 0
    #: Age of the oldest and the newest message that may run; None if there is none.
    oldest_seconds: float | None = None
    newest_seconds: float | None = None
    #: Records written within the last minute; None if the count stopped before it had seen all records.
    finished_per_minute: int | None = 0
    #: Messages that the sweeper handed to a worker in the last hour, because their event was lost, late or throttled;
    #: as far as that sweeper remembers. None: no sweeper has published it.
    rescued: int | None = None
    #: False: a count stopped at the page limit and is a lower bound.
    exact: bool = True
    #: Of the dead letters, those that an operator has acknowledged: they do not count for the verdict.
    acknowledged: int = 0
    #: Age of the oldest object that belongs to an unfinished message; None if there is none.
    busy_seconds: float | None = None
    at: datetime

    @property
    def total(self) -> int:
        """All messages that are not finished, and all finished ones that still have a record or a dead letter."""
        return self.pending + self.delayed + self.processing + self.failed + self.completed + self.dead

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"total": self.total, "at": format_instant(self.at)}

    def to_bytes(self, extra: Mapping[str, Any] | None = None) -> bytes:
        return dump(self.to_json() | dict(extra or {}))

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Stats:
        """Raises CorruptState, which names the key, if the bytes are not stats."""
        found = load(body, key)
        known: dict[str, Any] = {}
        try:
            for name in {field.name for field in fields(cls)} & found.keys():
                value = found[name]
                if name == "at":
                    known[name] = parse_instant(value)
                elif name == "exact":
                    known[name] = value is True
                elif value is None and name in _UNKNOWN:
                    known[name] = None
                else:
                    known[name] = as_number(value) if name.endswith("_seconds") else as_whole(value)
            return cls(**known)
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a stats document: {cut(error)}") from None


@dataclass(slots=True)
class Counter:
    """Adds up what LISTs of messages and leases show; both the sweeper and `measure` count with it."""

    keys: Keys
    now: datetime
    unleased: int = 0
    delayed: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    #: Since when there is work: of a message that is processed or delayed, too.
    busy_since: datetime | None = None
    #: When the first of all messages that may run was PUT or due, also of those that have a lease.
    first_at: datetime | None = None

    def add(self, messages: Iterable[ObjectInfo], leased: set[str]) -> None:
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
            if since > self.now and due_at:
                self.delayed += 1
                continue
            self.unleased += 1
            self.oldest = min(self.oldest or since, since)
            self.newest = max(self.newest or since, since)

    def age(self, since: datetime | None) -> float | None:
        return max(timedelta(), self.now - since).total_seconds() if since else None


def measure(store: ObjectStore, keys: Keys, *, pages: int | None = PAGES) -> Stats:
    """Count a queue now: one LIST for the kinds of objects, then one per 1,000 objects, at most `pages` per kind.

    How many leases wait for a retry is taken from the reminders, not from the leases: for some seconds it can be wrong.
    """
    root, kinds = find_kinds(store, keys, _COUNTED)
    counts: dict[str, int] = {}
    leased: set[str] = set()
    counter = Counter(keys, root.at)

    def records_at(entry: ObjectInfo) -> int:
        return keys.records_at(entry.key)

    exact = True
    recent: int | None = 0
    recorded_dead = acknowledged = 0
    seen = _acknowledgements(store, keys, root) if "dead" in kinds else Acknowledgements()
    for kind in _COUNTED:
        counts[kind] = 0
        if kind not in kinds:
            continue
        last = None
        for page in listing(store, keys.prefix(kind), pages=pages):
            last = page
            counts[kind] += sum(map(records_at, page.objects)) if kind == "records" else len(page.objects)
            if kind == "leases":
                leased.update(path for entry in page.objects if (path := keys.path_under(kind, entry.key)))
            elif kind in ("messages", "delayed"):
                counter.add(page.objects, leased)
            elif kind == "dead":
                recorded_dead += sum(not is_lines(without_mark(entry.key)) for entry in page.objects)
                paths = ((keys.path_under(kind, entry.key), entry.modified_at) for entry in page.objects)
                acknowledged += sum(seen.covers(path, written_at) for path, written_at in paths if path)
            elif kind == "records":
                minute = timedelta(minutes=1)
                written = (records_at(entry) for entry in page.objects if page.at - entry.modified_at <= minute)
                recent = (recent or 0) + sum(written)
        if last and last.next_after is not None:
            exact = False
            recent = None if kind == "records" else recent
    failed = min(counts["retries"], counts["leases"])
    return Stats(
        pending=counter.unleased,
        delayed=counter.delayed,
        processing=counts["leases"] - failed,
        failed=failed,
        completed=max(0, counts["records"] - recorded_dead),
        dead=counts["dead"],
        oldest_seconds=counter.age(counter.oldest),
        newest_seconds=counter.age(counter.newest),
        finished_per_minute=recent,
        exact=exact,
        acknowledged=acknowledged,
        busy_seconds=counter.age(counter.busy_since),
        at=root.at,
    )


def _acknowledgements(store: ObjectStore, keys: Keys, root: Page) -> Acknowledgements:
    """What operators have acknowledged. One GET, if the LIST of the root shows that there is something to read.

    What cannot be read hides no letter: then all of them count.
    """
    is_there = root.next_after is not None or any(entry.key == keys.acknowledged for entry in root.objects)
    found = store.open(keys.acknowledged) if is_there else None
    try:
        return Acknowledgements.read(found) if found else Acknowledgements()
    except CorruptState as error:
        _log.warning("acknowledgements not read, all dead letters count: %s", error)
        return Acknowledgements()


def published_stats(store: ObjectStore, keys: Keys) -> Stats | None:
    """See `Queue.published_stats`."""
    found = store.open(keys.stats)
    try:
        return Stats.from_bytes(found.read(STATS_BYTES), found.key) if found else None
    except CorruptState:
        return None
