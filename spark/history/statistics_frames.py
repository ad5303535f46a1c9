"""What is counted of facts, as pure DataFrame → DataFrame functions.

An *object* is one message or one batch; *messages* counts a batch's lines. Percentiles are over objects: all lines of a
batch wait and run together.
"""

from __future__ import annotations

import math
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
    keys = sf.slice(sf.array_sort(sf.collect_set("problem_key")), 1, 1000)
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
