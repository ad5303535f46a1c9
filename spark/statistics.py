"""Statistics: how each queue did, hour by hour, from the archive and the records that are not in it yet.

    analytics/latest.json                                      the last days of every queue, for the dashboard
    analytics/hours/queue=emails/day=2026-11-16/hours.ndjson   one line per hour, for good

The files depend on the records alone, not on when or how often the job runs. In history/, statistics_frames.py
has what is counted, statistics_document.py the shape of latest.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from s3queue.archive.old_log import convert
from s3queue.archive.table import Snapshot
from s3queue.dashboard.bucket_view import STATISTICS_BYTES
from s3queue.dashboard.overview import queue_names
from s3queue.encoding import NONSENSE, format_instant, parse_instant, parse_json
from s3queue.errors import Conflict, CorruptState
from s3queue.keys import LATEST_STATISTICS, Keys
from s3queue.printable import clean
from s3queue.store import Object, ObjectStore
from spark.archive import unarchived
from spark.history.archived import read_parts
from spark.history.statistics_document import document, hour_row
from spark.history.statistics_frames import errors_by, facts, summary, workers_by
from spark.rows.record_rows import RECORD_SCHEMA, read_records
from spark.storage.bucket import Bucket
from spark.storage.scan import survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("spark.statistics")
DAYS = 7
#: A worker's clock, which dates its records, may be this far from S3's, which dates objects.
CLOCK_ERROR = timedelta(days=1)


def statistics(
    spark: SparkSession, bucket: Bucket, queues: Sequence[str], *, now: datetime, days: int = DAYS
) -> dict[str, Any]:
    """Compute and write the figures of the last `days` whole days and today; the document that the dashboard shows.

    Safe to repeat and to kill: every file is written whole, and an older computation never replaces a newer one in
    latest.json.
    """
    since = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    for queue in queues:
        # What is still in the old layout would be missing.
        convert(bucket.store(), bucket.archive(), queue)
    seen = bucket.archive().snapshot()
    found = [frame for queue in queues for frame in records_of(spark, bucket, seen, queue, since)]
    everything = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), found) if found else None
    computed: dict[str, list[Any]] = {name: [] for name in ("hours", "totals", "errors", "workers", "problems")}
    if everything is not None:
        known = facts(everything, since=since).persist()
        try:
            computed = compute(known)
        finally:
            known.unpersist()
    store = bucket.store()
    for (queue, day), rows in _by_day(computed).items():
        body = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
        store.put(Keys(queue).hours(day), body.encode(), content_type="application/x-ndjson")
    latest = document(computed, queues, since=since, now=now)
    publish(store, latest)
    return latest


def records_of(
    spark: SparkSession, bucket: Bucket, seen: Snapshot | None, queue: str, since: datetime
) -> list[DataFrame]:
    """The archive's rows of the window, and the live records that it does not hold: together each record once.

    Both are seen through the same version of the table, so that a commit made meanwhile changes nothing.
    """
    frames = []
    parts = seen.parts(queue, since_day=since.strftime("%Y-%m-%d")) if seen else []
    if parts:
        frames.append(read_parts(spark, bucket, parts, [name for name in RECORD_SCHEMA.names if name != "result"]))
    extent = survey(bucket.store(), Keys(queue).prefix("records"))
    if extent.objects:
        live = unarchived(spark, bucket, seen, queue, extent)
        frames.append(read_records(live.filter(live["modified_at"] >= since - CLOCK_ERROR), bucket, queue))
    return frames


def compute(known: DataFrame) -> dict[str, list[Any]]:
    """Everything that is told of the facts, collected: a few rows per queue and hour."""
    good = known.filter("problem IS NULL")
    return {
        "hours": summary(good, "queue", "hour").collect(),
        "totals": summary(good, "queue").collect(),
        "errors": errors_by(good, "queue", "hour").collect(),
        "workers": workers_by(good, "queue", "hour").collect(),
        "problems": known.filter("problem IS NOT NULL").groupBy("queue").count().collect(),
    }


def _by_day(computed: Mapping[str, Sequence[Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    errors, workers = _grouped(computed["errors"]), _grouped(computed["workers"])
    days: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(computed["hours"], key=lambda row: (row.queue, row.hour)):
        where = (row.queue, row.hour)
        described = hour_row(row) | {"errors": errors.get(where, []), "workers_busiest": workers.get(where, [])}
        days[row.queue, described["hour"][:10]].append(described)
    return days


def _grouped(rows: Sequence[Any]) -> dict[tuple[str, Any], list[dict[str, Any]]]:
    grouped: dict[tuple[str, Any], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        described = row.asDict()
        grouped[described.pop("queue"), described.pop("hour")].append(described)
    return grouped


def publish(store: ObjectStore, latest: Mapping[str, Any]) -> bool:
    """Write latest.json unless a later computation is there already."""
    body = json.dumps(latest, ensure_ascii=False, indent=1).encode()
    while True:
        found = store.open(LATEST_STATISTICS)
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
    parser.add_argument("--endpoint-url", help="an S3 server other than AWS")
    chosen = parser.parse_args(argv)
    from spark.runtime.session import build_session

    bucket = Bucket(chosen.bucket, chosen.endpoint_url)
    queues = chosen.queue or queue_names(bucket.store())
    latest = statistics(build_session("s3queue statistics"), bucket, queues, now=datetime.now(UTC), days=chosen.days)
    for queue, told in latest["queues"].items():
        said = f"{queue}: {told['messages']} messages, {told['dead']} dead, {told['unreadable_records']} unreadable"
        print(clean(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
