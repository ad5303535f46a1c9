"""Messages and dead letters as rows, for the data source. Reading is not claiming: what is read may be worked on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyspark.sql import types

from s3queue.documents.batch import spooled
from s3queue.documents.dead_facts import DEAD_METADATA, dead_facts
from s3queue.documents.dead_lines import messages_of
from s3queue.documents.message import INLINE_BYTES, is_placeholder
from s3queue.encoding import decode_metadata, parse_instant
from s3queue.paths import due_of, is_batch, priority_of
from s3queue.queue import Queue

from .record_rows import clean
from .schemas import columns, joined

_COMMON = columns(
    path="string",
    #: The line of its batch, counted from 1; 0 for a message of its own.
    line="bigint",
    #: Null beyond 8 MiB, except for the lines of a batch.
    body="binary",
    priority="int",
    size="bigint",
    etag="string",
    enqueued_at="timestamp",
    metadata=types.MapType(types.StringType(), types.StringType()),
)
MESSAGE_SCHEMA = joined(_COMMON, columns(due_at="timestamp", content_type="string"))
LETTER_SCHEMA = joined(
    _COMMON,
    columns(died_at="timestamp", error_type="string", error="string", attempts="bigint", worker="string"),
)


def message_rows(queue: Queue, key: str) -> Iterator[tuple[Any, ...]]:
    """A message as a row, a batch as one for each line; nothing if it is gone, or a folder's placeholder."""
    path = queue.keys.path(key)
    found = queue.store.open(key) if path else None
    if path is None or found is None:
        return
    if is_placeholder(found):
        found.stream.close()
        return
    last = (
        priority_of(path),
        found.etag,
        found.modified_at,
        _metadata(found.metadata),
        due_of(path),
        found.content_type,
    )
    if is_batch(path):
        with spooled(found.stream) as batch:
            for number, line in messages_of(path, batch, INLINE_BYTES):
                if isinstance(line, bytes):
                    yield _row(path, number, line, len(line), *last)
                else:
                    yield _row(path, number, None, line.size, *last)
    elif found.size > INLINE_BYTES:
        found.stream.close()
        yield _row(path, 0, None, found.size, *last)
    else:
        yield _row(path, 0, found.read(), found.size, *last)


def _row(path: str, line: int, body: bytes | None, size: int, *last: Any) -> tuple[Any, ...]:
    priority, etag, *rest = last
    return (clean(path), line, body, priority, size, etag, *rest)


def letter_rows(queue: Queue, key: str, listed_at: datetime | None = None) -> Iterator[tuple[Any, ...]]:
    """A dead letter as a row; nothing if it is gone, or if it is a younger one than was listed."""
    path = queue.keys.path_under("dead", key)
    found = queue.store.open(key) if path else None
    if path is None or found is None:
        return
    # In whole seconds, as a GET tells it.
    if listed_at and found.modified_at.replace(microsecond=0) > listed_at:
        found.stream.close()
        return
    with found.stream as stream:
        body = stream.read() if found.size <= INLINE_BYTES else None
    facts = dead_facts(found.metadata)
    yield (
        clean(path),
        _number(facts.get("lines")),
        body,
        priority_of(path),
        found.size,
        found.etag,
        _instant(facts.get("enqueued-at")),
        _metadata(found.metadata),
        _instant(facts.get("died-at")) or found.modified_at,
        clean(facts.get("error-type", "unknown")),
        clean(facts.get("error", "")),
        _number(facts.get("attempts")),
        clean(facts.get("worker", "")),
    )


def _number(text: str | None) -> int:
    """Metadata is anyone's to write: what is no number, or too large for one, is 0."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 18 else 0


def _instant(text: str | None) -> datetime | None:
    try:
        return parse_instant(text) if text else None
    except (ValueError, OverflowError):
        return None


def _metadata(metadata: Any) -> list[tuple[str, str]]:
    """The producer's own, without what s3queue noted of a death."""
    decoded = decode_metadata(metadata)
    return [(clean(name), clean(text)) for name, text in decoded.items() if not name.startswith(DEAD_METADATA)]
