"""Bulk enqueue: a dataset of any size becomes `.ndjson` batches of a queue, each row one message, none of them twice.

    bulk_enqueue --bucket B --queue emails --format ndjson --source s3://data/emails/ --per-object 100

Which rows share a batch depends on their content alone, not on files, partitions or cluster: a rerun makes the same
batches, whatever it runs on. Rows keep no order, as a queue has none. bulk/buckets.py says how a run remembers what it
did, and what is not promised; rows that cannot be messages are kept (bulk/rejected.py).

The source is read once: what was read is kept on the executors' disks until the run ends, because how many buckets
there are, and which run this is, depends on all of it. `--read-twice` spares the disks. Parquet costs one small GET
more for each object, its footer; CSV the first megabytes, from which its types are inferred.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

from pyspark.sql import functions as sf

from s3queue.documents.batch import LongLine, read_lines, spooled
from s3queue.encoding import NONSENSE, cut, parse_json
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.keys import Keys
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore
from spark.bulk.buckets import BATCHES_PER_BUCKET, counts_of, enqueue_bucket, problem_of
from spark.bulk.digest import HashSums
from spark.bulk.fingerprint import fingerprint, fingerprint_of, into_buckets
from spark.bulk.plan import PLAN_BYTES, Plan, done_buckets, settle_plan
from spark.bulk.rejected import RejectedRows, rejected_prefix
from spark.datasets import reading
from spark.datasets.reading import ROW, SOURCE
from spark.rows.schemas import columns
from spark.storage.bucket import Bucket
from spark.storage.scan import Batches, batches_of, in_threads, rows_of, spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("spark.bulk_enqueue")
LINE = columns(line="binary", **{SOURCE: "string", ROW: "bigint"})
FORMATS = get_args(reading.SourceFormat)
#: Rows that one task sorts and PUTs.
ROWS_PER_TASK = 200_000
#: A longer line ends the run: it is no dataset of lines. Shorter ones that no message may have are rejected one by one.
LINE_BYTES = 64 * 1024 * 1024
DONE = columns(
    bucket="bigint",
    batches="bigint",
    messages="bigint",
    added="bigint",
    rejected="string",
    hash_sums="string",
    example="string",
)


def read_dataset(
    spark: SparkSession, source: Sequence[str], form: reading.SourceFormat, endpoint_url: str | None = None
) -> DataFrame:
    """A dataset as lines, where it holds lines already, or as rows; each with where it comes from.

    `s3://bucket/key-or-prefix` is read by Python in the executors, so that it works wherever the queue does; anything
    else is a path that Spark itself knows, and reads without a limit for its lines.

    Raises:
        InvalidRequest: sources in several buckets. BadDataset: one of them names nothing, or cannot be read.
    """
    parts = [urlsplit(each) for each in source]
    if all(part.scheme == "s3" for part in parts):
        if len({part.netloc for part in parts}) > 1:
            raise InvalidRequest("the sources of one run lie in one bucket")
        bucket = Bucket(parts[0].netloc, endpoint_url)
        found = reading.find(bucket, [part.path.lstrip("/") for part in parts])
        if form == "ndjson":
            return _read_lines(spark, bucket, found)
        return reading.read(spark, bucket, found, form, numbered=True)
    if form == "ndjson":
        rows = spark.read.text(list(source)).withColumnRenamed("value", "line")
    elif form == "csv":
        rows = spark.read.option("header", True).csv(list(source))
    else:
        rows = spark.read.parquet(*source)
    # Of files that Spark reads itself, only Parquet has numbers for its rows.
    number = sf.col("_metadata.row_index") + 1 if form == "parquet" else sf.lit(None).cast("bigint")
    return rows.select("*", sf.col("_metadata.file_path").alias(SOURCE), number.alias(ROW))


def _read_lines(spark: SparkSession, bucket: Bucket, objects: Sequence[reading.Listed]) -> DataFrame:
    """Lines as they are: parsed and written again, numbers and keys might not be the same."""

    def per_partition(batches: Batches) -> Batches:
        for key, etag in rows_of(batches):
            with spooled(reading.open_listed(bucket, key, etag).stream) as stream:
                yield from batches_of(_bounded_lines(key, stream), LINE)

    keys = [(each.key, each.etag) for each in objects]
    return spread(spark, keys, columns(key="string", etag="string")).mapInArrow(per_partition, LINE)


def _bounded_lines(key: str, stream: IO[bytes]) -> Iterator[tuple[bytes, str, int]]:
    """Of a line that is too long no more than that is ever held. Raises InvalidRequest, which names it."""
    for number, line in read_lines(stream, LINE_BYTES):
        if isinstance(line, LongLine):
            raise InvalidRequest(
                f"{key}: line {number} has {line.size} bytes, at most {LINE_BYTES} are read: is every message a line?"
            )
        yield line, key, number


def lines_of(rows: DataFrame, body: str | None = None) -> DataFrame:
    """`line`: the message of each row, as bytes of JSON; and where it comes from, if the rows say. `body` names a
    column that holds the message already.

    Blank lines are no messages, and a byte order mark is no part of one.
    """
    own = [name for name in rows.columns if name not in (SOURCE, ROW)]
    place = [
        sf.col(name) if name in rows.columns else sf.lit(None).cast(kind).alias(name)
        for name, kind in ((SOURCE, "string"), (ROW, "bigint"))
    ]
    if body is not None:
        if rows.schema[body].dataType.typeName() == "binary":
            return rows.select(sf.col(body).alias("line"), *place).filter("length(line) > 0")
        text = sf.regexp_replace(sf.col(body).cast("string"), "^\ufeff", "")
        lines = rows.select(text.alias("line"), *place).filter("trim(line) != ''")
        return lines.withColumn("line", sf.col("line").cast("binary"))
    whole = sf.to_json(sf.struct(*own), {"ignoreNullFields": "false"})
    return rows.select(whole.cast("binary").alias("line"), *place)


def bulk_enqueue(
    spark: SparkSession,
    bucket: Bucket,
    queue: str,
    lines: DataFrame,
    *,
    run: str | None = None,
    per_object: int = 100,
    priority: int = 0,
    shards: int = 0,
    batches_per_bucket: int = BATCHES_PER_BUCKET,
    max_bytes: int = QueueSettings().max_message_size,
    read_twice: bool = False,
) -> dict[str, Any]:
    """Enqueue every line once; the report, which is also kept in the bucket. It counts the whole run, also what was
    done before it was resumed; `added` are the batches that this call PUT.

    Without a `run` the data itself is the run: the same lines are never enqueued twice into this queue, until someone
    gives a run a name. A former run of that name decides per_object, priority and shards.

    Raises:
        InvalidRequest: that run had other data, or its source had other rows when it was read again.
    """
    store = bucket.store()
    if run and (report := _finished(store, queue, run)):
        return report | {"added": 0}
    from pyspark import StorageLevel

    kept = lines if read_twice else lines.persist(StorageLevel.DISK_ONLY)
    try:
        rows, digest = fingerprint(kept)
        run = run or digest
        plan = Plan(
            queue=queue,
            run=run,
            per_object=per_object,
            buckets=max(1, -(-rows // (per_object * batches_per_bucket))),
            rows=rows,
            fingerprint=digest,
            priority=priority,
            shards=shards,
        )
        plan = settle_plan(store, plan)
        if report := _finished(store, queue, run):
            return report | {"added": 0}
        done = done_buckets(store, plan)
        waiting = into_buckets(kept, plan.buckets)
        if done:
            waiting = waiting.filter(~sf.col("bucket").isin(sorted(done)))
        tasks = min(plan.buckets, max(2 * spark.sparkContext.defaultParallelism, -(-rows // ROWS_PER_TASK)))
        told = enqueue_buckets(waiting, bucket, plan, tasks, max_bytes).collect()
    finally:
        if not read_twice:
            kept.unpersist()
    before = list(in_threads(lambda number: counts_of(store, plan, number), sorted(done)))
    report = _report(plan, told, before)
    sums = [row.hash_sums for row in told] + [each["hash_sums"] if each else "" for each in before]
    check_complete(plan, report, sums)
    key = plan.keys.bulk(run, "done.json")
    store.put(key, json.dumps(report, ensure_ascii=False).encode(), content_type="application/json")
    return report


def enqueue_buckets(waiting: DataFrame, bucket: Bucket, plan: Plan, tasks: int, max_bytes: int) -> DataFrame:
    """PUT the batches from the executors; a row per bucket. Lines are sorted, so that a bucket is always the same."""

    def per_partition(batches: Batches) -> Batches:
        store = bucket.store()
        told = (
            _bucket(store, plan, number, (row[1:] for row in rows), max_bytes)
            for number, rows in groupby(rows_of(batches), key=lambda row: row[0])
        )
        yield from batches_of(told, DONE)

    # By place, too: what is rejected is then written in the same order by whoever repeats it.
    ordered = waiting.repartition(tasks, "bucket").sortWithinPartitions("bucket", "line", SOURCE, ROW)
    return ordered.mapInArrow(per_partition, DONE)


def _bucket(
    store: ObjectStore, plan: Plan, number: int, rows: Iterator[tuple[Any, ...]], max_bytes: int
) -> tuple[Any, ...]:
    rejected, sums = RejectedRows(store, plan, number), HashSums()

    def good() -> Iterator[bytes]:
        for line, source, row, *hashes in rows:
            sums.add(*hashes)
            problem = problem_of(line, max_bytes)
            if problem is None:
                yield line
            else:
                rejected.add(problem, line, source, row)

    told = enqueue_bucket(store, plan, number, good(), rejected, hash_sums=sums)
    return (
        number,
        told["batches"],
        told["messages"],
        told["added"],
        json.dumps(told["rejected"]),
        told["hash_sums"],
        rejected.example,
    )


def _finished(store: ObjectStore, queue: str, run: str) -> dict[str, Any] | None:
    found = store.open(Keys(queue).bulk(run, "done.json"))
    try:
        return dict(parse_json(found.read(PLAN_BYTES))) if found else None
    except (CorruptState, *NONSENSE) as error:
        key = Keys(queue).bulk(run, "done.json")
        raise CorruptState(f"{key} is not the report of a bulk run: {cut(error)}; delete it") from None


def _report(plan: Plan, told: Sequence[Any], before: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    counted = [each for each in before if each]
    rejected: Counter[str] = Counter()
    for each in [*(json.loads(row.rejected) for row in told), *(each["rejected"] for each in counted)]:
        rejected.update(each)
    report: dict[str, Any] = {
        "queue": plan.queue,
        "run": plan.run,
        "rows": plan.rows,
        "buckets": plan.buckets,
        "buckets_done_before": len(before),
        "batches": sum(row.batches for row in told) + sum(each["batches"] for each in counted),
        "messages": sum(row.messages for row in told) + sum(each["messages"] for each in counted),
        #: What this call did itself.
        "added": sum(row.added for row in told),
        "rejected": dict(sorted(rejected.items())),
        "examples": [row.example for row in told if row.example][:5],
    }
    if rejected:
        report["rejected_rows"] = rejected_prefix(plan.queue, plan.run)
    if len(counted) < len(before):
        # Done by a version that did not count: the sums are without them.
        report["buckets_not_counted"] = len(before) - len(counted)
    return report


def check_complete(plan: Plan, report: dict[str, Any], sums: Sequence[str]) -> None:
    """Every row was enqueued or rejected: else the run does not become done. `sums` are those of the buckets.

    Raises:
        InvalidRequest: the source did not have the same rows whenever it was read.
    """
    seen = report["messages"] + sum(report["rejected"].values())
    # What an older version finished, it did not count, or did not hash.
    is_short = seen != plan.rows and "buckets_not_counted" not in report
    is_other = plan.rows and all(sums) and fingerprint_of(plan.rows, sums) != plan.fingerprint
    if is_short or is_other:
        raise InvalidRequest(
            f"run {plan.run!r} of {plan.queue} is not done: its source had {plan.rows} rows when they were counted, "
            f"and {seen if is_short else 'others'} when they were enqueued. Enqueue a source that does not change, "
            "under another run; what this one has enqueued stays"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Enqueue a dataset; 0 even if rows were rejected: the report says how many, and why."""
    parser = argparse.ArgumentParser(prog="bulk_enqueue", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument(
        "--source", action="append", required=True, help="s3://bucket/prefix, or a path; may be repeated"
    )
    parser.add_argument("--format", choices=FORMATS, default="ndjson")
    parser.add_argument("--body", help="the column that holds the message; all columns as one JSON object if left out")
    parser.add_argument("--run", help="a name for this run; the data's own digest if left out")
    parser.add_argument("--per-object", type=int, default=100, help="messages per batch")
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("--shards", type=int, default=0, help="spread names over so many prefixes (3,500 PUTs/s each)")
    parser.add_argument("--read-twice", action="store_true", help="read the source twice, and keep nothing on disks")
    parser.add_argument("--endpoint-url", help="an S3 server other than AWS")
    chosen = parser.parse_args(argv)
    from spark.runtime.session import build_session

    spark = build_session("s3queue bulk_enqueue", settings={"spark.speculation": "false"})
    rows = read_dataset(spark, chosen.source, chosen.format, chosen.endpoint_url)
    report = bulk_enqueue(
        spark,
        Bucket(chosen.bucket, chosen.endpoint_url),
        chosen.queue,
        lines_of(rows, chosen.body or ("line" if chosen.format == "ndjson" else None)),
        run=chosen.run,
        per_object=chosen.per_object,
        priority=chosen.priority,
        shards=chosen.shards,
        read_twice=chosen.read_twice,
    )
    if report["rejected"]:
        _log.warning(
            "rows that cannot be messages: %s, for example %s; all of them are in %s",
            report["rejected"],
            report["examples"],
            report.get("rejected_rows"),
        )
    # ASCII: paths and errors are strangers' words.
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
