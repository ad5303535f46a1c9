"""Notifications: which messages a function was invoked for, by S3, by EventBridge, or by the sweeper."""

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
    """A message that may be ready to run."""

    path: str
    #: Bytes, if the notification tells.
    size: int | None = None
    #: Which PUT of the name this is about, if S3 said.
    etag: str = ""
    #: When S3 stored the object; None if the sweeper sent the notification.
    notified_at: datetime | None = None

    @property
    def is_dispatched(self) -> bool:
        """Whether the sweeper sent it, and has deleted its reminder. One of S3 whose time cannot be read counts too."""
        return self.notified_at is None

    def is_late(self, now: datetime, late_after: timedelta) -> bool:
        """Whether it is so old that the message may have been processed: read before claiming, and drain afterwards."""
        return self.notified_at is None or now - self.notified_at > late_after


def read(event: Any, keys: Keys, bucket: str) -> list[Notification]:
    """The notifications of one invocation; entries that are not messages are logged and skipped."""
    match event:
        case {"paths": list(paths)}:
            found = [_sent(path, keys) for path in paths]
        case {"Records": list(records)}:
            found = [_recorded(record, keys, bucket) for record in records]
        case {"source": "aws.s3", "detail-type": "Object Created", "detail": dict(detail), **rest}:
            found = [_noticed(detail, rest.get("time"), keys, bucket)]
        case {"Event": "s3:TestEvent"}:
            _log.info("S3 test event received, nothing to do")
            found = []
        case _:
            shape = sorted(map(str, event))[:10] if isinstance(event, Mapping) else type(event).__name__
            _log.error("event skipped, neither from S3 nor from the sweeper: %s", shape)
            found = []
    # One event may name an object twice.
    return list({notification.path: notification for notification in found if notification}.values())


def _sent(path: Any, keys: Keys) -> Notification | None:
    if not isinstance(path, str) or keys.path(keys.message(path)) is None:
        _log.error("dispatched path skipped, not a message of %s: %r", keys.root, path)
        return None
    return Notification(path=path)


def _recorded(record: Any, keys: Keys, bucket: str) -> Notification | None:
    """A record of an S3 notification; its key is URL-encoded, as in a form."""
    match record:
        case {"eventName": str(name), "s3": {"bucket": {"name": str(where)}, "object": {"key": str(key), **described}}}:
            if not name.removeprefix("s3:").startswith("ObjectCreated:"):
                _log.info("event skipped, no object was created: %s", name)
                return None
            return _created(
                unquote_plus(key), described, described.get("eTag"), record.get("eventTime"), where, keys, bucket
            )
    _log.error("event record skipped, not from S3")
    return None


def _noticed(detail: Any, time: Any, keys: Keys, bucket: str) -> Notification | None:
    """An S3 event that came through EventBridge; its key is not encoded."""
    match detail:
        case {"bucket": {"name": str(where)}, "object": {"key": str(key), **described}}:
            return _created(key, described, described.get("etag"), time, where, keys, bucket)
    _log.error("EventBridge event skipped, it names no object")
    return None


def _created(
    key: str, described: Mapping[Any, Any], etag: Any, time: Any, where: str, keys: Keys, bucket: str
) -> Notification | None:
    path = keys.path(key)
    if where != bucket or path is None:
        _log.warning("event skipped, not a message of %s, check the filter: s3://%s/%s", keys.root, where, key)
        return None
    size = described["size"] if isinstance(described.get("size"), int) else None
    if key.endswith("/") and size == 0:
        return None  # a folder that an S3 console made
    etag = etag.strip('"') if isinstance(etag, str) else ""
    return Notification(path=path, size=size, etag=etag, notified_at=_instant(time))


def _instant(time: Any) -> datetime | None:
    """The instant; None, which counts as late, if it cannot be read."""
    try:
        found = datetime.fromisoformat(time)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
