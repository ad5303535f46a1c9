"""ScheduleFiring: puts the messages of schedules into `delayed/`, minutes before they are due.  [P10]

Each instant is decided on once, by a conditional write of the schedule's document, which names it before its message is
put, and again once it is there. The message's name is made of the schedule and the instant, so that two PUTs are one
message; a PUT that comes after the message has run is known by its record, and cleared away by whoever claims it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from s3queue.documents.schedule import MOST_PLACING, Schedule, StoredSchedule
from s3queue.encoding import NONSENSE, format_instant
from s3queue.errors import Conflict, CorruptState, InvalidRequest, QueueError
from s3queue.keys import Keys
from s3queue.paths import SCHEDULED, due_of, format_due, runs_once
from s3queue.protocol.access import QueueAccess
from s3queue.store import ObjectInfo, ObjectStore, delete_unique, listing, look_at, open_state, put_surely

from .cron import last_occurrences, occurrences
from .schedules import redefined

_log = logging.getLogger(__name__)
#: A message is put this long before it is due: the sweeper function looks once a minute, and may be late.
LEAD = timedelta(seconds=150)
#: An instant that passed less than this ago was not missed: the sweeper was a little late.
GRACE = timedelta(seconds=60)
#: Of `missed="all"`, at most this many are put, the last ones.
MOST_MISSED = 100
#: Whoever decided on an instant puts its message within this time, or leaves it to the next sweep: a process that slept
#: must not put what has been finished, and forgotten, since.
PLACE_SECONDS = 60.0
#: The document of a schedule that no code defines any more is deleted when it was not written for this long.
FORGOTTEN_AFTER = timedelta(days=1)
#: So many schedules can be looked after in any sweep.
FEW = 20
#: Pages of delayed messages within the lead that are looked through for those of a schedule that was removed.
AHEAD_PAGES = 10


@dataclass(slots=True)
class _Known:
    """A schedule's document as it was read or written last, and when its next instant is."""

    etag: str
    stored: StoredSchedule
    #: When what was read was written: it forgets nothing that was due later than that.
    modified_at: datetime
    next_at: datetime | None = None
    #: Whether a line that this machine cannot read was logged.
    is_told: bool = False


