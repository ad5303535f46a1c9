"""Archive: records become rows of a Delta Lake table, partitioned by queue and day, each object exactly once.

    archive/_delta_log/…                                                   which files count (s3queue/archive/table.py)
    archive/queue=emails/day=2026-11-16/part-0000000007-{digest}.parquet   digest: of the records in it

A record is one object: its key and ETag (every outcome has a nonce, so the pair names one outcome of one generation;
one whose message cannot be finished is written again, and may have two rows: docs/archive.md). A journal of a partition
is one object, too, and a row for each of its messages. What is listed and not in a committed file is read, written and
committed; a rerun finds nothing left. The small objects are left to their lifecycle rule, so the archive must run more
often than records are retained. Files of runs that died or lost are in no version of the table: no reader sees them,
and `vacuum` deletes them after a week.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

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
from spark.history.part_files import BYTES_PER_PART, EXAMPLES, in_tasks, packed_records, write_parts
from spark.storage.bucket import Bucket
from spark.storage.scan import Extent, listed, survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("spark.archive")
#: A file's rows at most.
ROWS_PER_PART = 200_000
#: A journal's key, and how many records are in it; a record has more bytes than this.
JOURNAL, LEAST_RECORD_BYTES = r"^[^/]+/records/@[^/]+/.*-([0-9]{1,6})\.json$", 100
#: Commits that other runs may get in before ours.
TRIES = 5


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

    #: Journals count what their names say: many messages in one object.
    rows: Mapping[str, int]
    bytes: Mapping[str, int]
    objects: int = 0
    oldest_at: datetime | None = None

    def pieces(self, rows_per_part: int) -> dict[str, int]:
        """In how many files a day is written: one, unless it is more than one file should hold.

        A wrong guess of the day tears a small one, so nothing is guessed as long as everything fits into one file.
        """
        if sum(self.rows.values()) <= rows_per_part and sum(self.bytes.values()) <= BYTES_PER_PART:
            return dict.fromkeys(self.rows, 1)
        return {
            day: max(1, -(-count // rows_per_part), -(-self.bytes[day] // BYTES_PER_PART))
            for day, count in self.rows.items()
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
    if not found.objects:
        return []
    pieces = found.pieces(rows_per_part)
    packed = packed_records(in_tasks(waiting, found.objects), bucket, queue, pieces)
    return write_parts(packed, bucket, queue, version, rows_per_part, sum(pieces.values())).collect()


def measured(waiting: DataFrame) -> Waiting:
    from pyspark.sql import functions as sf

    day = sf.date_format("modified_at", "yyyy-MM-dd").alias("day")
    # As Keys.records_at; a name that promises more than its bytes can hold was forged.
    named = sf.try_to_number(sf.nullif(sf.regexp_extract("key", JOURNAL, 1), sf.lit("")), sf.lit("999999")).cast("long")
    rows = sf.least(sf.coalesce(named, sf.lit(1)), sf.floor(sf.col("size") / LEAST_RECORD_BYTES) + 1)
    counted = waiting.groupBy(day).agg(
        sf.count("*").alias("objects"),
        sf.sum(rows).alias("rows"),
        sf.sum("size").alias("bytes"),
        sf.min("modified_at").alias("oldest_at"),
    )
    found = counted.collect()
    return Waiting(
        {row.day: row["rows"] for row in found},
        {row.day: row.bytes for row in found},
        sum(row.objects for row in found),
        # Spark hands out naive local times.
        min((row.oldest_at.astimezone(UTC) for row in found), default=None),
    )


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
