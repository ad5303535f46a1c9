"""Doorbells: which messages an invocation was called for, whatever rang: S3, EventBridge, or the sweeper."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote_plus

from s3queue.keys import Keys

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A message that may be there."""

    path: str
    #: Bytes, if whoever rang knows.
    size: int | None = None
    #: When S3 saw the object; None: sent by the sweeper.
    notified_at: datetime | None = None

    def is_late(self, now: datetime, late_after: timedelta) -> bool:
        """Whether the queue may have gone on meanwhile: look before claiming, and drain afterwards."""
        return self.notified_at is None or now - self.notified_at > late_after


def read(event: Any, keys: Keys, bucket: str) -> list[Notification]:
    """The notifications of one invocation; what is none is logged and left out, and never stops the others."""
    match event:
        case {"paths": list(paths)}:
            found = [_sent(path, keys) for path in paths]
        case {"Records": list(records)}:
            found = [_recorded(record, keys, bucket) for record in records]
        case {"source": "aws.s3", "detail-type": "Object Created", "detail": dict(detail), **rest}:
            found = [_noticed(detail, rest.get("time"), keys, bucket)]
        case {"Event": "s3:TestEvent"}:
            _log.info("S3 tests the notification: it arrives")
            found = []
        case _:
            shape = sorted(map(str, event))[:10] if isinstance(event, Mapping) else type(event).__name__
            _log.error("this event is neither from S3 nor from the sweeper; nothing was done: %s", shape)
            found = []
    # One event may name an object twice.
    return list({notification.path: notification for notification in found if notification}.values())


def _sent(path: Any, keys: Keys) -> Notification | None:
    if not isinstance(path, str) or keys.path(keys.message(path)) is None:
        _log.error("a dispatch names %r, which is no message's path", path)
        return None
    return Notification(path=path)


def _recorded(record: Any, keys: Keys, bucket: str) -> Notification | None:
    """A record of an S3 notification; its key is URL-encoded, as in a form."""
    match record:
        case {"eventName": str(name), "s3": {"bucket": {"name": str(where)}, "object": {"key": str(key), **described}}}:
            if not name.removeprefix("s3:").startswith("ObjectCreated:"):
                _log.info("%s is no reason to work", name)
                return None
            return _created(unquote_plus(key), described.get("size"), record.get("eventTime"), where, keys, bucket)
    _log.error("a record of this event is not S3's")
    return None


def _noticed(detail: Any, time: Any, keys: Keys, bucket: str) -> Notification | None:
    """S3's event by way of EventBridge; its key is plain."""
    match detail:
        case {"bucket": {"name": str(where)}, "object": {"key": str(key), **described}}:
            return _created(key, described.get("size"), time, where, keys, bucket)
    _log.error("this event from EventBridge names no object")
    return None


def _created(key: str, size: Any, time: Any, where: str, keys: Keys, bucket: str) -> Notification | None:
    path = keys.path(key)
    if where != bucket or path is None:
        _log.warning("an event for s3://%s/%s, which is no message of %s: filter too wide?", where, key, keys.root)
        return None
    size = size if isinstance(size, int) else None
    if key.endswith("/") and size == 0:
        return None  # what a console PUTs to show a folder
    return Notification(path=path, size=size, notified_at=_instant(time))


def _instant(time: Any) -> datetime | None:
    """None, which counts as late, if there is no time to read."""
    try:
        found = datetime.fromisoformat(time)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
