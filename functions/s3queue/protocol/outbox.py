"""Outbox: stores what a completed message has sent, as often as it takes.  [P7]

The record says what was sent, so whoever reads it can do this, and do it again: a PUT that comes after its message was
finished is recognized by the claim, see `is_repeatable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from s3queue.documents.record import Record
from s3queue.documents.sends import Send, SentObject, addressed, read_staged, staged
from s3queue.errors import AccessDenied, Conflict, InvalidRequest, Unavailable
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
        AccessDenied, InvalidRequest, CorruptState: one cannot be stored; the message has to be kept until it can.
    """
    stored = 0
    parts: list[tuple[str, str]] = []
    for sent in _objects(queue, record, parts):
        if queue.sends_to is not None and sent.queue not in queue.sends_to:
            raise InvalidRequest(
                f"sends not stored, message kept: {queue.name}/{record.path} sends to {sent.queue!r}, which sends_to "
                f"of the definition of {queue.name!r} does not name"
            )
        between()
        stored += _put(queue, record, sent)
    for key, etag in parts:
        delete_unique(queue.store, key, if_match=etag)
    return stored


def _objects(queue: QueueAccess, record: Record, parts: list[tuple[str, str]]) -> Iterator[SentObject]:
    """One part in memory at a time. The parts that are still there are noted, to be deleted at the end."""
    yield from addressed(record.sends, queue.name, record.path, record.generation, part=0)
    for number, name in enumerate(record.outbox, 1):
        found = queue.store.open(queue.keys.outbox(name))
        # Parts are deleted only after everything was stored.
        if found is not None:
            parts.append((found.key, found.etag))
            sends = read_staged(found)
            yield from addressed(sends, queue.name, record.path, record.generation, part=number)


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
            raise type(error)(f"sends not stored, message kept: {queue.name}/{record.path}: {error}") from error
    raise unknown or Unavailable(f"unknown whether {key} was stored; try again")
