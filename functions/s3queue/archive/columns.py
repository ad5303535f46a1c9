"""The columns of the archive, in the words that Delta Lake and Spark share. Columns are added, never removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Raised when a column changes its meaning; a new column alone needs no new version.
SCHEMA_VERSION = 1
#: The table's partitions: parts of a file's key, not columns inside it.
PARTITIONED_BY = ("queue", "day")


def struct(**named: str | Mapping[str, Any]) -> dict[str, Any]:
    """A type with these fields; each may be null."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in named.items()]
    return {"type": "struct", "fields": fields}


_ATTEMPT = struct(
    number="long", worker="string", started_at="timestamp", ended_at="timestamp", error_type="string", error="string"
)
#: What a Parquet file holds.
FILE_COLUMNS = struct(
    path="string",
    outcome="string",
    priority="integer",
    is_batch="boolean",
    #: A batch counts its lines, any other message is one.
    messages="long",
    completed="long",
    dead="long",
    size="long",
    enqueued_at="timestamp",
    due_at="timestamp",
    finished_at="timestamp",
    attempt="long",
    worker="string",
    attempts={"type": "array", "elementType": _ATTEMPT, "containsNull": True},
    error_type="string",
    error="string",
    error_details="string",
    dead_by_type={"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
    #: JSON, as the handler returned it.
    result="string",
    result_error="string",
    #: JSON: a batch's summary of its lines.
    lines="string",
    message_etag="string",
    #: Which object this row is: the same pair is never archived twice.
    record_key="string",
    record_etag="string",
    #: Where the payload of a completed message lies, as long as its record does; null if it was not kept.
    payload_key="string",
)
#: What a reader of the table sees.
TABLE_COLUMNS = struct(queue="string", day="string")
TABLE_COLUMNS["fields"] += FILE_COLUMNS["fields"]
