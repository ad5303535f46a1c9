"""Keeps the record of a message that cannot be finished yet: records are deleted by their age.  [P3] [P7]

Without its record, a message that was completed would look like one whose worker died, and what it has sent would be
forgotten.
"""

from __future__ import annotations

import logging

from s3queue.documents.record import RECORD_BYTES, Record
from s3queue.documents.sends import StoredSends
from s3queue.encoding import dump, load
from s3queue.errors import Conflict, QueueError
from s3queue.store import open_state, put_surely

from .access import QueueAccess

_log = logging.getLogger(__name__)
#: From this part of its retention on, a record that is still needed is written again.
RENEWED_FROM = 0.25


def renew(queue: QueueAccess, record: Record, stored: StoredSends | None = None) -> None:
    """Note how far its sends are stored, and write the record again if it grows old. GET, and a PUT `If-Match` if
    either is needed; if that fails, the next try of whoever finishes the message does it.

    Nothing of the outcome changes, so it may be repeated, and may come late: another record is never replaced.
    """
    key = queue.keys.record(record.path)
    try:
        found = open_state(queue.store, key)
        if found is None:
            return
        body = found.read(RECORD_BYTES)
        present = Record.from_bytes(body, key)
        if (present.generation, present.nonce) != (record.generation, record.nonce):
            return
        noted = present.stored.joined(stored) if stored else present.stored
        if noted != present.stored:
            body = dump(load(body, key) | {"stored": noted.to_json()})
        elif found.at - found.modified_at < queue.settings.record_retention * RENEWED_FROM:
            return
        put_surely(queue.store, key, body, if_match=found.etag)
    except Conflict:
        return  # whoever wrote it since knows better
    except QueueError as error:
        _log.warning("record not renewed, trying again: %s: %s", key, error)
