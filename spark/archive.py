"""Archive: records become rows of a Delta Lake table, partitioned by queue and day, each exactly once.

    archive/_delta_log/…                                                   which files count (s3queue/archive/table.py)
    archive/queue=emails/day=2026-11-16/part-0000000007-{digest}.parquet   digest: of the records in it

A record is one object: its key and ETag (every write of a record has a nonce, so the pair names one outcome of one
generation). A journal of a partition is one object, too, and a row for each of its messages. What is listed and not in
a committed file is read, written and committed; a rerun finds nothing left. The small objects are left to their
lifecycle rule, so the archive must run more often than records are retained. Files of runs that died or lost are in no
version of the table: no reader sees them, and `vacuum` deletes them after a week.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from s3queue.archive.columns import SCHEMA_VERSION
from s3queue.archive.old_log import convert
from s3queue.archive.parts import Part
from s3queue.archive.table import KEPT_DAYS, Snapshot
from s3queue.archive.upkeep import compact, vacuum
from s3queue.archive.waiting import written_since
from s3queue.dashboard.overview import queue_names
from s3queue.errors import Conflict, QueueError, Unavailable
from s3queue.keys import Keys
from spark.history.archived import read_parts
from spark.history.lateness import LATE_AFTER, left_behind, publish_age, warn_if_late
from spark.rows.record_rows import FILE_SCHEMA, read_records
from spark.rows.schemas import columns
from spark.storage.bucket import Bucket
from spark.storage.scan import Batches, Extent, batches_of, listed, survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("spark.archive")
#: A file's rows at most, and its bytes in memory: whatever comes first.
ROWS_PER_PART = 200_000
BYTES_PER_PART = 256 * 1024 * 1024
#: Objects that one task GETs, at least: each task has its requests in flight side by side.
OBJECTS_PER_TASK = 250
#: Tasks per core, at most.
TASKS_PER_CORE = 16
#: Commits that other runs may get in before ours.
TRIES = 5
#: Examples of objects that are no records, per task and in the report.
EXAMPLES = 5
WRITTEN = columns(key="string", day="string", rows="bigint", bytes="bigint", problems="bigint", examples="strings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run did for one queue."""

    queue: str
    version: int | None = None
    records: int = 0
    parts: tuple[Part, ...] = ()
    #: Objects that are no records, or of a newer format: left where they are, and looked at again by the next run.
    problems: int = 0
    examples: tuple[str, ...] = field(default=())
    #: Commits of the old layout that became commits of the table.
    converted: int = 0
    #: When S3 stored the oldest record that was not archived before this run; None: none was.
    oldest_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much is not archived yet, by the day on which S3 stored it: nearly always that on which it was finished."""

    objects: Mapping[str, int]
    bytes: Mapping[str, int]
    oldest_at: datetime | None = None

    @property
    def total(self) -> int:
        return sum(self.objects.values())

    def pieces(self, rows_per_part: int) -> dict[str, int]:
        """In how many files a day is written: one, unless it is more than one file should hold.

        A wrong guess of the day tears a small one, so nothing is guessed as long as everything fits into one file.
        """
        if self.total <= rows_per_part and sum(self.bytes.values()) <= BYTES_PER_PART:
            return dict.fromkeys(self.objects, 1)
        return {
            day: max(1, -(-count // rows_per_part), -(-self.bytes[day] // BYTES_PER_PART))
            for day, count in self.objects.items()
        }


def archive(
    spark: SparkSession,
    bucket: Bucket,
    queue: str,
    *,
    now: datetime,
    rows_per_part: int = ROWS_PER_PART,
) -> Report:
    """Archive what is not archived yet. Safe to repeat, to kill at any time, and to run twice at once.

    An archive of the old layout becomes part of the table first.

    Raises:
        Conflict: other runs were always faster; nothing of this one counts.
        Unavailable: the last commit had no clear answer; the next run finds out.
        CorruptState, NewerFormat: the table cannot be read; nothing was added.
    """
    store, table = bucket.store(), bucket.archive()
    converted = convert(store, table, queue)
    failure: QueueError | None = None
    for _ in range(TRIES):
        # The table first: whatever is committed after this reading makes our own commit lose.
        seen = table.prepared()
        extent = survey(store, Keys(queue).prefix("records"))
        if not extent.objects:
            return Report(queue=queue, converted=converted)
        # Listed once: it is counted, and then read.
        waiting = unarchived(spark, bucket, seen, queue, extent).persist()
        try:
            found = measured(waiting)
            written = _written(waiting, found, bucket, queue, seen.commits(queue) + 1, rows_per_part)
        finally:
            waiting.unpersist()
        report = replace(_report(queue, written), converted=converted, oldest_at=found.oldest_at)
        if not report.parts:
            return report
        try:
            table.commit(seen, queue, report.parts, committed_at=now)
        except (Conflict, Unavailable) as error:
            # It may even be ours, if its answer was lost: then the next look finds nothing left.
            _log.info("commit lost or unknown, reading again: %s: %s", queue, error)
            failure = error
            continue
        return replace(report, version=seen.commits(queue) + 1)
    if isinstance(failure, Unavailable):
        raise failure
    raise Conflict(f"{queue}: {TRIES} other runs were faster; run one archive job at a time")


def unarchived(spark: SparkSession, bucket: Bucket, seen: Snapshot | None, queue: str, extent: Extent) -> DataFrame:
    """The listed records of an extent that the table does not hold.

    A file older than the oldest record that is still there cannot hold any of them.
    """
    parts = seen.parts(queue) if seen else []
    parts = written_since(bucket.store(), queue, parts, extent.oldest_at)
    found = listed(spark, bucket, extent.ranges)
    return not_in(found, read_parts(spark, bucket, parts, ["record_key", "record_etag"])) if parts else found


def not_in(listed: DataFrame, archived: DataFrame) -> DataFrame:
    """Listed objects without those that are archived: the same key *and* the same ETag."""
    same = (listed["key"] == archived["record_key"]) & (listed["etag"] == archived["record_etag"])
    return listed.join(archived, same, "left_anti")


def _written(
    waiting: DataFrame, found: Waiting, bucket: Bucket, queue: str, version: int, rows_per_part: int
) -> Sequence[Any]:
    """Read what waits and write it; a row per file, as WRITTEN."""
    if not found.total:
        return []
    records = read_records(in_tasks(waiting, found.total), bucket, queue)
    pieces = found.pieces(rows_per_part)
    return write_parts(records, bucket, queue, version, rows_per_part, pieces).collect()


def measured(waiting: DataFrame) -> Waiting:
    from pyspark.sql import functions as sf

    day = sf.date_format("modified_at", "yyyy-MM-dd").alias("day")
    counted = (sf.count("*").alias("objects"), sf.sum("size").alias("bytes"), sf.min("modified_at").alias("oldest_at"))
    rows = waiting.groupBy(day).agg(*counted).collect()
    # Spark hands out naive local times.
    oldest_at = min((row.oldest_at.astimezone(UTC) for row in rows), default=None)
    return Waiting({row.day: row.objects for row in rows}, {row.day: row.bytes for row in rows}, oldest_at)


def in_tasks(waiting: DataFrame, count: int) -> DataFrame:
    """Keys in as many partitions as make sense for that many GETs.

    Said outright: Spark's planner judges by bytes, and thousands of keys are few. By key, so that an object has the
    same task if a lost executor makes Spark list again.
    """
    most = TASKS_PER_CORE * waiting.sparkSession.sparkContext.defaultParallelism
    return waiting.repartition(max(1, min(-(-count // OBJECTS_PER_TASK), most)), "key")


def write_parts(
    records: DataFrame, bucket: Bucket, queue: str, version: int, rows_per_part: int, pieces: Mapping[str, int]
) -> DataFrame:
    """Write Parquet files from the executors; a row per file, and one per task for what could not be read.

    `pieces` says in how many tasks a day is written; a day that it does not name is written in one. A task that runs
    twice writes the same files again: their names are digests of what is in them. Only what the driver collects is
    committed.
    """
    from pyspark.sql import functions as sf

    keys = Keys(queue)

    def per_partition(batches: Batches) -> Batches:
        yield from batches_of(_write(bucket, keys, version, batches, rows_per_part), WRITTEN)

    # Shuffled after the reading: many tasks wait for GETs, few files come out.
    split = {day: count for day, count in pieces.items() if count > 1}
    piece = sf.lit(0)
    for day, count in split.items():
        chosen = sf.pmod(sf.xxhash64("record_key"), sf.lit(count)).cast("int")
        piece = sf.when(sf.col("day") == day, chosen).otherwise(piece)
    most = TASKS_PER_CORE * records.sparkSession.sparkContext.defaultParallelism
    tasks = max(1, min(sum(pieces.values()), most))
    ordered = records.repartition(tasks, "day", piece).sortWithinPartitions("day", "record_key", "path")
    return ordered.mapInArrow(per_partition, WRITTEN)


def _write(bucket: Bucket, keys: Keys, version: int, batches: Batches, rows_per_part: int) -> Iterator[tuple[Any, ...]]:
    problems, examples = 0, []
    part: list[pa.RecordBatch] = []
    day: str | None = None
    for chunk_day, chunk in _by_day(batches):
        if chunk_day is None:
            problems += chunk.num_rows
            examples += chunk.column("problem").slice(0, EXAMPLES).to_pylist()
            continue
        for start in range(0, chunk.num_rows, rows_per_part):
            rows = chunk.slice(start, rows_per_part)
            size, count = sum(held.nbytes for held in part), sum(held.num_rows for held in part)
            if part and (chunk_day != day or count + rows.num_rows > rows_per_part or size >= BYTES_PER_PART):
                yield _put(bucket, keys, version, day, part)
                part = []
            part.append(rows)
            day = chunk_day
    if part:
        yield _put(bucket, keys, version, day, part)
    if problems:
        yield None, None, 0, 0, problems, examples[:EXAMPLES]


def _by_day(batches: Batches) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Batches cut where the day changes; they come sorted by it."""
    for batch in batches:
        days = batch.column("day").to_pylist()
        start = 0
        for index in range(1, len(days) + 1):
            if index == len(days) or days[index] != days[start]:
                yield days[start], batch.slice(start, index - start)
                start = index


