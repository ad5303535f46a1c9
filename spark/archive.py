"""Archive: records become Parquet, partitioned by queue and day, each exactly once.

    archive/queue=emails/day=2026-11-16/part-0000000007-{digest}.parquet   digest: of the records in it
    archive/queue=emails/_log/0000000007.json                              which files count; see history/archive_log.py

A record is one object: its key and ETag (every write of a record has a nonce, so the pair names one outcome of one
generation). A journal of a partition is one object, too, and a row for each of its messages. What is listed and not in
a committed file is read, written and committed; a rerun finds nothing left. The small objects are left to their
lifecycle rule, so the archive must run more often than records are retained. Files of runs that died or lost are
removed after the next commit.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from s3queue.clock import RandomChance
from s3queue.dashboard.overview import queue_names
from s3queue.errors import Conflict, QueueError
from s3queue.keys import Keys
from spark.history.archive_log import Commit, Log, Part, read_parts
from spark.rows.record_rows import FILE_SCHEMA, SCHEMA_VERSION, read_records
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
    #: Files of runs that never committed them, deleted.
    orphans: int = 0


def archive(
    spark: SparkSession,
    bucket: Bucket,
    queue: str,
    *,
    now: datetime,
    rows_per_part: int = ROWS_PER_PART,
) -> Report:
    """Archive what is not archived yet. Safe to repeat, to kill at any time, and to run twice at once.

    Raises:
        Conflict: other runs were always faster; nothing of this one counts.
        CorruptState, NewerFormat: the archive's log cannot be read; nothing was added.
    """
    store, log = bucket.store(), Log(bucket.store(), queue)
    for _ in range(TRIES):
        # The log first: whatever is committed after this reading makes our own commit lose.
        entries = log.entries()
        extent = survey(store, Keys(queue).prefix("records"))
        if not extent.objects:
            return Report(queue=queue)
        waiting = unarchived(spark, bucket, log, entries, extent)
        files = max(1, -(-extent.objects // rows_per_part))
        version = log.next_version(entries)
        records = read_records(waiting, bucket, queue)
        written = write_parts(records, bucket, queue, version, rows_per_part, files).collect()
        report = _report(queue, written)
        if not report.parts:
            return report
        commit = Commit(version=version, schema=SCHEMA_VERSION, parts=report.parts, committed_at=now)
        try:
            log.commit(commit, RandomChance().token())
        except Conflict:
            _log.info("commit lost to another run, reading again: %s: %d", queue, version)
            continue
        return replace(report, version=version, orphans=_without_orphans(log))
    raise Conflict(f"{queue}: {TRIES} other runs were faster; run one archive job at a time")


def unarchived(spark: SparkSession, bucket: Bucket, log: Log, entries: Sequence[Any], extent: Extent) -> DataFrame:
    """The listed records of an extent that no commit holds.

    A commit older than the oldest record that is still there cannot hold any of them.
    """
    parts = [part for commit in log.read(entries, since=extent.oldest_at) for part in commit.parts]
    found = listed(spark, bucket, extent.ranges)
    return not_in(found, read_parts(spark, bucket, parts, ["record_key", "record_etag"])) if parts else found


def not_in(listed: DataFrame, archived: DataFrame) -> DataFrame:
    """Listed objects without those that are archived: the same key *and* the same ETag."""
    same = (listed["key"] == archived["record_key"]) & (listed["etag"] == archived["record_etag"])
    return listed.join(archived, same, "left_anti")


def write_parts(
    records: DataFrame, bucket: Bucket, queue: str, version: int, rows_per_part: int, files: int
) -> DataFrame:
    """Write Parquet files from the executors; a row per file, and one per task for what could not be read.

    A task that runs twice writes the same files again: their names are digests of what is in them. Only what the
    driver collects is committed.
    """
    keys = Keys(queue)

    def per_partition(batches: Batches) -> Batches:
        yield from batches_of(_write(bucket, keys, version, batches, rows_per_part), WRITTEN)

    # Shuffled after the reading: many tasks wait for GETs, few files come out.
    ordered = records.repartition(files, "day", "record_key").sortWithinPartitions("day", "record_key", "path")
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


def _without_orphans(log: Log) -> int:
    try:
        return log.remove_orphans()
    except QueueError as error:
        # The records are safe; the next run tries again.
        _log.warning("orphaned files not removed: %s: %s", log.queue, error)
        return 0


def _report(queue: str, written: Sequence[Any]) -> Report:
    parts = tuple(
        Part(key=row.key, queue=queue, day=row.day, rows=row.rows, bytes=row.bytes) for row in written if row.key
    )
    examples = [example for row in written for example in row.examples]
    return Report(
        queue=queue,
        records=sum(part.rows for part in parts),
        parts=tuple(sorted(parts, key=lambda part: part.key)),
        problems=sum(row.problems for row in written),
        examples=tuple(examples[:EXAMPLES]),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Archive the queues that are named, or all; 0 if every one of them could be."""
    parser = argparse.ArgumentParser(prog="archive", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--queue", action="append", help="one queue; may be repeated; all of the bucket if left out")
    parser.add_argument("--endpoint-url", help="an S3 server other than AWS")
    parser.add_argument("--rows-per-part", type=int, default=ROWS_PER_PART)
    chosen = parser.parse_args(argv)
    from spark.runtime.session import build_session

    bucket = Bucket(chosen.bucket, chosen.endpoint_url)
    spark = build_session("s3queue archive")
    totals: Counter[str] = Counter()
    for queue in chosen.queue or queue_names(bucket.store()):
        try:
            done = archive(spark, bucket, queue, now=datetime.now(UTC), rows_per_part=chosen.rows_per_part)
        except QueueError as error:
            # One broken log must not cost the others their records, which expire.
            _log.error("queue not archived: %s: %s: %s", queue, type(error).__name__, error)
            totals.update(failed=1)
            continue
        totals.update(records=done.records, files=len(done.parts), problems=done.problems, orphans=done.orphans)
        _log.info("records archived: %s: %d in %d files", queue, done.records, len(done.parts))
        if done.problems:
            _log.warning("objects skipped, not records: %s: %d: %s", queue, done.problems, "; ".join(done.examples))
    print(dict(totals))
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
