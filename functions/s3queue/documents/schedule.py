"""Schedule: when a message comes by itself, and how far its occurrences have been put into the queue.

`{queue}/schedules/{name}.json` is the one place that decides which instant is put next.  [P10]
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from s3queue.encoding import (
    NONSENSE,
    as_list,
    as_text,
    as_whole,
    cut,
    dump,
    format_instant,
    load_current,
    parse_instant,
)
from s3queue.errors import CorruptState
from s3queue.paths import HIGHEST_PRIORITY, SCHEDULED, due_of, runs_once
from s3queue.store import Object

#: What becomes of instants that passed while no sweeper was at work: the last one is put, all of them, or none.
Missed = Literal["last", "all", "skip"]
#: Who made a schedule: a definition in code, or an operator at run time.
Source = Literal["code", "runtime"]
#: Larger bodies are refused: put the data into the bucket, and name it in the body.
BODY_BYTES = 64 * 1024
#: Larger objects are not read. JSON may escape each byte of a body with six.
SCHEDULE_BYTES = 512 * 1024
#: Instants that one document can name: those that were missed, and those that come within the lead.
MOST_PLACING = 200
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What was asked for. Made by `Queue.every` and `Definition.every`, which check it."""

    name: str
    #: Five fields: minute, hour, day of the month, month, day of the week.
    cron: str
    #: The time zone in which the five fields are meant, such as `Europe/Berlin`.
    tz: str = "UTC"
    #: The payload of every message, as text.
    body: str = ""
    content_type: str = JSON_TYPE
    priority: int = 0
    missed: Missed = "last"

    def is_due_as(self, other: Schedule) -> bool:
        """Whether both have the same instants."""
        return (self.cron, self.tz) == (other.cron, other.tz)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchedule:
    """The document: a schedule, and how far it has come."""

    schedule: Schedule
    source: Source
    #: Every instant up to this one has been decided on: it was put, is being put, or was left out.
    after: datetime
    #: Paths of messages that are being put into the queue. If there are any, whoever began may have died: put them, if
    #: they are neither there nor recorded. Paths, because the priority in them may be changed meanwhile.
    placing: tuple[str, ...] = ()
    #: Paths of messages that lie in the queue and were not due when this was written. If the line or the priority is
    #: changed, or the schedule is made anew, their instants are not put a second time.
    ahead: tuple[str, ...] = ()
    paused: bool = False

    def to_bytes(self, nonce: str) -> bytes:
        schedule = self.schedule
        return dump(
            {
                "name": schedule.name,
                "cron": schedule.cron,
                "tz": schedule.tz,
                "body": schedule.body,
                "content_type": schedule.content_type,
                "priority": schedule.priority,
                "missed": schedule.missed,
                "source": self.source,
                "paused": self.paused,
                "after": format_instant(self.after),
                "placing": self.placing,
                "ahead": self.ahead,
                "nonce": nonce,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> StoredSchedule:
        """Raises CorruptState, which names the key, if the bytes are not a schedule."""
        found = load_current(body, key)
        try:
            placing, ahead = as_list(found.get("placing", [])), as_list(found.get("ahead", []))
            if len(placing) > MOST_PLACING or len(ahead) > MOST_PLACING:
                raise ValueError(f"it names more than {MOST_PLACING} instants")
            name = as_text(found["name"])
            return cls(
                schedule=Schedule(
                    name=name,
                    cron=as_text(found["cron"]),
                    tz=as_text(found["tz"]),
                    body=_body(found.get("body", "")),
                    content_type=_one_of(found.get("content_type"), (JSON_TYPE, TEXT_TYPE)),
                    priority=as_whole(found.get("priority", 0), most=HIGHEST_PRIORITY),
                    missed=_one_of(found.get("missed"), get_args(Missed)),
                ),
                source=_one_of(found.get("source"), get_args(Source)),
                after=parse_instant(found["after"]),
                placing=tuple(_scheduled(path, name) for path in placing),
                ahead=tuple(_scheduled(path, name) for path in ahead),
                paused=found.get("paused") is True,
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a schedule: {cut(error)}") from None

    @classmethod
    def read(cls, found: Object) -> StoredSchedule:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(SCHEDULE_BYTES), found.key)


def _scheduled(path: Any, name: str) -> str:
    """The path, if it is one of this schedule: a forged document must not make the sweeper write anything else."""
    last = as_text(path).rpartition("/")[2]
    if not runs_once(path) or due_of(path) is None or last != f"{SCHEDULED}{name}":
        raise ValueError(f"{path[:80]!r} is not a message of this schedule")
    return str(path)


def _body(value: Any) -> str:
    """Text that can be written: half a surrogate pair cannot."""
    if len(as_text(value).encode()) > BODY_BYTES:
        raise ValueError(f"the body has more than {BODY_BYTES} bytes")
    return str(value)


def _one_of(value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ValueError(f"{str(value)[:50]!r} is none of {', '.join(known)}")
    return value
