"""Objects of the bucket as a DataFrame: the keys travel, the bytes are fetched by Python in the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Rows that one Arrow batch of objects holds at most, and bytes: whatever comes first.
ROWS_PER_BATCH = 1000
BYTES_PER_BATCH = 16 * 1024 * 1024

Row = tuple[Any, ...]


def fetch(
    spark: SparkSession,
    asked: Sequence[Row],
    asked_schema: StructType | str,
    schema: StructType | str,
    read: Callable[[Row], Iterator[Row]],
    *,
    partitions: int | None = None,
) -> DataFrame:
    """A row of `asked` per object, read where an executor runs: `read` turns one into any number of rows of `schema`.

    `read` must be importable or self-contained, as it travels too.
    """
    if not asked:
        return spark.createDataFrame([], schema)
    keys = spread(spark, spark.createDataFrame(list(asked), asked_schema), partitions or len(asked))
    return keys.mapInArrow(_per_partition(read, _arrow(spark, schema)), schema)


def spread(spark: SparkSession, keys: DataFrame, count: int) -> DataFrame:
    """Keys over enough partitions for all cores to have something to fetch, several times over if there are many."""
    cores = spark.sparkContext.defaultParallelism
    # As many partitions as there are cores come without a shuffle.
    return keys.repartition(min(count, 4 * cores)) if count > cores else keys


def _per_partition(
    read: Callable[[Row], Iterator[Row]], schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow as pa

        rows: list[Row] = []
        size = 0
        for batch in batches:
            for asked in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                for row in read(asked):
                    rows.append(row)
                    size += sum(len(value) for value in row if isinstance(value, (bytes, str)))
                    if len(rows) >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
                        yield _batch(pa, rows, schema)
                        rows, size = [], 0
        if rows:
            yield _batch(pa, rows, schema)

    return run


def _batch(pa: Any, rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _arrow(spark: SparkSession, schema: StructType | str) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    described = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    assert isinstance(described, StructType)
    return to_arrow_schema(described)
