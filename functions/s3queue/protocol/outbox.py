"""Outbox: stores what a completed message has sent, as often as it takes.  [P7]

The record says what was sent, so whoever reads it can do this, and do it again: a PUT that comes after its message was
finished is recognized by the claim, see `is_repeatable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from s3queue.documents.record import Record
from s3queue.documents.sends import Send, SentObject, addressed, read_staged, staged
from s3queue.errors import AccessDenied, Conflict, InvalidRequest, NotSent, Unavailable
from s3queue.keys import Keys
from s3queue.store import UNKNOWN_TRIES, delete_unique, put_surely

from .access import QueueAccess


def stage(queue: QueueAccess, sends: list[Send]) -> str:
    """Write sends that are too large for a record, before anything names them; returns the part's name. One PUT."""
    name = queue.chance.name(queue.clock.now())
    put_surely(queue.store, queue.keys.outbox(name), staged(sends, queue.chance.token()), if_absent=True)
    return name


def perform(queue: QueueAccess, record: Record, between: Callable[[], None] = lambda: None) -> int:
    """Store every send of a record, then delete its staged parts; returns how many objects were new.

    Names follow from the record, and nothing is overwritten: it may be repeated at any time, by anyone. `between` is
    called before each PUT.

    Raises:
        Unavailable: unknown whether all are stored; calling again is safe.
        NotSent, CorruptState: one cannot be stored; the message has to be kept until it can.
    """
    stored = _store(queue, record, record.sends, 0, between)
    for number, name in enumerate(record.outbox, 1):
        between()
        found = queue.store.open(queue.keys.outbox(name))
        # A part is deleted once all of it is stored: what is gone needs nothing, and whoever begins anew goes on here.
        if found is not None:
            stored += _store(queue, record, read_staged(found), number, between)
            delete_unique(queue.store, found.key, if_match=found.etag)
    return stored


def _store(queue: QueueAccess, record: Record, sends: Sequence[Send], part: int, between: Callable[[], None]) -> int:
    for target in {send.queue for send in sends} if queue.sends_to is not None else ():
        # Before any of them is stored: the others would be stored again with every try.
        if target not in (queue.sends_to or ()):
            raise NotSent(
                f"sends not stored, message kept: {queue.name}/{record.path} sends to {target!r}, which sends_to "
                f"of the definition of {queue.name!r} does not name"
            )
    stored = 0
    for sent in addressed(sends, queue.name, record.path, record.generation, part=part):
        between()
        stored += _put(queue, record, sent)
    return stored


def _put(queue: QueueAccess, record: Record, sent: SentObject) -> bool:
    """Whether it was new. A lost answer needs no look: a message that was finished is not run again."""
    key = Keys(sent.queue).message(sent.path)
    unknown: Unavailable | None = None
    for _ in range(UNKNOWN_TRIES):
        try:
            queue.store.put(
                key, sent.body, if_absent=True, metadata=sent.metadata, content_type=sent.content_type, once=True
            )
            queue.events.emit(
                "message.sent", queue=queue.name, path=record.path, to=f"{sent.queue}/{sent.path}", size=len(sent.body)
            )
            return True
        except Conflict:
            return False
        except Unavailable as error:
            unknown = error
        except (AccessDenied, InvalidRequest) as error:
            raise NotSent(f"sends not stored, message kept: {queue.name}/{record.path}: {error}") from error
    raise unknown or Unavailable(f"unknown whether {key} was stored; try again")
