"""Downloads: a URL for what a handler made, or for a completed message's payload; nothing else of a queue."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import unquote

from s3queue.clock import as_signing_time
from s3queue.documents.kept_payload import is_payload_of
from s3queue.documents.record import Record
from s3queue.errors import InvalidRequest, MessageNotFound
from s3queue.keys import RESERVED, owner_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.outcomes import Outcomes

KEY_BYTES = 1024


def presign_get(queue: QueueAccess, outcomes: Outcomes, what: str, expires: float | timedelta) -> str:
    """See `Queue.presign_get`. HEAD object; of a message, GET record first."""
    seconds = as_signing_time(expires)
    key, record = _found(queue, outcomes, what)
    stored = queue.store.head(key)
    # Under a name that was used before, an earlier message's payload may lie there.
    if stored is None or (record and not is_payload_of(stored, record)):
        raise MessageNotFound(f"nothing to download: there is no {queue.store.url}/{key}")
    return queue.store.presign_get(key, seconds=seconds)


def _found(queue: QueueAccess, outcomes: Outcomes, what: str) -> tuple[str, Record | None]:
    """The key, and of a message its record."""
    if what.startswith(("messages/", "delayed/")):
        record = outcomes.read(what)
        if record is None or record.outcome != "completed" or not record.keeps_payload:
            raise MessageNotFound(
                f"nothing to download: {queue.name}/{what} has no kept payload; it is kept with keep_payload=True"
            )
        return queue.keys.done(what), record
    if what.startswith("results/") and what != "results/":
        return _checked(queue.keys.root + what), None
    bucket = f"{queue.store.url}/"
    if what.startswith(bucket):
        key = _checked(what.removeprefix(bucket))
        if key.startswith(queue.keys.root) and not key.startswith(queue.keys.prefix("results")):
            raise InvalidRequest(f"{what} is a part of the queue, not what a handler made: give the message's path")
        owner = owner_of(key)
        if owner in RESERVED:
            raise InvalidRequest(f"{what} is s3queue's own data, not what a handler made: {owner}/ is not signed for")
        if owner and owner != queue.name:
            raise InvalidRequest(f"{what} belongs to the queue {owner!r}: ask that queue for it")
        return key, None
    raise InvalidRequest(
        f"{what!r} is none of: the path of a completed message (messages/…), results/… of the queue, or {bucket}… "
        "as a URL"
    )


def _checked(key: str) -> str:
    parts = unquote(key).split("/")
    if not key or key.endswith("/") or len(key.encode()) > KEY_BYTES or ".." in parts or "." in parts or "\0" in key:
        raise InvalidRequest(f"{key[:200]!r} is not the key of an object: it is empty, too long, or not a plain path")
    return key
