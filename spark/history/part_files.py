"""Records become the archive's Parquet files: read by many tasks, written by few, all of it in the executors.

In between, Spark moves them in packs: an Arrow batch of one day as bytes. Java sees a few rows per task instead of one
per record, each with its list of attempts.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from s3queue.archive.columns import SCHEMA_VERSION
from s3queue.keys import Keys
from spark.rows.record_rows import FILE_SCHEMA, READ_SCHEMA, read_record
from spark.rows.schemas import columns
from spark.storage.scan import Batches, batches_of, in_threads, rows_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from spark.storage.bucket import Bucket

#: A file's bytes in memory, at most.
BYTES_PER_PART = 256 * 1024 * 1024
#: Objects that one task GETs, at least: each task has its requests in flight side by side.
OBJECTS_PER_TASK = 250
#: Tasks per core, at most.
TASKS_PER_CORE = 16
#: Examples of objects that are no records, per task and in the report.
EXAMPLES = 5
#: Records of one piece of a day; or, without a day, how many objects are none.
PACKED = columns(day="string", piece="int", first="string", problems="bigint", examples="strings", body="binary")
WRITTEN = columns(key="string", day="string", rows="bigint", bytes="bigint", problems="bigint", examples="strings")


def in_tasks(waiting: DataFrame, count: int) -> DataFrame:
    """Keys in as many partitions as make sense for that many GETs.

    Said outright: Spark's planner judges by bytes, and thousands of keys are few. By key, so that an object has the
    same task if a lost executor makes Spark list again.
    """
    most = TASKS_PER_CORE * waiting.sparkSession.sparkContext.defaultParallelism
    return waiting.repartition(max(1, min(-(-count // OBJECTS_PER_TASK), most)), "key")


def packed_records(listed: DataFrame, bucket: Bucket, queue: str, pieces: Mapping[str, int]) -> DataFrame:
    """The records that were listed, as PACKED. `pieces`: into how many a day is split; one if it is not named.

    One that was replaced or has vanished since the LIST is left out: whoever lists next sees what is there then. The
    piece of a record follows from its key, so a task that runs again sends each record where it was sent before.
    """
    split = {day: count for day, count in pieces.items() if count > 1}

    def per_partition(batches: Batches) -> Batches:
        store = bucket.store()
        asked = rows_of(batch.select(["key", "etag"]) for batch in batches)
        found = in_threads(lambda entry: read_record(store, queue, *entry), asked)
        for batch in batches_of((row for rows in found for row in rows), READ_SCHEMA):
            yield from batches_of(_packs(batch, split), PACKED)

    return listed.sortWithinPartitions("key").mapInArrow(per_partition, PACKED)


def _packs(batch: pa.RecordBatch, split: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    numbers: dict[tuple[str | None, int], list[int]] = {}
    days, keys = (batch.column(name).to_pylist() for name in ("day", "record_key"))
    for number, (day, key) in enumerate(zip(days, keys, strict=True)):
        piece = zlib.crc32(key.encode()) % split[day] if day in split else 0
        numbers.setdefault((day, piece), []).append(number)
    for (day, piece), chosen in numbers.items():
        rows = batch if len(chosen) == batch.num_rows else batch.take(chosen)
        first = keys[chosen[0]]
        if day is None:
            yield None, piece, first, len(chosen), rows.column("problem").slice(0, EXAMPLES).to_pylist(), None
        else:
            yield day, piece, first, 0, [], rows.select(FILE_SCHEMA.names).serialize().to_pybytes()


def write_parts(
    packed: DataFrame, bucket: Bucket, queue: str, version: int, rows_per_part: int, tasks: int
) -> DataFrame:
    """Write Parquet files from the executors, as WRITTEN: a row per file, and one per task for what could not be read.

    A task that runs twice writes the same files again: their names are digests of what is in them. Only what the driver
    collects is committed.
    """
    keys = Keys(queue)

    def per_partition(batches: Batches) -> Batches:
        yield from batches_of(_write(bucket, keys, version, batches, rows_per_part), WRITTEN)

    # Shuffled after the reading: many tasks wait for GETs, few files come out.
    most = TASKS_PER_CORE * packed.sparkSession.sparkContext.defaultParallelism
    spread = packed.repartition(max(1, min(tasks, most)), "day", "piece")
    return spread.sortWithinPartitions("day", "piece", "first").mapInArrow(per_partition, WRITTEN)


def _write(bucket: Bucket, keys: Keys, version: int, batches: Batches, rows_per_part: int) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(FILE_SCHEMA)
    problems, examples = 0, list[str]()
    part: list[pa.RecordBatch] = []
    size = count = 0
    before = ""
    for day, _, _, unread, some, body in rows_of(batches):
        if day is None:
            problems += unread
            examples += some
            continue
        pack = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        for start in range(0, pack.num_rows, rows_per_part):
            rows = pack.slice(start, rows_per_part)
            if part and (day != before or count + rows.num_rows > rows_per_part or size >= BYTES_PER_PART):
                yield _put(bucket, keys, version, before, part)
                part, size, count = [], 0, 0
            part.append(rows)
            size, count, before = size + rows.nbytes, count + rows.num_rows, day
    if part:
        yield _put(bucket, keys, version, before, part)
    if problems:
        yield None, None, 0, 0, problems, examples[:EXAMPLES]


def _put(bucket: Bucket, keys: Keys, version: int, day: str, part: list[pa.RecordBatch]) -> tuple[Any, ...]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # Sorted, so that equal rows make an equal file, and a reader of one key can pass over most of it.
    table = pa.Table.from_batches(part).sort_by([("record_key", "ascending"), ("path", "ascending")])
    # With the path: the rows of one journal may fill several files.
    named = pc.binary_join_element_wise(table["record_key"], table["record_etag"], table["path"], "\n")
    digest = hashlib.sha256("\n".join(named.to_pylist()).encode())
    metadata = {"s3queue.schema": str(SCHEMA_VERSION)}
    target = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), target, compression="zstd")
    key = keys.archive_part(day, version, digest.hexdigest()[:32])
    bucket.store().put(key, target.getvalue(), content_type="application/vnd.apache.parquet")
    return key, day, table.num_rows, target.tell(), 0, []
