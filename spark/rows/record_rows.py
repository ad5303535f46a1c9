"""A record as a row: the one schema that the archive, the statistics and the data source share."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING, Any

from pyspark.sql import types

from s3queue.archive.columns import FILE_COLUMNS
from s3queue.documents.partition import read_journal
from s3queue.documents.record import RECORD_BYTES, RECORD_FORMAT, Attempt, Record
from s3queue.encoding import load
from s3queue.errors import Conflict, CorruptState, NewerFormat, Unreadable
from s3queue.keys import Keys
from s3queue.paths import PARTITION, due_of, is_batch, partition_of, priority_of

from .schemas import columns, joined

if TYPE_CHECKING:
    from s3queue.store import Object, ObjectStore

#: What is true of a whole file is not repeated in it: `queue` and `day` are parts of its key.
FILE_SCHEMA = types.StructType.fromJson(FILE_COLUMNS)
RECORD_SCHEMA = joined(columns(queue="string", day="string"), FILE_SCHEMA)
#: A record, or why there is none: every object is one row, whatever is in it.
READ_SCHEMA = joined(RECORD_SCHEMA, columns(problem="string"))
#: No count of anything here is larger; sums of millions of them still fit a column.
_LARGEST = 10**13
#: Made once: with options, json.dumps makes a new encoder for every call.
_encode = json.JSONEncoder(ensure_ascii=False).encode
#: Dead lines beyond those that a record lists.
UNLISTED = "unlisted"


def read_record(store: ObjectStore, queue: str, key: str, etag: str) -> list[tuple[Any, ...]]:
    """Rows of READ_SCHEMA: one, or as many as a journal has records. None if it is no longer the object that was
    listed; without an ETag, it is whatever is there.

    All rows of a journal, or its problem alone: what is archived is an object, whole.
    """
    try:
        found = store.open(key, if_match=etag or None)
        if found is None:
            return []
        etag = found.etag
    except Conflict:
        return []
    except Unreadable as error:
        return [_problem(queue, key, etag, f"Unreadable: {error}")]
    try:
        if key.startswith(Keys(queue).prefix("records") + PARTITION):
            return [(*row, None) for row in journal_rows(queue, key, etag, found)]
        body = found.read(RECORD_BYTES)
        return [(*record_row(queue, key, etag, body), None)]
    except NewerFormat as error:
        return [_problem(queue, key, etag, f"NewerFormat: {error}")]
    except (CorruptState, ValueError) as error:
        return [_problem(queue, key, etag, f"{type(error).__name__}: {error}")]


def journal_rows(queue: str, key: str, etag: str, found: Object) -> list[tuple[Any, ...]]:
    """A row of RECORD_SCHEMA for each message of a partition that a journal names. Raises as `record_row`."""
    partition = key.removeprefix(Keys(queue).prefix("records")).partition("/")[0]
    records = read_journal(found)
    if not records or any(partition_of(record.path) != partition for record in records):
        raise CorruptState(f"{key} is not a journal of the partition {partition}")
    return [_row(queue, key, etag, record) for record in records]


def record_row(queue: str, key: str, etag: str, body: bytes) -> tuple[Any, ...]:
    """One row of RECORD_SCHEMA.

    Raises:
        CorruptState: not a record. NewerFormat: a newer version wrote it, and only that one should archive it.
        ValueError: a number that no column can hold.
    """
    path = Keys(queue).path_under("records", key)
    document = load(body, key)
    record = Record.from_json(document, key)
    if document["v"] > RECORD_FORMAT:
        raise NewerFormat(f"{key} was written by a newer version: upgrade this side")
    if path is None or path != record.path:
        raise CorruptState(f"{key} is the record of {record.path!r}")
    return _row(queue, key, etag, record)


def _row(queue: str, key: str, etag: str, record: Record) -> tuple[Any, ...]:
    path = record.path
    messages, completed, dead = _counts(record)
    return (
        queue,
        record.finished_at.astimezone(UTC).date().isoformat(),
        clean(path),
        record.outcome,
        priority_of(path),
        is_batch(path),
        messages,
        completed,
        dead,
        _whole(record.size),
        record.generation.put_at,
        due_of(path),
        record.finished_at,
        _whole(record.attempt),
        clean(record.worker),
        [_attempt(attempt) for attempt in record.attempts],
        clean(record.failure.type) if record.failure else None,
        clean(record.failure.message) if record.failure else None,
        clean(record.failure.details) if record.failure else None,
        list(_dead_by_type(record, dead).items()) if dead else [],
        None if record.result is None else clean(_encode(record.result)),
        clean(record.result_error) or None,
        clean(_encode(record.lines)) if record.lines else None,
        record.generation.etag,
        clean(key),
        etag,
        clean(Keys(queue).done(path)) if record.keeps_payload else None,
    )


def _attempt(attempt: Attempt) -> dict[str, Any]:
    failure = attempt.failure
    return {
        "number": _whole(attempt.number),
        "worker": clean(attempt.worker),
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "error_type": clean(failure.type) if failure else None,
        "error": clean(failure.message) if failure else None,
    }


def _counts(record: Record) -> tuple[int, int, int]:
    """Messages, completed, dead: a batch counts its lines, as far as they are known."""
    if not record.lines:
        return 1, int(record.outcome == "completed"), int(record.outcome == "dead")
    completed, dead = (_whole(record.lines.get(name) or 0) for name in ("completed", "dead"))
    total = _whole(record.lines.get("total") or 0)
    # Lines that never came to an end died with their batch.
    dead = max(dead, total - completed) if record.outcome == "dead" else dead
    # None of a cancelled batch: it has no dead letters.
    dead = 0 if record.outcome == "cancelled" else dead
    return max(completed + dead, total), completed, dead


def _dead_by_type(record: Record, dead: int) -> Counter[str]:
    if not record.lines:
        return Counter({clean(record.failure.type) if record.failure else UNLISTED: dead})
    listed = record.lines.get("dead_lines")
    counted = Counter(clean(str(line[1])) for line in _pairs(listed))
    if dead > counted.total():
        # What a batch died of as a whole took the lines that were not done yet along.
        rest = clean(record.failure.type) if record.failure else UNLISTED
        counted[rest] += dead - counted.total()
    return counted


def _pairs(listed: Any) -> Iterator[list[Any]]:
    for line in listed if isinstance(listed, list) else ():
        if isinstance(line, list) and len(line) > 1:
            yield line


def _whole(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _LARGEST:
        raise ValueError(f"{str(number)[:100]!r} is not a count")
    return number


def clean(text: str) -> str:
    """Text that UTF-8 can hold: JSON may carry half a surrogate pair, Arrow may not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _problem(queue: str, key: str, etag: str, problem: str) -> tuple[Any, ...]:
    known = {"queue": queue, "record_key": clean(key), "record_etag": etag, "problem": clean(problem)}
    return tuple(known.get(name) for name in READ_SCHEMA.names)
