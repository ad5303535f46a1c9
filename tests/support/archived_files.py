"""Files of the archive without Spark: rows written as an archive job writes them, and the old layout's log."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from s3queue.archive.old_log import OldCommit
from s3queue.archive.parts import Part
from s3queue.keys import Keys
from support.finished_messages import NOON

if TYPE_CHECKING:
    from s3queue.store import ObjectStore

DAY = "2026-11-16"


def put_part(
    store: ObjectStore, queue: str, names: Sequence[str], *, version: int = 1, day: str = DAY, **more: Any
) -> Part:
    """A file with a row for each name: its path and the record that it stands for; `more`: columns, one value each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {
        "path": [f"messages/{name}" for name in names],
        "outcome": ["completed"] * len(names),
        "messages": pa.array([1] * len(names), pa.int64()),
        "finished_at": pa.array([NOON] * len(names), pa.timestamp("us", "UTC")),
        "dead_by_type": pa.array([[("Late", 1)]] * len(names), pa.map_(pa.string(), pa.int64())),
        "attempts": pa.array([[{"number": 1, "worker": "w"}]] * len(names)),
        "record_key": [f"{queue}/records/messages/{name}" for name in names],
        "record_etag": [f"etag-{name}" for name in names],
    }
    columns |= {name: [value] * len(names) for name, value in more.items()}
    body = io.BytesIO()
    pq.write_table(pa.table(columns), body, compression="zstd")
    digest = "".join(f"{ord(letter):02x}" for letter in "".join(names))[:32]
    key = Keys(queue).archive_part(day, version, digest)
    store.put(key, body.getvalue())
    return Part(key=key, queue=queue, day=day, rows=len(names), bytes=len(body.getvalue()))


def put_old_commit(
    store: ObjectStore, queue: str, version: int, parts: Sequence[Part], *, committed_at: datetime = NOON
) -> str:
    """A commit as the archive wrote it before it was a Delta table."""
    key = Keys(queue).archive_commit(version)
    commit = OldCommit(version=version, parts=tuple(parts), committed_at=committed_at)
    store.put(key, commit.to_bytes(f"nonce-{version}"))
    return key
