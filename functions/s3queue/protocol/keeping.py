"""Keeps the payload of a completed message: COPY to `done/`, between its record and its deletion.  [P1] [P6]"""

from __future__ import annotations

from dataclasses import replace

from s3queue.documents.kept_payload import payload_metadata
from s3queue.documents.record import Record
from s3queue.errors import Conflict, InvalidRequest, Unavailable
from s3queue.keys import Keys
from s3queue.store import UNKNOWN_TRIES, ObjectInfo, ObjectStore


def keep_payload(store: ObjectStore, keys: Keys, record: Record, message: ObjectInfo) -> None:
    """COPY the message to `done/`, if it is still the generation that was completed. Safe to repeat, also late: the
    condition on the source lets no other bytes through, and equal bytes are the same payload.

    Raises:
        Unavailable: unknown whether it was copied; calling again is safe.
        AccessDenied: the message stays until someone may copy it.
    """
    unknown: Unavailable | None = None
    for _ in range(UNKNOWN_TRIES):
        try:
            _copy(store, keys, record, message)
            return
        except Conflict:
            return  # PUT anew: what was completed is gone, and what lies there has an outcome of its own
        except Unavailable as error:
            unknown = error
    raise unknown or Unavailable(f"payload not kept: {message.key}; try again")


def _copy(store: ObjectStore, keys: Keys, record: Record, message: ObjectInfo) -> None:
    target, etag = keys.done(record.path), record.generation.etag
    metadata = payload_metadata(message, record)
    try:
        store.copy(message.key, target, if_match=etag, metadata=metadata, content_type=message.content_type)
    except InvalidRequest:
        # The producer's own metadata or content type cannot be written again: the payload is kept without it.
        bare = replace(message, metadata={}, content_type="")
        store.copy(message.key, target, if_match=etag, metadata=payload_metadata(bare, record))
