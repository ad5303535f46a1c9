"""What is counted, as pure DataFrame → DataFrame functions.

An *object* is one message or one batch; *messages* counts a batch's lines. Waiting ends when the first attempt starts,
and begins when the message may run (a delayed one: when it is due). Running is the attempt that decided. Percentiles
are over objects: all lines of a batch wait and run together. Everything belongs to the hour in which it finished.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Exact as long as an hour has fewer different durations than this.
ACCURACY = 10_000
#: A bucket of a histogram ends where durations are so many times those of the one before; the first ends at 1 ms.
FIRST_SECONDS, WIDTH = 0.001, 1.05
#: Types of errors and workers that are told of per group: the first so many.
LISTED = 20


#: What a fact keeps of its record: whose it is.
OF_A_RECORD = ("queue", "record_key", "record_etag", "finished_at")
#: What is read of the archive for it.
READ = (
    *("queue", "record_key", "record_etag", "finished_at", "messages", "completed", "dead", "attempt", "size"),
    *("worker", "dead_by_type", "attempts", "enqueued_at", "due_at"),
)


def facts(records: DataFrame, *, since: datetime) -> DataFrame:
    """One narrow row per record that finished since, and per object that is no record (its `problem`)."""
    first, last = sf.try_element_at("attempts", sf.lit(1)), sf.try_element_at("attempts", sf.lit(-1))
    ready_at = sf.greatest("enqueued_at", "due_at")
    problem = sf.col("problem") if "problem" in records.columns else sf.lit(None).cast("string")
    # Of what is read as an object: when S3 stored it, against its worker's time.
    stored_at = sf.col("modified_at") if "modified_at" in records.columns else sf.lit(None).cast("timestamp")
    skew = (sf.unix_micros("finished_at") - sf.unix_micros(stored_at)) / sf.lit(1e6)
    failed = sf.filter("attempts", lambda attempt: attempt["error_type"].isNotNull())
    return records.filter(problem.isNotNull() | (sf.col("finished_at") >= sf.lit(since))).select(
        *OF_A_RECORD,
        sf.date_trunc("hour", "finished_at").alias("hour"),
        "messages",
        "completed",
        "dead",
        "attempt",
        "size",
        "worker",
        "dead_by_type",
        sf.transform(failed, lambda attempt: attempt["error_type"]).alias("failed_types"),
        _seconds(ready_at, first["started_at"]).alias("wait_seconds"),
        _seconds(last["started_at"], last["ended_at"]).alias("run_seconds"),
        problem.alias("problem"),
        skew.alias("skew_seconds"),
    )


def _seconds(start: Column, end: Column) -> Column:
    """Never negative: the two instants may be from two machines' clocks."""
    micros = sf.unix_micros(end) - sf.unix_micros(start)
    # Not greatest() of both: it passes over nulls, and no attempt is no duration.
    return sf.when(micros < 0, sf.lit(0.0)).otherwise(micros / sf.lit(1e6))


def summary(known: DataFrame, *by: str) -> DataFrame:
    """Counts, success rate, percentiles, attempts and workers per group."""
    worked = sf.when(sf.col("worker") != "", sf.col("worker"))
    grouped = known.groupBy(*by).agg(
        sf.count("*").alias("objects"),
        sf.sum("messages").alias("messages"),
        sf.sum("completed").alias("completed"),
        sf.sum("dead").alias("dead"),
        sf.sum("size").alias("bytes"),
        sf.sum("attempt").alias("attempts"),
        sf.count_if(sf.col("attempt") > 1).alias("retried"),
        sf.count_distinct(worked).alias("workers"),
        *(
            sf.percentile_approx(f"{what}_seconds", list(QUANTILES.values()), ACCURACY).alias(what)
            for what in ("wait", "run")
        ),
    )
    percentiles = [
        sf.get(what, sf.lit(index)).alias(f"{what}_{name}_seconds")
        for what in ("wait", "run")
        for index, name in enumerate(QUANTILES)
    ]
    ended = sf.col("completed") + sf.col("dead")
    return grouped.select(
        *by,
        *("objects", "messages", "completed", "dead"),
        sf.try_divide("completed", ended).alias("success_rate"),
        *percentiles,
        "attempts",
        sf.try_divide("attempts", sf.col("objects")).alias("attempts_per_object"),
        *("retried", "workers"),
        sf.try_divide("messages", sf.col("workers")).alias("messages_per_worker"),
        "bytes",
    )


def histograms(known: DataFrame, *by: str) -> DataFrame:
    """How many objects waited and ran for how long, in buckets, per group: `wait` and `run`, bucket → objects."""
    counted = []
    for what in ("wait", "run"):
        seconds = sf.col(f"{what}_seconds")
        bucket = sf.when(seconds <= FIRST_SECONDS, sf.lit(0)).otherwise(
            sf.ceil(sf.log(seconds / sf.lit(FIRST_SECONDS)) / sf.lit(math.log(WIDTH)))
        )
        found = known.filter(seconds.isNotNull()).groupBy(*by, bucket.cast("int").alias("bucket")).count()
        counted.append(found.withColumn("what", sf.lit(what)))
    entries = sf.map_from_entries(sf.collect_list(sf.struct("bucket", "count")))
    return counted[0].unionByName(counted[1]).groupBy(*by, "what").agg(entries.alias("buckets"))


def errors_by(known: DataFrame, *by: str) -> DataFrame:
    """How many messages died of what, and how many attempts failed with it; the most frequent types of each group."""
    died = known.select(*by, sf.explode("dead_by_type").alias("error_type", "dead"))
    failed = known.select(*by, sf.explode("failed_types").alias("error_type"))
    counted = (
        died.withColumn("failed_attempts", sf.lit(0))
        .unionByName(failed.withColumns({"dead": sf.lit(0), "failed_attempts": sf.lit(1)}))
        .groupBy(*by, "error_type")
        .agg(sf.sum("dead").alias("dead"), sf.sum("failed_attempts").alias("failed_attempts"))
    )
    return _first(counted, by, sf.desc("dead"), sf.desc("failed_attempts"), sf.asc("error_type"))


def problems_by(unread: DataFrame, *by: str) -> DataFrame:
    """How many objects are no records, and the keys of some."""
    keys = sf.slice(sf.array_sort(sf.collect_set("record_key")), 1, 1000)
    return unread.groupBy(*by).agg(sf.count("*").alias("objects"), keys.alias("keys"))


def workers_by(known: DataFrame, *by: str) -> DataFrame:
    """What each worker finished; the busiest of each group."""
    counted = (
        known.filter("worker != ''")
        .groupBy(*by, "worker")
        .agg(sf.sum("messages").alias("messages"), sf.count("*").alias("objects"))
    )
    return _first(counted, by, sf.desc("messages"), sf.asc("worker"))


def _first(counted: DataFrame, by: tuple[str, ...], *order: Column) -> DataFrame:
    ranked = counted.withColumn("rank", sf.row_number().over(Window.partitionBy(*by).orderBy(*order)))
    return ranked.filter(sf.col("rank") <= LISTED).orderBy(*by, "rank").drop("rank")
