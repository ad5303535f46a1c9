"""The archive's rows as a DataFrame: the table says which files count, the executors read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from s3queue.archive.parts import Part, part_batches
from spark.rows.record_rows import RECORD_SCHEMA
from spark.rows.schemas import columns
from spark.storage.scan import Batches, rows_of, spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.storage.bucket import Bucket

_ASKED = columns(key="string", queue="string", day="string", rows="bigint")


def read_parts(
    spark: SparkSession, bucket: Bucket, parts: Sequence[Part], columns: Sequence[str] | None = None
) -> DataFrame:
    """The rows of the table's files; read by Python in the executors, like everything in the bucket.

    A file's row count must be what the table says. Columns that an older file lacks are null.
    """
    from pyspark.sql.types import StructType

    names = list(columns or RECORD_SCHEMA.names)
    schema = StructType([RECORD_SCHEMA[name] for name in names])

    def per_partition(batches: Batches) -> Batches:
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema)
        for key, queue, day, rows in rows_of(batches):
            yield from part_batches(bucket.store(), key, rows, {"queue": queue, "day": day}, arrow)

    asked = [(part.key, part.queue, part.day, part.rows) for part in parts]
    return spread(spark, asked, _ASKED).mapInArrow(per_partition, schema)
