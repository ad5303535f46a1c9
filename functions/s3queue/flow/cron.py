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
#: The search for the last instants of a line begins this much earlier than they seem to: a change of the clock may lie
#: in between.
_AROUND = timedelta(days=2)
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
    return _later_than(_line(cron, start), after)


def last_occurrences(cron: str, tz: str, after: datetime, until: datetime, most: int) -> list[datetime]:
    """The last instants after `after`, up to `until` and including it: at most `most`, however long that time is."""
    zone = _zone(tz)
    back = _line(cron, (until + timedelta(seconds=1)).astimezone(zone), reverse=True)
    # Backwards only to find where to begin: which instants there are, the way forward decides.
    earliest = min(islice(back, most + 1), default=after).astimezone(UTC) - _AROUND
    found: deque[datetime] = deque(maxlen=most)
    for at in occurrences(cron, tz, max(after, earliest)):
        if at > until:
            break
        found.append(at)
    return list(found)


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