@dataclass(slots=True)
class ScheduleFiring:
    """The schedules of one queue, as one sweeper sees them. Keep the instance between sweeps: it saves the GETs.

    `code` are the schedules of the queue's definition; None: this process does not know the definition.
    """

    queue: QueueAccess
    code: Sequence[Schedule] | None
    _known: dict[str, _Known] = field(default_factory=dict)
    #: Name → ETag of a document that cannot be read: it is not read again.
    _unreadable: dict[str, str] = field(default_factory=dict)
    #: The name with which the next sweep begins, if the budget ended the last one; None: nobody knows of a last one.
    cursor: str | None = None

    def fire(
        self,
        store: ObjectStore,
        listed: Iterable[ObjectInfo],
        now: datetime,
        corrupt: dict[str, str],
        check: Callable[[], None] = lambda: None,
        *,
        is_whole: bool = True,
    ) -> int:
        """Put what is due within the lead, and what was missed; returns how many messages.

        `listed` are the objects under `schedules/`, if not `is_whole` some of them. Without news, that LIST is the only
        request. An error about one schedule is logged, and the next sweep tries again; the others go on. `check` is
        called before each of them, and ends it by raising; the next sweep begins with the one that is left.
        """
        entries = dict(self._entries(listed))
        defined = {one.name: one for one in self.code or ()}
        if not is_whole:
            for name in defined.keys() - entries.keys():
                check()
                if found := look_at(store, self.queue.keys.schedule(name)):
                    entries[name] = found
        for name in self._known.keys() - entries.keys() if is_whole else ():
            del self._known[name]
        placed = 0
        names = sorted(entries.keys() | defined.keys())
        begin = self._begin(names)
        for name in sorted(names, key=lambda name: (name < begin, name)):
            self.cursor = name
            check()
            try:
                placed += self._fire(store, name, entries.get(name), defined.get(name), now, corrupt)
            except Conflict:
                # Another sweeper, or an operator, was first: what it wrote is read at the next sweep.
                self._known.pop(name, None)
            except QueueError as error:
                _log.warning("schedule not looked after, trying again: %s/%s: %s", self.queue.name, name, error)
                self._known.pop(name, None)
            except NONSENSE:
                # Whatever someone wrote there, or a bug: one schedule must not keep the others from being fired.
                _log.exception("unexpected error, continuing with the next schedule: %s/%s", self.queue.name, name)
                self._known.pop(name, None)
        self.cursor = ""
        return placed

    def _begin(self, names: Sequence[str]) -> str:
        """The name to begin with. A process that has swept before goes on; one that is new, among so many that a budget
        may not be enough, begins anywhere: otherwise those at the end would wait for ever.
        """
        if self.cursor is None and len(names) > FEW:
            return names[int(self.queue.chance.token(), 16) % len(names)]
        return self.cursor or ""

    def _entries(self, found: Iterable[ObjectInfo]) -> Iterable[tuple[str, ObjectInfo]]:
        for entry in found:
            if name := self.queue.keys.schedule_name(entry.key):
                yield name, entry

    def _fire(
        self,
        store: ObjectStore,
        name: str,
        entry: ObjectInfo | None,
        defined: Schedule | None,
        now: datetime,
        corrupt: dict[str, str],
    ) -> int:
        known = self._look(store, name, entry, corrupt)
        if known is None:
            if not defined or entry is not None:
                return 0
            made_at, ahead = lying_ahead(store, self.queue.keys, name, now)
            fresh = StoredSchedule(schedule=defined, source="code", after=made_at, ahead=ahead)
            # And on: the next sweep may be so late that it takes the first instant for a missed one.
            known = self._write(store, name, None, fresh)
        placed = self._place_again(store, known, now) if known.stored.placing else 0
        if defined and (known.stored.schedule != defined or known.stored.source != "code"):
            # Old code, which still sweeps, may have written it since this sweep began.
            changed_at = max(now, known.modified_at)
            known = self._write(store, name, known, redefined(known.stored, defined, changed_at, "code"))
        elif known.stored.source == "code" and not defined:
            # Not this process's to fire. One that knows no definition leaves it to those that do.
            # A pause stays, in case the code comes back.
            is_old = entry is not None and now - entry.modified_at > FORGOTTEN_AFTER
            if self.code is not None and is_old and not known.stored.paused:
                delete_unique(store, self.queue.keys.schedule(name), if_match=known.etag)
                _log.info("schedule removed, no code defines it any more: %s/%s", self.queue.name, name)
            return placed
        if known.stored.paused:
            return placed
        return placed + self._place_due(store, name, known, now)

    def _look(self, store: ObjectStore, name: str, entry: ObjectInfo | None, corrupt: dict[str, str]) -> _Known | None:
        """The document as it is stored now; None if there is none, or if it cannot be read. A GET only if the LIST
        shows another ETag.
        """
        if entry is None:
            return None
        known = self._known.get(name)
        if known and known.etag == entry.etag:
            return known
        if self._unreadable.get(name) != entry.etag:
            found = open_state(store, entry.key)
            if found is None:
                return None
            try:
                stored = StoredSchedule.read(found)
                if stored.schedule.name != name:
                    raise CorruptState(f"{found.key} is the document of {stored.schedule.name[:80]!r}, not of {name!r}")
                known = self._known[name] = _Known(found.etag, stored, found.modified_at)
                return known
            except CorruptState as error:
                _log.error("schedule cannot be read, correct or delete it: %s", error)
                self._unreadable[name] = found.etag
        corrupt[entry.key] = "it is not a schedule that this version can read"
        return None

    def _place_due(self, store: ObjectStore, name: str, known: _Known, now: datetime) -> int:
        stored, until = known.stored, now + LEAD
        if known.next_at and known.next_at > until:
            return 0
        try:
            chosen, decided = self._choose(stored, now, until)
            known.next_at = next(occurrences(stored.schedule.cron, stored.schedule.tz, decided), None)
        except InvalidRequest as error:
            if not known.is_told:
                _log.error("schedule is never due here: %s/%s: %s", self.queue.name, name, error)
            known.is_told = True
            return 0
        if decided == stored.after:
            return 0
        next_at, before = known.next_at, self.queue.clock.monotonic()
        # Named before it is put: should this process die, whoever looks next puts it.
        paths = tuple(self.queue.keys.scheduled(name, at, stored.schedule.priority) for at in chosen)
        decision = replace(stored, after=decided, placing=paths, ahead=_ahead(stored.ahead, min(now, decided)))
        known = self._write(store, name, known, decision, next_at)
        for path in paths:
            if self.queue.clock.monotonic() - before > PLACE_SECONDS:
                return 0
            self._put(store, stored.schedule, path)
        if paths:
            self._placed(store, name, known, now)
        return len(paths)

    def _choose(self, stored: StoredSchedule, now: datetime, until: datetime) -> tuple[list[datetime], datetime]:
        """The instants to put now, and the last one that is decided on."""
        schedule = stored.schedule
        passed: list[datetime] = []
        ahead: list[datetime] = []
        if now > stored.after:
            passed = last_occurrences(schedule.cron, schedule.tz, stored.after, now, MOST_MISSED)
        for at in occurrences(schedule.cron, schedule.tz, max(now, stored.after)):
            if at > until:
                break
            ahead.append(at)
        if not passed and not ahead:
            return [], stored.after
        decided = (passed + ahead)[-1]
        if schedule.missed == "skip":
            passed = [at for at in passed if now - at <= GRACE]
        elif schedule.missed == "last":
            late = [at for at in passed if now - at > GRACE]
            passed = late[-1:] + passed[len(late) :]
        elif len(passed) == MOST_MISSED:
            _log.warning(
                "schedule missed many times, the last %d are put: %s/%s", MOST_MISSED, self.queue.name, schedule.name
            )
        put = {due_of(path) for path in (*stored.ahead, *stored.placing)}
        return [at for at in passed + ahead if at not in put], decided

    def _place_again(self, store: ObjectStore, known: _Known, now: datetime) -> int:
        """Finish what someone began: another sweeper that is at it right now, or that died."""
        schedule, placed = known.stored.schedule, 0
        for path in known.stored.placing:
            if now - (due_of(path) or now) > self.queue.settings.record_retention:
                # Whether it ran cannot be known any more: at most once.
                _log.warning("instant of a schedule left out, too old: %s/%s", self.queue.name, path)
            # The message first: it is deleted only once its record is there.
            elif not look_at(store, self.queue.keys.message(path)) and not look_at(store, self.queue.keys.record(path)):
                self._put(store, schedule, path)
                placed += 1
        self._placed(store, schedule.name, known, now)
        return placed

    def _put(self, store: ObjectStore, schedule: Schedule, path: str) -> None:
        at = due_of(path)
        assert at is not None
        metadata = {"schedule": schedule.name, "scheduled-at": format_instant(at)}
        try:
            store.put(
                self.queue.keys.message(path),
                schedule.body.encode(),
                if_absent=True,
                metadata=metadata,
                content_type=schedule.content_type,
                once=True,
            )
        except Conflict:
            return
        self.queue.events.emit(
            "message.enqueued", queue=self.queue.name, path=path, size=len(schedule.body.encode()), due_at=at
        )

    def _placed(self, store: ObjectStore, name: str, known: _Known, now: datetime) -> None:
        stored = known.stored
        # After a change of the line, what was placed may be due, and later than `after`: it would be placed again.
        ahead = _ahead((*stored.ahead, *stored.placing), min(now, stored.after))
        self._write(store, name, known, replace(stored, placing=(), ahead=ahead), known.next_at)

    def _write(
        self,
        store: ObjectStore,
        name: str,
        known: _Known | None,
        stored: StoredSchedule,
        next_at: datetime | None = None,
    ) -> _Known:
        written = put_surely(
            store,
            self.queue.keys.schedule(name),
            stored.to_bytes(self.queue.chance.token()),
            if_match=known.etag if known else None,
            if_absent=known is None,
        )
        if known is None:
            known = self._known[name] = _Known(written.etag, stored, written.at)
        known.etag, known.stored, known.next_at = written.etag, stored, next_at
        return known


def _ahead(paths: Iterable[str], until: datetime) -> tuple[str, ...]:
    """Those that are due after `until`: the others are due, and no later than the last instant that was decided on."""
    return tuple(dict.fromkeys(path for path in paths if (due_of(path) or until) > until))


def lying_ahead(store: ObjectStore, keys: Keys, name: str, now: datetime) -> tuple[datetime, tuple[str, ...]]:
    """When this looked, and what a schedule of this name, which is not there any more, has put for the instants that
    come then: a message for an earlier one may have run, and be gone.  [P10] One LIST.

    A schedule that is made anew, with another priority, would put another message for the same instant.
    """
    prefix, at = keys.prefix("delayed"), now
    found: list[str] = []
    for page in listing(store, prefix, after=prefix + format_due(now), pages=AHEAD_PAGES):
        at = max(at, page.at)
        last = prefix + format_due(at + LEAD)
        for entry in page.objects:
            path = keys.path(entry.key) or ""
            if runs_once(path) and path.endswith(f"/{SCHEDULED}{name}") and entry.key[: len(last)] <= last:
                found.append(path)
        if page.objects and page.objects[-1].key[: len(last)] > last:
            break
    return at, tuple(found[:MOST_PLACING])
