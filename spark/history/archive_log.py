"""The archive's log: which Parquet files count. A file that no commit names is none.

`archive/queue=…/_log/0000000001.json` and so on, each written If-None-Match: whoever writes a number first has made
the next commit, and everyone else reads it before trying again. A crash leaves files that nobody trusts, never rows
twice; the next commit's run deletes them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from s3queue.encoding import (
    FORMAT,
    NONSENSE,
    as_list,
    as_name,
    as_object,
    as_text,
    as_whole,
    cut,
    dump,
    format_instant,
    load,
    parse_instant,
)
from s3queue.errors import CorruptState, NewerFormat
from s3queue.keys import Keys
from s3queue.store import ObjectInfo, ObjectStore, listing, put_surely
from spark.rows.record_rows import FILE_SCHEMA, RECORD_SCHEMA, SCHEMA_VERSION
from spark.rows.schemas import columns
from spark.storage.scan import THREADS, Batches, in_threads, rows_of, spread

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spark.storage.bucket import Bucket

#: S3 tells times in whole seconds, and its machines need not agree to the second.
SLACK = timedelta(minutes=1)
#: Larger commits are not read: a run that adds a hundred thousand files would make one.
COMMIT_BYTES = 32 * 1024 * 1024
#: Larger files are not read: a run cuts its own at 256 MiB, before they are packed.
PART_BYTES = 512 * 1024 * 1024
_ASKED = columns(key="string", queue="string", day="string", rows="bigint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One Parquet file of the archive."""

    key: str
    queue: str
    day: str
    rows: int
    bytes: int

    @classmethod
    def from_json(cls, found: Any) -> Part:
        as_object(found)
        return cls(
            key=as_name(found["key"]),
            queue=as_text(found["queue"]),
            day=as_text(found["day"]),
            rows=as_whole(found["rows"]),
            bytes=as_whole(found["bytes"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one run added."""

    version: int
    schema: int
    parts: tuple[Part, ...]
    committed_at: datetime

    def to_bytes(self, nonce: str) -> bytes:
        return dump(
            {
                "schema": self.schema,
                "version": self.version,
                "committed_at": format_instant(self.committed_at),
                "parts": [asdict(part) for part in self.parts],
                "nonce": nonce,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Commit:
        """Raises CorruptState, naming the key, if these bytes are no commit; NewerFormat if this side is too old."""
        found: Mapping[str, Any] = load(body, key)
        try:
            if found["v"] > FORMAT or as_whole(found["schema"]) > SCHEMA_VERSION:
                raise NewerFormat(f"{key} has schema {found['schema']}, this side knows {SCHEMA_VERSION}: upgrade it")
            return cls(
                version=as_whole(found["version"]),
                schema=as_whole(found["schema"]),
                parts=tuple(Part.from_json(part) for part in as_list(found.get("parts", []))),
                committed_at=parse_instant(found["committed_at"]),
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a commit of the archive: {cut(error)}") from None


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one queue's archive."""

    store: ObjectStore
    queue: str

    @property
    def keys(self) -> Keys:
        return Keys(self.queue)

    def entries(self) -> list[ObjectInfo]:
        pages = listing(self.store, self.keys.archive_log)
        return [entry for page in pages for entry in page.objects if self._version(entry) is not None]

    def read(self, entries: Sequence[ObjectInfo], *, since: datetime | None = None) -> list[Commit]:
        """The commits of the entries; `since` leaves out what was written before it, by S3's clock.

        Raises:
            CorruptState, NewerFormat: the archive cannot be known; nothing should be added to it or told of it.
        """
        wanted = [entry for entry in entries if since is None or entry.modified_at >= since - SLACK]
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(self._read, wanted))

    def next_version(self, entries: Sequence[ObjectInfo]) -> int:
        return max((self._version(entry) or 0 for entry in entries), default=0) + 1

    def commit(self, commit: Commit, nonce: str) -> None:
        """Raises Conflict if another run has made this commit: read it, and look again at what is left to do."""
        put_surely(self.store, self.keys.archive_commit(commit.version), commit.to_bytes(nonce), if_absent=True)

    def remove_orphans(self) -> int:
        """Delete the files that no commit names and none ever will; how many there were.

        A file's name says for which commit it was written, and a run that loses that commit writes its files anew for
        the next. So once commit 7 is made, a file for it that it does not name is nobody's, and this can race with no
        run, however slow; files for a commit that is still to come are left alone.
        """
        named = {commit.version: {part.key for part in commit.parts} for commit in self.read(self.entries())}
        orphans = [
            entry.key
            for page in listing(self.store, self.keys.archive_days)
            for entry in page.objects
            if (version := self.keys.archive_part_version(entry.key)) in named and entry.key not in named[version]
        ]
        return sum(1 for _ in in_threads(self.store.delete, orphans))

    def _read(self, entry: ObjectInfo) -> Commit:
        found = self.store.open(entry.key)
        if found is None:
            raise CorruptState(f"{entry.key} was deleted: the archive cannot be read without it")
        return Commit.from_bytes(found.read(COMMIT_BYTES), entry.key)

    def _version(self, entry: ObjectInfo) -> int | None:
        digits = entry.key.removeprefix(self.keys.archive_log).removesuffix(".json")
        return int(digits) if digits.isascii() and digits.isdigit() else None


def read_parts(
    spark: SparkSession, bucket: Bucket, parts: Sequence[Part], columns: Sequence[str] | None = None
) -> DataFrame:
    """The rows of committed files; read by Python in the executors, like everything in the bucket.

    A file's row count must be what its commit says. Columns that an older file lacks are null.
    """
    from pyspark.sql.types import StructType

    names = list(columns or RECORD_SCHEMA.names)
    schema = StructType([RECORD_SCHEMA[name] for name in names])

    def per_partition(batches: Batches) -> Batches:
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema)
        for key, queue, day, rows in rows_of(batches):
            yield from _rows(bucket.store(), key, rows, {"queue": queue, "day": day}, arrow)

    asked = [(part.key, part.queue, part.day, part.rows) for part in parts]
    return spread(spark, asked, _ASKED).mapInArrow(per_partition, schema)


def _rows(
    store: ObjectStore, key: str, rows: int, constants: Mapping[str, str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = store.open(key)
    if found is None:
        raise CorruptState(f"{key} is missing, but the archive's log names it")
    body = found.read(PART_BYTES)
    try:
        file = pq.ParquetFile(io.BytesIO(body))
        if file.metadata.num_rows != rows:
            raise CorruptState(f"{key} has {file.metadata.num_rows} rows; the archive's log says {rows}")
        stored = [name for name in schema.names if name in FILE_SCHEMA.names and name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=10_000, columns=stored):
            arrays = []
            for field in schema:
                if field.name in stored:
                    arrays.append(batch.column(field.name).cast(field.type))
                else:
                    value = constants.get(field.name)
                    arrays.append(pa.array([value] * batch.num_rows, field.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, OSError, *NONSENSE) as error:
        raise CorruptState(f"{key} is not a part of the archive: {cut(error)}") from None
