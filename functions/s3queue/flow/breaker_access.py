"""Reading, writing and forcing `queue-breaker.json`: what workers and operators share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Literal

from s3queue.documents.breaker_document import BreakerDocument, StoredBreaker
from s3queue.errors import Conflict, CorruptState, InvalidRequest, NewerFormat
from s3queue.keys import Keys
from s3queue.protocol.access import QueueAccess
from s3queue.store import ObjectStore, open_state, put_surely

_log = logging.getLogger(__name__)
Force = Literal["open", "closed", "auto"]


def read_breaker(store: ObjectStore, keys: Keys, note: Callable[[datetime], None] = lambda at: None) -> StoredBreaker:
    """The breaker of a queue; closed if there is none. One GET.

    Garbage counts as closed, and is written over: it must not stop a queue.

    Raises:
        NewerFormat: a newer version wrote it.
    """
    found = open_state(store, keys.breaker)
    if found is None:
        return StoredBreaker(document=BreakerDocument(), etag=None)
    note(found.at)
    try:
        document = BreakerDocument.read(found)
    except NewerFormat:
        raise
    except CorruptState as error:
        _log.warning("breaker cannot be read, taken as closed: %s", error)
        document = BreakerDocument()
    return StoredBreaker(document=document, etag=found.etag, written_at=found.modified_at)


def write_breaker(queue: QueueAccess, document: BreakerDocument, etag: str | None) -> StoredBreaker:
    """Raises Conflict if someone has written it since."""
    body = document.to_bytes(queue.chance.token())
    written = put_surely(queue.store, queue.keys.breaker, body, if_match=etag, if_absent=etag is None)
    return StoredBreaker(document=document, etag=written.etag, written_at=written.at)


def force_breaker(queue: QueueAccess, how: Force) -> StoredBreaker:
    """Let an operator decide: open or closed, whatever happens, or `auto`: closed, and by itself again.

    Raises:
        InvalidRequest: it is none of these.
        NewerFormat: a newer version of s3queue wrote it.
    """
    if how not in ("open", "closed", "auto"):
        raise InvalidRequest(f"a breaker is forced open or closed, or left to itself by auto, not {how!r}")
    while True:
        known = read_breaker(queue.store, queue.keys)
        wanted = BreakerDocument(state="open" if how == "open" else "closed", is_forced=how != "auto")
        if how == "open":
            wanted = replace(wanted, opened_at=known.document.opened_at or queue.clock.now())
        try:
            return write_breaker(queue, wanted, known.etag)
        except Conflict:
            continue  # a worker counted meanwhile
