"""Stats: counts, ages and rates of a queue, from LISTs and a few reads, and as the sweeper publishes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from s3queue.documents.acknowledgements import Acknowledgements
from s3queue.encoding import (
    NONSENSE,
    as_list,
    as_number,
    as_text,
    as_whole,
    cut,
    dump,
    format_instant,
    load,
    parse_instant,
)
from s3queue.errors import CorruptState
from s3queue.keys import Keys
from s3queue.store import ObjectStore, Page, listing, open_state

from .counting import CountedLeases, CountedLetters, CountedRecords, Counter
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
    """A queue at one moment. A batch counts as its lines, which the library's names of batches tell.

    A batch that somebody else has named counts as one, and so do dead lines that were replayed and letters beyond those
    that are read: then `at_least` names the counts that are lower bounds.
    """

    #: May run now, and is not being processed.
    pending: int = 0
    #: In `delayed/`, and not due yet.
    delayed: int = 0
    processing: int = 0
    #: Failed at least once, and waits for its next attempt.
    failed: int = 0
    #: Outcomes on record that have no dead letter, until the retention of records is over: also of what was cancelled,
    #: or died without a letter.
    completed: int = 0
    #: Dead messages; each dead line of a batch counts.
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
    #: Counts that are lower bounds, because it is not known how many lines a batch has: `pending`, `dead`, ….
    at_least: tuple[str, ...] = ()
    #: Objects: what requests are paid for. Pending and delayed; processing and failed; completed and dead.
    pending_objects: int = 0
    processing_objects: int = 0
    finished_objects: int = 0
    #: Of the finished ones, messages of partitions, whose outcomes share a journal; and how many journals there are.
    journaled_objects: int = 0
    journals: int = 0
    #: Of the dead letters, those that an operator has acknowledged: they do not count for the verdict.
    acknowledged: int = 0
    #: Age of the oldest object that belongs to an unfinished message; None if there is none.
    busy_seconds: float | None = None
    at: datetime

    @property
    def total(self) -> int:
        """All messages that are not finished, and all finished ones that still have a record or a dead letter."""
        return self.pending + self.delayed + self.processing + self.failed + self.completed + self.dead

    def is_exact(self, *counts: str) -> bool:
        """Whether these counts are no lower bounds."""
        return self.exact and not {*counts} & {*self.at_least}

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"total": self.total, "at": format_instant(self.at), "at_least": list(self.at_least)}

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
                elif name == "at_least":
                    known[name] = tuple(as_text(one) for one in as_list(value))
                elif value is None and name in _UNKNOWN:
                    known[name] = None
                else:
                    known[name] = as_number(value) if name.endswith("_seconds") else as_whole(value)
            return cls(**known)
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a stats document: {cut(error)}") from None


def measure(store: ObjectStore, keys: Keys, *, pages: int | None = PAGES) -> Stats:
    """Count a queue now: one LIST for the kinds of objects, then one per 1,000 objects, at most `pages` per kind.

    Besides, a HEAD for each of the first `LETTERS_READ` letters with dead lines of a batch, and a GET for each of the
    `LEASES_READ` oldest leases that have no reminder, and that nobody has written for a minute: they may wait for a
    worker that never comes. Of other leases, the reminders tell which wait: for some seconds it can be wrong.
    """
    root, kinds = find_kinds(store, keys, _COUNTED)
    counter, records = Counter(keys, root.at), CountedRecords(keys)
    leases, letters = CountedLeases(store, keys), CountedLetters(store, keys)
    seen = _acknowledgements(store, keys, root) if "dead" in kinds else Acknowledgements()
    exact = True
    for kind in _COUNTED:
        last = None
        for page in listing(store, keys.prefix(kind), pages=pages) if kind in kinds else ():
            last = page
            if kind == "leases":
                leases.add(page)
            elif kind == "retries":
                leases.remind(page)
            elif kind in ("messages", "delayed"):
                counter.add(page.objects, leases.paths)
            elif kind == "dead":
                letters.add(page, seen, records)
            elif kind == "records":
                records.add(page)
        if last and last.next_after is not None:
            exact = False
            leases.is_cut = leases.is_cut or kind in ("leases", "retries")
            records.is_cut = records.is_cut or kind == "records"
    failed = leases.waiting(root.at)
    at_least = counter.at_least | leases.at_least | letters.at_least | records.at_least
    return Stats(
        pending=counter.unleased,
        delayed=counter.delayed,
        processing=leases.messages - failed,
        failed=failed,
        completed=max(0, records.outcomes - letters.recorded),
        dead=letters.messages,
        oldest_seconds=counter.age(counter.oldest),
        newest_seconds=counter.age(counter.newest),
        finished_per_minute=None if records.is_cut else records.recent,
        exact=exact,
        at_least=tuple(sorted(at_least)),
        pending_objects=counter.objects,
        processing_objects=len(leases.paths),
        finished_objects=max(0, records.objects - letters.recorded_objects) + letters.objects,
        journaled_objects=records.journaled,
        journals=records.journals,
        acknowledged=letters.acknowledged,
        busy_seconds=counter.age(counter.busy_since),
        at=root.at,
    )


def _acknowledgements(store: ObjectStore, keys: Keys, root: Page) -> Acknowledgements:
    """What operators have acknowledged. One GET, if the LIST of the root shows that there is something to read.

    What cannot be read hides no letter: then all of them count.
    """
    is_there = root.next_after is not None or any(entry.key == keys.acknowledged for entry in root.objects)
    found = open_state(store, keys.acknowledged) if is_there else None
    try:
        return Acknowledgements.read(found) if found else Acknowledgements()
    except CorruptState as error:
        _log.warning("acknowledgements not read, all dead letters count: %s", error)
        return Acknowledgements()


def published_stats(store: ObjectStore, keys: Keys) -> Stats | None:
    """See `Queue.published_stats`."""
    found = open_state(store, keys.stats)
    try:
        return Stats.from_bytes(found.read(STATS_BYTES), found.key) if found else None
    except CorruptState:
        return None
