"""Messages whose PUT may be repeated after they were finished, and how their record tells.

Whoever repeats it cannot know that the message has run and is gone: it was sent by another message [P7], stands for an
instant of a schedule [P10], has a dedup id that counts for a while, or is of a microbatch of Spark. So a claim of such
a message reads the record first, and it is recorded even without history.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from s3queue.encoding import put_id_of, with_put_id
from s3queue.paths import runs_once

from .dead_facts import dead_facts
from .lease import GRAIN, Lease
from .message import MOVED, ONCE, Generation
from .record import Record
from .sends import SENT_ONCE, is_repeatable

#: How far the clock that dates an outcome may be from S3's.
_CLOCK_ERROR = timedelta(minutes=10)
#: How the put id of a message with a dedup id begins if it tells when the id was reserved, and how far the clock that
#: says so may be ahead of S3's.
_RESERVED_ONCE = f"{ONCE}at-"
RESERVED_WITHIN = timedelta(seconds=10)


def is_once(path: str, metadata: Mapping[str, str]) -> bool:
    """Whether the record has to be read before it runs. What an operator moved back from `dead/` by hand just runs."""
    if put_id_of(metadata).startswith((ONCE, MOVED)) or is_repeatable(path, metadata):
        return True
    return runs_once(path) and not dead_facts(metadata)


def was_finished(path: str, metadata: Mapping[str, str], record: Record | None) -> bool:
    """Whether this is a late repetition of a message that has its outcome: it is deleted, and does not run."""
    if record is None or not is_once(path, metadata):
        return False
    put_id = put_id_of(metadata)
    return record.put_id == put_id if put_id.startswith(MOVED) else True


def told_by(lease: Lease, present: Generation) -> Mapping[str, str] | None:
    """The metadata of a message that nobody may describe, as far as its lease tells: the put id. None if that was not
    known either, or if something else lies there now.
    """
    return with_put_id({}, lease.put_id) if lease.put_id and lease.generation == present else None


def may_be_finished(path: str, record: Record | None) -> bool:
    """Whether a message whose put id nobody may see could be a late repetition of what this record has ended."""
    return record is not None and was_finished(path, with_put_id({}, record.put_id), record)


def moved_id(replay_id: str, ended_at: datetime) -> str:
    """The put id of what becomes a message of a partition again, under another name: the same for every repetition.

    It tells when the message ended that is replayed, so that only younger journals have to be searched for this id.
    """
    return f"{MOVED}{replay_id.removeprefix(MOVED)}-{max(0, int(ended_at.timestamp())):x}"


def moved_since(put_id: str) -> datetime | None:
    """Before this, nothing that carries the id can have ended; None if the id does not tell."""
    seconds = put_id.removeprefix(MOVED).partition("-")[2] if put_id.startswith(MOVED) else ""
    try:
        return datetime.fromtimestamp(int(seconds, 16), UTC) - _CLOCK_ERROR if seconds else None
    except (ValueError, OverflowError, OSError):
        return None


def reserved_id(token: str, now: datetime) -> str:
    """The put id of a message of a partition that has a dedup id: only younger journals have to be searched for it."""
    return f"{_RESERVED_ONCE}{max(0, int(now.timestamp())):x}-{token}"


def is_ahead(put_id: str, reserved_at: datetime) -> bool:
    """Whether a `reserved_id` is of a clock that was ahead: journals that have its outcome would not be searched.

    `reserved_at` is when it was stored, by S3's clock.
    """
    at = _instant_of(put_id, _RESERVED_ONCE)
    return at is not None and at > reserved_at + RESERVED_WITHIN


def ended_since(put_id: str) -> datetime | None:
    """Before this, nothing that carries the put id can have ended; None if the id does not tell.

    What was sent into a partition has ended after its sender was PUT, and what has a dedup id after that was reserved,
    by S3's clock.
    """
    if at := _instant_of(put_id, SENT_ONCE):
        return at - GRAIN
    if at := _instant_of(put_id, _RESERVED_ONCE):
        return at - RESERVED_WITHIN - GRAIN
    return moved_since(put_id)


def _instant_of(put_id: str, mark: str) -> datetime | None:
    """The seconds behind a mark, in hexadecimal digits; None if it has another one, or is forged."""
    seconds = put_id.removeprefix(mark).partition("-")[0] if put_id.startswith(mark) else ""
    try:
        return datetime.fromtimestamp(int(seconds, 16), UTC) if seconds else None
    except (ValueError, OverflowError, OSError):
        return None