def _put(bucket: Bucket, keys: Keys, version: int, day: str | None, part: list[pa.RecordBatch]) -> tuple[Any, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_batches(part).select(FILE_SCHEMA.names)
    digest = hashlib.sha256()
    # With the path: the rows of one journal may fill several files.
    named = (table[column].to_pylist() for column in ("record_key", "record_etag", "path"))
    for key, etag, path in zip(*named, strict=True):
        digest.update(f"{key}\n{etag}\n{path}\n".encode())
    metadata = {"s3queue.schema": str(SCHEMA_VERSION)}
    target = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), target, compression="zstd")
    key = keys.archive_part(str(day), version, digest.hexdigest()[:32])
    bucket.store().put(key, target.getvalue(), content_type="application/vnd.apache.parquet")
    return key, day, table.num_rows, target.tell(), 0, []


def _report(queue: str, written: Sequence[Any]) -> Report:
    parts = tuple(
        Part(key=row.key, queue=queue, day=row.day, rows=row.rows, bytes=row.bytes) for row in written if row.key
    )
    examples = [example for row in written for example in row.examples]
    return Report(
        queue=queue,
        records=sum(row.rows for row in written),
        parts=tuple(sorted(parts, key=lambda part: part.key)),
        problems=sum(row.problems for row in written),
        examples=tuple(examples[:EXAMPLES]),
    )


