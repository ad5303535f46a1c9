"""What the pipeline does, written for Spark alone: documents as rows of the archive, and rows as facts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def read_documents(spark: SparkSession, files: Path, per_object: int) -> DataFrame:
    """What the documents say, in the columns of the archive: by Spark alone, which is told their schema."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    failure = st.StructType().add("type", "string").add("message", "string").add("details", "string")
    attempt = st.StructType().add("number", "long").add("worker", "string")
    attempt = attempt.add("started_at", "timestamp").add("ended_at", "timestamp").add("failure", failure)
    document = st.StructType()
    for name in ("path", "outcome", "message_etag", "worker", "result", "result_error", "nonce"):
        document = document.add(name, "string")
    for name in ("attempt", "size"):
        document = document.add(name, "long")
    for name in ("enqueued_at", "finished_at"):
        document = document.add(name, "timestamp")
    document = document.add("attempts", st.ArrayType(attempt)).add("failure", failure)
    if per_object == 1:
        found = spark.read.schema(document).json(str(files))
    else:
        journal = st.StructType().add("records", st.ArrayType(document))
        found = spark.read.schema(journal).json(str(files)).select(sf.inline("records"))
    is_dead = sf.col("outcome") == "dead"
    attempts = sf.transform(
        "attempts",
        lambda one: sf.struct(
            one["number"].alias("number"),
            one["worker"].alias("worker"),
            one["started_at"].alias("started_at"),
            one["ended_at"].alias("ended_at"),
            one["failure"]["type"].alias("error_type"),
            one["failure"]["message"].alias("error"),
        ),
    )
    died_of = sf.map_from_arrays(sf.array("failure.type"), sf.array(sf.lit(1).cast("long")))
    nothing = sf.map_from_arrays(sf.array().cast("array<string>"), sf.array().cast("array<bigint>"))
    return found.select(
        sf.date_format("finished_at", "yyyy-MM-dd").alias("day"),
        *("path", "outcome", "message_etag", "worker", "result", "result_error", "attempt", "size"),
        *("enqueued_at", "finished_at"),
        sf.lit(None).cast("timestamp").alias("due_at"),
        sf.lit(None).cast("int").alias("priority"),
        sf.lit(False).alias("is_batch"),
        sf.lit(1).cast("long").alias("messages"),
        (~is_dead).cast("long").alias("completed"),
        is_dead.cast("long").alias("dead"),
        attempts.alias("attempts"),
        sf.col("failure.type").alias("error_type"),
        sf.col("failure.message").alias("error"),
        sf.col("failure.details").alias("error_details"),
        sf.when(is_dead, died_of).otherwise(nothing).alias("dead_by_type"),
        sf.col("_metadata.file_name").alias("record_key") if per_object == 1 else sf.col("path").alias("record_key"),
        sf.col("nonce").alias("record_etag"),
    )


def facts(records: DataFrame) -> DataFrame:
    """As `spark.history.facts` makes them of Arrow batches."""
    from pyspark.sql import functions as sf

    first, last = sf.try_element_at("attempts", sf.lit(1)), sf.try_element_at("attempts", sf.lit(-1))
    failed = sf.filter("attempts", lambda attempt: attempt["error_type"].isNotNull())
    return records.filter(sf.col("finished_at").isNotNull()).select(
        *("queue", "messages", "completed", "dead", "attempt", "size", "worker", "dead_by_type"),
        sf.date_trunc("hour", "finished_at").alias("hour"),
        sf.transform(failed, lambda attempt: attempt["error_type"]).alias("failed_types"),
        _seconds(sf.greatest("enqueued_at", "due_at"), first["started_at"]).alias("wait_seconds"),
        _seconds(last["started_at"], last["ended_at"]).alias("run_seconds"),
        sf.lit(None).cast("string").alias("problem"),
        sf.lit(None).cast("string").alias("problem_key"),
    )


def _seconds(start: Column, end: Column) -> Column:
    from pyspark.sql import functions as sf

    micros = sf.unix_micros(end) - sf.unix_micros(start)
    return sf.when(micros < 0, sf.lit(0.0)).otherwise(micros / sf.lit(1e6))
