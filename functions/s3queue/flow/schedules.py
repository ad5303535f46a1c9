"""Schedules: messages that come by themselves, at the instants of a cron line.  [P10]

Here they are made, listed, paused and removed; `schedule_firing` puts their messages into the queue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, get_args

from s3queue.clock import SystemClock
from s3queue.documents.message import encode_body
from s3queue.documents.schedule import BODY_BYTES, TEXT_TYPE, Missed, Schedule, Source, StoredSchedule
from s3queue.encoding import Json, format_instant
from s3queue.errors import Conflict, CorruptState, InvalidRequest, MessageTooLarge, NotFound
from s3queue.keys import check_schedule
from s3queue.paths import priority_prefix
from s3queue.protocol.access import QueueAccess
from s3queue.store import Object, delete_unique, listing, open_state, put_surely

from .cron import check_cron, occurrences

#: A queue has at most this many.
MOST_SCHEDULES = 1000
#: A LIST shows a thousand objects. Strangers' are among them, up to so many pages in all.
MOST_PAGES = 10
#: How many instants are shown.
SHOWN = 5


def schedule(
    cron: str,
    *,
    name: str | None = None,
    tz: str = "UTC",
    body: bytes | str | Json = None,
    priority: int = 0,
    missed: Missed = "last",
    now: datetime | None = None,
) -> Schedule:
    """A schedule that was checked. Without a `name`, the line and the time zone give it one.

    Raises:
        InvalidRequest: the line, the time zone or `missed` is wrong, or the line is never due.
        InvalidName, InvalidPriority, MessageTooLarge: as their names say.
    """
    check_cron(cron, tz, now or SystemClock().now())
    cron = " ".join(cron.split())
    if name is None:
        name = f"every-{hashlib.sha256(f'{cron} {tz}'.encode()).hexdigest()[:12]}"
    priority_prefix(priority)
    if missed not in get_args(Missed):
        raise InvalidRequest(f"missed must be {', '.join(get_args(Missed))}, not {missed!r}")
    encoded, content_type = encode_body(body)
    if len(encoded) > BODY_BYTES:
        raise MessageTooLarge(
            f"the body of schedule {name!r} has {len(encoded)} bytes, at most {BODY_BYTES} are kept: put the data into "
            "the bucket, and name it in the body"
        )
    try:
        text = encoded.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"the body of schedule {name!r} must be text or JSON, not bytes") from None
    if isinstance(body, (bytes, bytearray, memoryview)):
        content_type = TEXT_TYPE
    return Schedule(
        name=check_schedule(name),
        cron=cron,
        tz=tz,
        body=text,
        content_type=content_type,
        priority=priority,
        missed=missed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """A schedule as an operator sees it."""

    schedule: Schedule
    source: Source
    paused: bool
    #: The last instant that was decided on: put into the queue, or left out; before the first, when it was made.
    after: datetime
    #: The next instants, soonest first; none if it is paused.
    upcoming: tuple[datetime, ...] = ()
    #: Why it is not due: this machine cannot read its line, or does not know its time zone.
    problem: str = ""


class Schedules:
    """The schedules of one queue; `Queue.schedules` makes it."""

    def __init__(self, queue: QueueAccess) -> None:
        self._queue = queue

    def add(self, wanted: Schedule, *, replace_existing: bool = True) -> ScheduleState:
        """Store a schedule, or change the one of this name. The first message comes at the first instant after now.

        A message that was put into the queue already, minutes before it is due, stays there. GET, then a conditional
        PUT; nothing is written if nothing changes.

        Raises:
            InvalidRequest: the name is that of a schedule in code; or it exists, and should not be replaced.
        """
        self._check_room(wanted.name)
        if len(wanted.body.encode()) > self._queue.settings.max_message_size:
            raise MessageTooLarge(f"the body is larger than max_message_size, {self._queue.settings.max_message_size}")

        def change(stored: StoredSchedule | None, now: datetime) -> StoredSchedule:
            if stored is None:
                from .schedule_firing import lying_ahead

                # Of one that was removed a moment ago, perhaps with another priority.
                made_at, ahead = lying_ahead(self._queue.store, self._queue.keys, wanted.name, now)
                return StoredSchedule(schedule=wanted, source="runtime", after=made_at, ahead=ahead)
            if stored.source == "code":
                raise InvalidRequest(
                    f"schedule {wanted.name!r} of {self._queue.name} is defined in code: change it there"
                )
            if not replace_existing:
                raise InvalidRequest(
                    f"schedule {wanted.name!r} of {self._queue.name} exists already: remove it first, or replace it"
                )
            return redefined(stored, wanted, now)

        return self._change(wanted.name, change)

    def get(self, name: str) -> ScheduleState:
        """One GET. Raises NotFound if there is no such schedule, CorruptState if it cannot be read."""
        found = self._open(name)
        if found is None:
            raise self._missing(name)
        return self._state(StoredSchedule.read(found), found.at)

    def list(self) -> list[ScheduleState]:
        """All schedules of the queue, by name; those that cannot be read are left out. LIST, and a GET for each."""
        found: list[ScheduleState] = []
        for name in self.names():
            opened = self._open(name)
            try:
                if opened is not None:
                    found.append(self._state(StoredSchedule.read(opened), opened.at))
            except CorruptState:
                continue
        return found

    def names(self) -> Sequence[str]:
        """The names of all schedules. One LIST for a thousand objects."""
        keys = self._queue.keys
        pages = listing(self._queue.store, keys.prefix("schedules"), pages=MOST_PAGES)
        return [name for page in pages for entry in page.objects if (name := keys.schedule_name(entry.key))]

    def pause(self, name: str) -> ScheduleState:
        """From now on no message comes; one that is in the queue already stays there.

        Raises:
            NotFound: there is no such schedule.
        """
        return self._change(name, lambda stored, now: replace(self._found(stored, name), paused=True))

    def resume(self, name: str) -> ScheduleState:
        """Messages come again; what would have come meanwhile does not.

        Raises:
            NotFound: there is no such schedule.
        """

        def change(stored: StoredSchedule | None, now: datetime) -> StoredSchedule:
            found = self._found(stored, name)
            return replace(found, paused=False, after=max(found.after, now)) if found.paused else found

        return self._change(name, change)

    def remove(self, name: str) -> None:
        """Delete a schedule. A message that is in the queue already stays there.

        Raises:
            NotFound: there is no such schedule.
            InvalidRequest: it is defined in code: remove it there, or pause it.
        """
        while True:
            found = self._open(name)
            if found is None:
                raise self._missing(name)
            try:
                is_code = StoredSchedule.read(found).source == "code"
            except CorruptState:
                is_code = False
            if is_code:
                raise InvalidRequest(
                    f"schedule {name!r} of {self._queue.name} is defined in code: remove it there, or pause it"
                )
            if delete_unique(self._queue.store, found.key, if_match=found.etag):
                return

    def _open(self, name: str) -> Object | None:
        return open_state(self._queue.store, self._queue.keys.schedule(check_schedule(name)))

    def _change(self, name: str, change: Callable[[StoredSchedule | None, datetime], StoredSchedule]) -> ScheduleState:
        """GET, change, conditional PUT; again if the sweeper or another operator wrote in between."""
        while True:
            found = self._open(name)
            stored = StoredSchedule.read(found) if found else None
            now = found.at if found else self._queue.store.list(self._queue.keys.prefix("schedules"), limit=1).at
            wanted = change(stored, now)
            if wanted == stored:
                return self._state(wanted, now)
            try:
                put_surely(
                    self._queue.store,
                    self._queue.keys.schedule(name),
                    wanted.to_bytes(self._queue.chance.token()),
                    if_match=found.etag if found else None,
                    if_absent=found is None,
                )
            except Conflict:
                continue
            return self._state(wanted, now)

    def _check_room(self, name: str) -> None:
        names = self.names()
        if len(names) >= MOST_SCHEDULES and name not in names:
            raise InvalidRequest(f"{self._queue.name} has {MOST_SCHEDULES} schedules already: remove some first")

    def _state(self, stored: StoredSchedule, now: datetime) -> ScheduleState:
        upcoming: tuple[datetime, ...] = ()
        problem = ""
        try:
            if not stored.paused:
                upcoming = tuple(islice(occurrences(stored.schedule.cron, stored.schedule.tz, now), SHOWN))
        except InvalidRequest as error:
            problem = str(error)
        return ScheduleState(
            schedule=stored.schedule,
            source=stored.source,
            paused=stored.paused,
            after=stored.after,
            upcoming=upcoming,
            problem=problem,
        )

    def _found(self, stored: StoredSchedule | None, name: str) -> StoredSchedule:
        if stored is None:
            raise self._missing(name)
        return stored

    def _missing(self, name: str) -> NotFound:
        return NotFound(
            f"{self._queue.name} has no schedule {name!r}; s3queue schedule list {self._queue.name} shows all"
        )


def redefined(stored: StoredSchedule, wanted: Schedule, now: datetime, source: Source = "runtime") -> StoredSchedule:
    """The stored schedule with another definition. With other instants it begins anew: those before now are no more
    missed than they were due, and those after now are due, unless the former line has put them already.
    """
    after = stored.after if stored.schedule.is_due_as(wanted) else now
    return replace(stored, schedule=wanted, source=source, after=after)


def schedule_document(state: ScheduleState) -> dict[str, Any]:
    """A schedule as the CLI and the API show it."""
    return {
        "name": state.schedule.name,
        "cron": state.schedule.cron,
        "tz": state.schedule.tz,
        "body": state.schedule.body,
        "priority": state.schedule.priority,
        "missed": state.schedule.missed,
        "source": state.source,
        "paused": state.paused,
        "after_at": format_instant(state.after),
        "next_at": [format_instant(at) for at in state.upcoming],
        "problem": state.problem,
    }
