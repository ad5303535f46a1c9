"""The archive's rows as a DataFrame: the table says which files count, the executors read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from s3queue.archive.parts import Part, part_batches
from spark.rows.record_rows import RECORD_SCHEMA
from spark.rows.schemas import columns, joined
from spark.storage.scan import Batches, rows_of, spread

from .facts import FACTS, READ, facts_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark.storage.bucket import Bucket

_ASKED = columns(key="string", queue="string", day="string", rows="bigint")


#: Which object a row of the archive is.
OBJECT = columns(record_key="string", record_etag="string")


def read_parts(
    spark: SparkSession, bucket: Bucket, parts: Sequence[Part], columns: Sequence[str] | None = None
) -> DataFrame:
    """The rows of the table's files; read by Python in the executors, like everything in the bucket.

    A file's row count must be what the table says. Columns that an older file lacks are null.
    """
    from pyspark.sql.types import StructType

    names = list(columns or RECORD_SCHEMA.names)
    schema = StructType([RECORD_SCHEMA[name] for name in names])
    return _read(spark, bucket, parts, schema, schema, lambda batch: batch)


def read_facts(spark: SparkSession, bucket: Bucket, parts: Sequence[Part], *, with_objects: bool) -> DataFrame:
    """The facts of the same rows; `with_objects`, which object each is, too."""
    from pyspark.sql.types import StructType

    more = OBJECT if with_objects else StructType([])
    schema = StructType([RECORD_SCHEMA[name] for name in (*READ, *more.names)])
    return _read(spark, bucket, parts, schema, joined(FACTS, more), partial(facts_of, keep=more.names))


def _read(
    spark: SparkSession,
    bucket: Bucket,
    parts: Sequence[Part],
    schema: StructType,
    made_schema: StructType,
    made: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> DataFrame:
    def per_partition(batches: Batches) -> Batches:
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema)
        for key, queue, day, rows in rows_of(batches):
            for batch in part_batches(bucket.store(), key, rows, {"queue": queue, "day": day}, arrow):
                yield made(batch)

    asked = [(part.key, part.queue, part.day, part.rows) for part in parts]
    return spread(spark, asked, _ASKED).mapInArrow(per_partition, made_schema)
