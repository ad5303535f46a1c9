"""A message as its handler gets it, from the object that was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO

from s3queue.documents.message import INLINE_BYTES, Generation, Message
from s3queue.encoding import decode_metadata
from s3queue.errors import AccessDenied, Conflict
from s3queue.store import Object, ObjectInfo

from .access import QueueAccess


def message_of(queue: QueueAccess, path: str, found: ObjectInfo) -> Message:
    """The message that was seen, or opened: then a small body is read now, if this queue keeps it (`keeps_body`). A
    large one the handler opens itself.
    """
    inline = None
    if isinstance(found, Object):
        if found.size <= INLINE_BYTES and queue.keeps_body(path):
            inline = found.read()
        else:
            found.stream.close()
    return Message(
        queue=queue.name,
        path=path,
        generation=Generation(etag=found.etag, put_at=found.modified_at),
        size=found.size,
        metadata=decode_metadata(found.metadata),
        content_type=found.content_type,
        inline=inline,
        reopen=_opener(queue, path, found.etag),
    )


def described_metadata(queue: QueueAccess, path: str, etag: str) -> Mapping[str, str] | None:
    """The metadata of a message that cannot be read: an archived one can be described. None if that is refused, too, or
    if another message lies there by now.
    """
    with suppress(AccessDenied):
        described = queue.store.head(queue.keys.message(path))
        if described and described.etag == etag:
            return decode_metadata(described.metadata)
    return None


def _opener(queue: QueueAccess, path: str, etag: str) -> Callable[[], IO[bytes] | None]:
    def reopen() -> IO[bytes] | None:
        try:
            found = queue.store.open(queue.keys.message(path), if_match=etag)
        except Conflict:
            return None
        return found.stream if found else None

    return reopen