def keep_up(bucket: Bucket) -> dict[str, int]:
    """Merge small files and delete what nobody needs; what was done. All records are safe, whatever happens here."""
    try:
        merged = compact(bucket.archive())
        deleted = vacuum(bucket.store(), bucket.archive(), days=KEPT_DAYS)
    except QueueError as error:
        _log.error("upkeep of the archive failed: %s: %s", type(error).__name__, error)
        return {"failed": 1}
    return {"merged": merged.removed, "deleted": len(deleted)}


def main(argv: Sequence[str] | None = None) -> int:
    """Archive the queues that are named, or all; 0 if every one of them could be."""
    parser = argparse.ArgumentParser(prog="archive", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--queue", action="append", help="one queue; may be repeated; all of the bucket if left out")
    parser.add_argument("--endpoint-url", help="an S3 server other than AWS")
    parser.add_argument("--rows-per-part", type=int, default=ROWS_PER_PART)
    parser.add_argument("--upkeep", action="store_true", help="then merge small files, and delete what was replaced")
    parser.add_argument("--metric", action="store_true", help="then publish the age of what could not be archived")
    parser.add_argument("--late-after-days", type=float, default=LATE_AFTER / timedelta(days=1))
    chosen = parser.parse_args(argv)
    from spark.runtime.session import build_session

    bucket = Bucket(chosen.bucket, chosen.endpoint_url)
    spark = build_session("s3queue archive")
    totals: Counter[str] = Counter()
    now, failed = datetime.now(UTC), []
    for queue in chosen.queue or queue_names(bucket.store()):
        try:
            done = archive(spark, bucket, queue, now=datetime.now(UTC), rows_per_part=chosen.rows_per_part)
        except QueueError as error:
            # One broken archive must not cost the others their records, which expire.
            _log.error("queue not archived: %s: %s: %s", queue, type(error).__name__, error)
            failed.append(queue)
            continue
        totals.update(late=warn_if_late(queue, done.oldest_at, now, timedelta(days=chosen.late_after_days)))
        totals.update(records=done.records, files=len(done.parts), problems=done.problems, converted=done.converted)
        _log.info("records archived: %s: %d in %d files", queue, done.records, len(done.parts))
        if done.problems:
            _log.warning("objects skipped, not records: %s: %d: %s", queue, done.problems, "; ".join(done.examples))
    totals.update(failed=len(failed))
    if chosen.upkeep:
        totals.update(keep_up(bucket))
    if chosen.metric:
        publish_age(bucket, left_behind(bucket, failed, now))
    print(dict(totals))
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
