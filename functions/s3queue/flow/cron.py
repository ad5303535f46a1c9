"""cron: the instants of a cron line in a time zone. `cronsim` is imported when there is a schedule, not before.

As Debian's cron does it. A line of which neither the minute nor the hour begins with `*` is meant by the clock on the
wall: where the clock is put forward, a time that does not exist is due at the first minute after the gap, once; where
it is put back, a time that comes twice is due the first time only. Any other line (`*/30 * * * *`) follows the time
that passes: nothing is due in a gap, and what is due in an hour that comes twice is due in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from s3queue.errors import InvalidRequest

#: A longer line is a mistake.
LINE_CHARACTERS = 200
_DAY = timedelta(days=1)
_EXAMPLE = 'write five fields, minute hour day month weekday, such as "15 9 * * 1-5"'


def check_cron(cron: str, tz: str, now: datetime) -> None:
    """Raises InvalidRequest if the line cannot be read, names no time zone that is known here, or is never due."""
    if next(occurrences(cron, tz, now), None) is None:
        raise InvalidRequest(f"cron line {cron!r} is never due: no such day comes within 50 years; {_EXAMPLE}")


def occurrences(cron: str, tz: str, after: datetime) -> Iterator[datetime]:
    """The instants after `after`, in order, in UTC. What they are does not depend on where one begins.

    Raises:
        InvalidRequest: the line or the time zone is wrong.
    """
    zone = _zone(tz)
    try:
        start = after.astimezone(zone)
    except OverflowError:
        return iter(())  # the calendar ends before
    line = _line(cron, start)
    if str(zone) == "UTC" or not any(field.startswith("*") for field in cron.split()[:2]):
        return _later_than(line, after)
    return _later_than(_passing(cron, zone, after), after)


def _passing(cron: str, zone: Any, after: datetime) -> Iterator[datetime]:
    """The instants of a line that follows the time that passes: wherever the wall clock shows one.

    Between two changes of the clock, wall time is UTC and a constant. cronsim would add whole hours across a change,
    and miss what lies behind one of half an hour (Australia/Lord_Howe).
    """
    at = after.astimezone(UTC).replace(microsecond=0)
    offset = _offset(zone, at)
    while True:
        for wall in _line(cron, (at + offset).replace(tzinfo=None)):
            instant = wall.replace(tzinfo=UTC) - offset
            if change := _first_change(zone, at, min(instant, at + _DAY), offset):
                # Just before it, by the clock that is valid from then on.
                at, offset = change - timedelta(seconds=1), _offset(zone, change)
                break
            if instant > at + _DAY:
                # What a change on the way repeats was shown before, and was none: only the last one matters.
                at = instant - _DAY / 2
                offset = _offset(zone, at)
                break
            yield instant
            at = instant
        else:
            return


def _first_change(zone: Any, after: datetime, until: datetime, offset: timedelta) -> datetime | None:
    """The second in which the clock is not `offset` ahead of UTC any more, if there is one by `until`.

    `after` itself may be the last second before a change, and `offset` what is valid behind it.
    """
    low, high = after + timedelta(seconds=1), until
    if high < low or _offset(zone, high) == offset:
        return None
    if _offset(zone, low) != offset:
        return low
    while high - low > timedelta(seconds=1):
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def last_occurrences(cron: str, tz: str, after: datetime, until: datetime, most: int) -> list[datetime]:
    """The last instants after `after`, up to `until` and including it: at most `most`, however long that time is."""
    # Backwards only to find where to begin: which instants there are, the way forward decides. Not further back than
    # needed: of a line that is due once in decades, a hundred instants ago there was no calendar.
    begin = next(islice(_back(cron, _zone(tz), after, until), most - 1, None), None)
    if begin:
        after = begin - timedelta(seconds=1)
    found: deque[datetime] = deque(maxlen=most)
    for at in occurrences(cron, tz, after):
        if at > until:
            break
        found.append(at)
    return list(found)


def _back(cron: str, zone: Any, after: datetime, until: datetime) -> Iterator[datetime]:
    """Backwards from `until`, when the clock on the wall first showed a time of the line: no more than the instants of
    the line, which come also in the second of two equal hours, or behind a gap.

    In wall time: with a zone, cronsim goes back for ever where a gap ends at midnight (America/Nuuk).
    """
    for wall in _line(cron, (until + timedelta(seconds=1)).astimezone(zone).replace(tzinfo=None), reverse=True):
        instant = wall.replace(tzinfo=zone).astimezone(UTC)
        if instant <= after:
            return
        if instant.astimezone(zone).replace(tzinfo=None) == wall:
            yield instant


def _offset(zone: Any, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _later_than(line: Iterator[datetime], after: datetime) -> Iterator[datetime]:
    while True:
        try:
            at = next(line, None)
            instant = at.astimezone(UTC) if at else None
        except (OverflowError, ValueError):
            return  # the calendar ends
        if instant is None:
            return
        # In the second of two equal hours, the line begins with instants of the first one.
        if instant > after:
            after = instant
            yield instant


def _line(cron: str, start: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError:
        raise InvalidRequest("schedules need cronsim: pip install 's3queue[schedules]'") from None
    if not isinstance(cron, str) or len(cron) > LINE_CHARACTERS or len(cron.split()) != 5:
        raise InvalidRequest(f"cron line {str(cron)[:LINE_CHARACTERS]!r} cannot be read: {_EXAMPLE}")
    try:
        return CronSim(cron, start, reverse=reverse)
    except (CronSimError, AssertionError, ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f"cron line {cron!r} cannot be read, or is never due ({error or 'not a cron line'}): {_EXAMPLE}"
        ) from None


def _zone(tz: str) -> Any:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(tz)
    except (OSError, LookupError, ValueError, TypeError, AttributeError):
        raise InvalidRequest(
            f"time zone {str(tz)[:80]!r} is not known on this machine: write a name of the IANA database, such as "
            "Europe/Berlin"
        ) from None
