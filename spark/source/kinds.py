"""Kinds: what can be read of a queue, its columns, and what of a row is known without reading the object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql.types import StructType

from s3queue.errors import InvalidRequest
from s3queue.keys import Keys
from s3queue.paths import due_of, is_batch, priority_of
from s3queue.queue import Queue
from s3queue.store import ObjectInfo
from spark.rows.message_rows import LETTER_SCHEMA, MESSAGE_SCHEMA, letter_rows, message_rows
from spark.rows.record_rows import RECORD_SCHEMA, clean, read_record
from spark.storage.bucket import Bucket

Rows = Iterator[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a LIST told of it; without an ETag, only its key is known."""

    key: str
    etag: str = ""
    modified_at: datetime | None = None
    size: int = 0

    @classmethod
    def of(cls, entry: ObjectInfo) -> Listed:
        return cls(entry.key, entry.etag, entry.modified_at, entry.size)


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of object is read as."""

    schema: StructType
    prefixes: tuple[str, ...]
    rows: Callable[[Queue, Listed], Rows]
    #: The columns that a LIST tells; None: the object has to be read.
    told: Callable[[Queue, Listed], dict[str, Any] | None] = lambda _queue, _entry: None
    #: Their names.
    listed: frozenset[str] = frozenset()


def _records(queue: Queue, entry: Listed) -> Rows:
    for row in read_record(queue.store, queue.name, entry.key, entry.etag):
        if row[-1] is None:
            yield row[:-1]


def _told_of_message(queue: Queue, entry: Listed) -> dict[str, Any] | None:
    path = queue.keys.path(entry.key)
    # An empty object whose key ends with a slash is a folder, or a message: a GET tells.
    if path is None or is_batch(path) or entry.modified_at is None or entry.key.endswith("/"):
        return None
    return {
        "path": clean(path),
        "line": 0,
        "priority": priority_of(path),
        "size": entry.size,
        "etag": entry.etag,
        # In whole seconds, as a GET tells it.
        "enqueued_at": entry.modified_at.replace(microsecond=0),
        "due_at": due_of(path),
    }


KINDS = {
    "messages": Kind(
        MESSAGE_SCHEMA,
        ("messages", "delayed"),
        lambda queue, entry: message_rows(queue, entry.key),
        _told_of_message,
        frozenset({"path", "line", "priority", "size", "etag", "enqueued_at", "due_at"}),
    ),
    "records": Kind(RECORD_SCHEMA, ("records",), _records),
    # Files of a table, not objects of the queue: see ArchiveReader.
    "archive": Kind(RECORD_SCHEMA, (), _records),
    "dead": Kind(LETTER_SCHEMA, ("dead",), lambda queue, entry: letter_rows(queue, entry.key, entry.modified_at)),
}


def kind_of(options: Mapping[str, str]) -> tuple[str, Kind]:
    """Raises InvalidRequest, which names those that there are."""
    name = options.get("kind", "messages")
    if name not in KINDS:
        raise InvalidRequest(f"option kind: {', '.join(KINDS)}, not {name!r}")
    return name, KINDS[name]


def columns_of(options: Mapping[str, str], kind: Kind) -> StructType:
    """The columns that the option names, in its order; all of them without it."""
    wanted = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
    if not wanted:
        return kind.schema
    unknown = [name for name in wanted if name not in kind.schema.names]
    if unknown or len(set(wanted)) < len(wanted):
        raise InvalidRequest(f"option columns: some of {', '.join(kind.schema.names)}, each once, not {wanted}")
    return StructType([kind.schema[name] for name in wanted])


def check_schema(schema: StructType, kind: Kind) -> None:
    """Raises InvalidRequest if a column of it is none of this kind."""
    known = {field.name: field.dataType for field in kind.schema}
    if not len(schema) or any(known.get(field.name) != field.dataType for field in schema):
        raise InvalidRequest(
            "the columns follow from the kind: leave the schema out, or give a part of it, as the option columns does"
        )


def is_told(kind: Kind, columns: Sequence[str]) -> bool:
    """Whether rows of these columns need no GET, except those of batches."""
    return kind.listed.issuperset(columns)


@dataclass(frozen=True, slots=True)
class Target:
    """Which queue of which bucket."""

    bucket: Bucket
    queue: str

    @classmethod
    def of(cls, options: Any) -> Target:
        """Raises InvalidRequest, naming the option, if they name no queue."""
        parts = urlsplit(options.get("url", ""))
        queue = parts.path.strip("/") or options.get("queue", "")
        if parts.scheme != "s3" or not parts.netloc or not queue:
            raise InvalidRequest("option url: s3://bucket/queue, or s3://bucket and an option queue")
        Keys(queue)
        return cls(Bucket(parts.netloc, options.get("endpoint_url"), options.get("region")), queue)

    @property
    def keys(self) -> Keys:
        return Keys(self.queue)

    def connect(self) -> Queue:
        return Queue(store=self.bucket.store(), name=self.queue)


def whole(options: Mapping[str, str], name: str, default: int, *, least: int, most: int) -> int:
    """An option that is a whole number. Raises InvalidRequest, which names it."""
    text = options.get(name, str(default))
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidRequest(f"option {name}: a whole number from {least} to {most}, not {text!r}")
    return number


def flag(options: Mapping[str, str], name: str) -> bool:
    """An option that is `true` or `false`, which it is if it is left out. Raises InvalidRequest, which names it."""
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidRequest(f"option {name}: true or false, not {text!r}")
    return text == "true"
