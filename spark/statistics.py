"""Statistics: how each queue did, hour by hour, from the archive and the records that are not in it yet.

    analytics/latest.json                                      the last days of every queue, for the dashboard
    analytics/hours/queue=emails/day=2026-11-16/hours.ndjson   one line per hour, for good
    analytics/state.json                                       what was seen, so that the next one need not look again

Only hours are computed that may have changed since the last time, all queues in one frame. An hour's line depends on
its records alone, not on when or how often the job runs. In history/, touched.py has which hours these are, facts.py
what is read of a record, statistics_frames.py what is counted, statistics_document.py the shape of latest.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from s3queue.archive.old_log import convert, unconverted
from s3queue.archive.table import ArchiveTable
from s3queue.dashboard.bucket_view import STATISTICS_BYTES
from s3queue.dashboard.overview import queue_names
from s3queue.encoding import NONSENSE, format_instant, parse_instant, parse_json
from s3queue.errors import Conflict, CorruptState
from s3queue.keys import LATEST_STATISTICS, Keys
from s3queue.printable import clean
from s3queue.store import Object, ObjectStore, open_state
from spark.archive import not_in
from spark.history.archived import OBJECT, read_facts
from spark.history.facts import FACTS, READ, facts_of
from spark.history.hour_lines import merge_lines
from spark.history.part_files import in_tasks
from spark.history.statistics_document import document, lines_by_day
from spark.history.statistics_frames import errors_by, histograms, problems_by, summary, workers_by
from spark.history.touched import PROBLEMS, Seen, Touched, Versions, read_state, touched, write_state
from spark.rows.record_rows import READ_SCHEMA, read_record
from spark.rows.schemas import columns, joined
from spark.storage.bucket import Bucket
from spark.storage.scan import Batches, Extent, batches_of, in_threads, listed, rows_of, survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("spark.statistics")
DAYS = 7
#: Later than any clock is wrong.
FOREVER = datetime(9000, 1, 1, tzinfo=UTC)
#: What is kept of a record that was read as an object.
_LIVE = (*READ, "record_key", "problem")
_INTERVAL = columns(of="string", start="timestamp", end="timestamp")
_NOTHING: Mapping[str, list[Any]] = {name: [] for name in ("hours", "errors", "workers", "histograms", "problems")}


def statistics(
    spark: SparkSession,
    bucket: Bucket,
    queues: Sequence[str],
    *,
    now: datetime,
    days: int = DAYS,
    everything: bool = False,
) -> dict[str, Any]:
    """Compute and write the figures of the last `days` whole days and today; the document that the dashboard shows.

    Only of hours that may have changed since the last time, unless `everything` is asked for. Safe to repeat, to kill
    and to run twice at once: the line of an hour is replaced by a later computation only, what was seen is written
    last, and an older computation never replaces a newer one in latest.json.
    """
    since = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    store, table = bucket.store(), bucket.archive()
    _convert(store, table, queues)
    state = {} if everything else read_state(store)
    # The time first, then the table, then the records: whatever is missed here is new to the next computation.
    looked_at = store.list(LATEST_STATISTICS, limit=1).at
    snapshot = table.snapshot()
    versions = Versions(table, snapshot)
    asked = [touched(versions, queue, state.get(queue), since=since, until=FOREVER) for queue in queues]
    surveyed = in_threads(lambda queue: survey(store, Keys(queue).prefix("records")), queues)
    extents = dict(zip(queues, surveyed, strict=True))
    computed, asked = _computed(spark, bucket, versions, asked, extents)
    lines = lines_by_day(computed, now)
    wanted = sorted({(queue, day) for queue in queues for day in _days(since, now)} | set(lines))
    hours: dict[str, list[dict[str, Any]]] = {queue: [] for queue in queues}
    for (queue, _), merged in zip(
        wanted, in_threads(lambda of: merge_lines(store, *of, lines.get(of, [])), wanted), strict=True
    ):
        hours[queue] += [line for line in merged if line["hour"] >= format_instant(since)]
    problems = {row.queue: row for row in computed["problems"]}
    latest = document(hours, {queue: row.objects for queue, row in problems.items()}, since=since, now=now)
    publish(store, latest)
    write_state(
        store,
        {
            one.queue: Seen(
                since=min(since, one.seen.since) if one.seen else since,
                looked_at=looked_at,
                version=snapshot.version if snapshot else None,
                skew=one.skew,
                problems=tuple(sorted(problems[one.queue]["keys"][:PROBLEMS])) if one.queue in problems else (),
            )
            for one in asked
        },
    )
    return latest


def _convert(store: ObjectStore, table: ArchiveTable, queues: Sequence[str]) -> None:
    """What is still in the layout before the table would be missing."""
    seen = table.snapshot()
    left = in_threads(lambda queue: bool(unconverted(store, seen, queue)), queues)
    for queue, is_left in zip(queues, left, strict=True):
        if is_left:
            convert(store, table, queue)


def _days(since: datetime, now: datetime) -> Iterator[str]:
    day = since
    while day <= now:
        yield day.strftime("%Y-%m-%d")
        day += timedelta(days=1)


def _computed(
    spark: SparkSession,
    bucket: Bucket,
    versions: Versions,
    asked: list[Touched],
    extents: Mapping[str, Extent],
) -> tuple[Mapping[str, list[Any]], list[Touched]]:
    """The figures of the touched hours, and the hours as they turned out: a new record may be of any hour."""
    while True:
        ranges = [found for one in asked for found in extents[one.queue].ranges]
        archived = _archived(spark, bucket, versions, asked, with_objects=bool(ranges))
        live = _live(spark, bucket, asked, extents, archived) if ranges else None
        if archived is None and live is None:
            return _NOTHING, asked
        kept: list[DataFrame] = []
        try:
            if live is None:
                assert archived
                known = _within(spark, archived, asked)
                kept.append(known.persist())
                return compute(known), asked
            # Both are needed more than once; what is made of them costs less than to keep it, too.
            kept += [frame.persist() for frame in (live, archived) if frame is not None]
            learned = _learned(live, asked)
            if [one.hours for one in learned] != [one.hours for one in asked]:
                _log.info("records found that are older than the touched hours: computing more")
                asked = learned
                continue
            asked = learned
            known = live.unionByName(archived.drop(*OBJECT.names)) if archived else live
            return compute(_within(spark, known, asked)), asked
        finally:
            for frame in kept:
                frame.unpersist()


def _archived(
    spark: SparkSession, bucket: Bucket, versions: Versions, asked: list[Touched], *, with_objects: bool
) -> DataFrame | None:
    """The archive's facts of the days that count, each file read once, for the figures and to leave out what is in it.

    Through one version of the table: a commit that is made meanwhile changes nothing.
    """
    now = versions.now
    parts = [part for one in asked if now for part in versions.parts(now, one.queue) if one.needs(part.day)]
    return read_facts(spark, bucket, parts, with_objects=with_objects) if parts else None


def _live(
    spark: SparkSession,
    bucket: Bucket,
    asked: list[Touched],
    extents: Mapping[str, Extent],
    archived: DataFrame | None,
) -> DataFrame:
    """The facts of records that the archive does not hold, as far as S3 stored them at a time that counts."""
    from pyspark.sql import functions as sf

    ranges = [found for one in asked for found in extents[one.queue].ranges]
    found = listed(spark, bucket, ranges).withColumn("of", sf.split_part("key", sf.lit("/"), sf.lit(1)))
    times = [(one.queue, at.start, at.end) for one in asked for at in one.stored()]
    interval = sf.broadcast(spark.createDataFrame(times, _INTERVAL)).alias("interval")
    is_within = (sf.col("found.of") == sf.col("interval.of")) & sf.col("modified_at").between(
        sf.col("interval.start"), sf.col("interval.end")
    )
    wanted = found.alias("found").join(interval, is_within, "left_semi")
    if unread := [key for one in asked if one.seen for key in one.seen.problems]:
        # They may be readable by now, or gone.
        again = found.filter(sf.col("key").isin(unread))
        wanted = wanted.unionByName(again).dropDuplicates(["key"])
    if archived is not None:
        wanted = not_in(wanted, archived.select(*OBJECT.names))
    count = sum(extents[one.queue].objects for one in asked)
    return _read(in_tasks(wanted, count), bucket)


def _read(wanted: DataFrame, bucket: Bucket) -> DataFrame:
    """The facts of records that were listed, of any queue."""
    chosen = [READ_SCHEMA.names.index(name) for name in _LIVE]
    schema = joined(StructType([READ_SCHEMA[name] for name in _LIVE]), columns(modified_at="timestamp"))

    def per_partition(batches: Batches) -> Batches:
        store, pick = bucket.store(), itemgetter(*chosen)

        def rows(entry: tuple[str, str, datetime]) -> list[tuple[Any, ...]]:
            key, etag, modified_at = entry
            return [(*pick(row), modified_at) for row in read_record(store, key.partition("/")[0], key, etag)]

        asked = rows_of(batch.select(["key", "etag", "modified_at"]) for batch in batches)
        found = in_threads(rows, asked)
        for batch in batches_of((row for some in found for row in some), schema):
            yield facts_of(batch)

    return wanted.mapInArrow(per_partition, FACTS)


def _learned(live: DataFrame, asked: list[Touched]) -> list[Touched]:
    """How far workers' clocks and S3's are apart; more hours, if that is further than ever before."""
    from pyspark.sql import functions as sf

    apart = sf.max(sf.abs("skew_seconds")).alias("apart")
    found = {row.queue: row.apart for row in live.filter("problem IS NULL").groupBy("queue").agg(apart).collect()}
    return [one.learned(timedelta(seconds=found.get(one.queue) or 0.0)) for one in asked]


def _within(spark: SparkSession, known: DataFrame, asked: list[Touched]) -> DataFrame:
    """The facts of the hours that were asked for, and all problems."""
    from pyspark.sql import functions as sf

    hours = [(one.queue, at.start, at.end) for one in asked for at in one.hours]
    interval = sf.broadcast(spark.createDataFrame(hours, _INTERVAL)).alias("interval")
    is_within = (sf.col("known.queue") == sf.col("interval.of")) & (
        sf.col("problem").isNotNull()
        | ((sf.col("hour") >= sf.col("interval.start")) & (sf.col("hour") < sf.col("interval.end")))
    )
    return known.alias("known").join(interval, is_within, "left_semi")


def compute(known: DataFrame) -> dict[str, list[Any]]:
    """Everything that is told of facts, which should be at hand, collected: a few rows per queue and hour."""
    good = known.filter("problem IS NULL")
    return {
        "hours": summary(good, "queue", "hour").collect(),
        "errors": errors_by(good, "queue", "hour").collect(),
        "workers": workers_by(good, "queue", "hour").collect(),
        "histograms": histograms(good, "queue", "hour").collect(),
        "problems": problems_by(known.filter("problem IS NOT NULL"), "queue").collect(),
    }


def publish(store: ObjectStore, latest: Mapping[str, Any]) -> bool:
    """Write latest.json unless a later computation is there already."""
    body = json.dumps(latest, ensure_ascii=False, indent=1).encode()
    while True:
        found = open_state(store, LATEST_STATISTICS)
        if found and _computed_at(found) > latest["computed_at"]:
            return False
        etag = found.etag if found else None
        try:
            store.put(LATEST_STATISTICS, body, if_match=etag, if_absent=etag is None, content_type="application/json")
            return True
        except Conflict:
            continue  # another run published meanwhile: look whose is the later


def _computed_at(found: Object) -> str:
    """Empty for garbage, which anything may replace."""
    try:
        return format_instant(parse_instant(parse_json(found.read(STATISTICS_BYTES))["computed_at"]))
    except (CorruptState, *NONSENSE):
        return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Compute the statistics of the queues that are named, or of all."""
    parser = argparse.ArgumentParser(prog="statistics", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--queue", action="append", help="one queue; may be repeated; all of the bucket if left out")
    parser.add_argument("--days", type=int, default=DAYS, help="whole days before today")
    parser.add_argument("--everything", action="store_true", help="also hours that have not changed since the last run")
    parser.add_argument("--endpoint-url", help="an S3 server other than AWS")
    chosen = parser.parse_args(argv)
    from spark.runtime.session import build_session

    bucket = Bucket(chosen.bucket, chosen.endpoint_url)
    queues = chosen.queue or queue_names(bucket.store())
    spark, now = build_session("s3queue statistics"), datetime.now(UTC)
    latest = statistics(spark, bucket, queues, now=now, days=chosen.days, everything=chosen.everything)
    for queue, told in latest["queues"].items():
        said = f"{queue}: {told['messages']} messages, {told['dead']} dead, {told['unreadable_records']} unreadable"
        print(clean(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
