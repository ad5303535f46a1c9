"""What the archive does not hold yet: records that wait for the next run, and expire if none comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from s3queue.keys import Keys
from s3queue.store import ObjectStore, listing

from .parts import Part, part_batches
from .table import Snapshot

#: S3 tells times in whole seconds, and its machines need not agree to the second.
SLACK = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Objects under `records/` that are in no file of the archive; garbage is among them."""

    objects: int
    bytes: int
    oldest_at: datetime | None


def count_waiting(store: ObjectStore, seen: Snapshot | None, queue: str) -> Waiting:
    """A LIST for each 1,000 records, and a GET for each file of the archive that may hold some of them.

    Raises:
        CorruptState: a file of the archive cannot be read.
    """
    import pyarrow as pa

    pages = listing(store, Keys(queue).prefix("records"))
    found = {entry.key: entry for page in pages for entry in page.objects}
    if found and seen:
        oldest = min(entry.modified_at for entry in found.values())
        schema = pa.schema([("record_key", pa.string()), ("record_etag", pa.string())])
        for part in written_since(store, queue, seen.parts(queue), oldest):
            for batch in part_batches(store, part.key, part.rows, {}, schema):
                pairs = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                for key, etag in pairs:
                    if key in found and found[key].etag == etag:
                        del found[key]
    return Waiting(
        len(found),
        sum(entry.size for entry in found.values()),
        min((entry.modified_at for entry in found.values()), default=None),
    )


def written_since(store: ObjectStore, queue: str, parts: Sequence[Part], since: datetime | None) -> list[Part]:
    """The parts without those that S3 stored before `since`: they cannot hold what was written later.

    By S3's clock, which dates records, too, and not by the times in the table, which come from whoever wrote it. A
    compaction makes old rows part of a new file, never the other way round.
    """
    if since is None or not parts:
        return list(parts)
    pages = listing(store, Keys(queue).archive_days)
    old = {entry.key for page in pages for entry in page.objects if entry.modified_at < since - SLACK}
    return [part for part in parts if part.key not in old]
