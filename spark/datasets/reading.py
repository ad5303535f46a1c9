"""Datasets: many NDJSON, CSV or Parquet objects as one DataFrame, through Arrow in the executors.

Their schema is what all objects together have: read from a Parquet footer, inferred from the first megabytes of the
others. An object that contradicts it later is an error that says where, never a column that is silently lost.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, cast

from s3queue.errors import Conflict
from s3queue.store import Object, listing
from spark.storage.bucket import Bucket
from spark.storage.objects import fetch, spread

from .ranged import RangedFile, RangedLines, lines_from

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SourceFormat = Literal["ndjson", "csv", "parquet"]
#: What an object's schema is inferred from.
SAMPLE_BYTES = 8 * 1024 * 1024
#: Rows that a reader hands on at once.
BATCH_ROWS = 20_000
#: A larger NDJSON object is read in parts, each by a task. A CSV object is not: a line break may be within a value.
SPLIT_BYTES = 64 * 1024 * 1024
#: Where a row comes from, if that is asked for: its object, and its number in it, from 1.
SOURCE, ROW = "s3queue_source", "s3queue_row"


class BadDataset(ValueError):
    """The dataset cannot be read as one; the text says which object is wrong, and why."""


class Listed(NamedTuple):
    """An object as it was listed. It is read with this ETag, so that all readings of it have the same rows."""

    key: str
    size: int
    #: Empty: unknown, or nobody replaces it.
    etag: str = ""


def find(bucket: Bucket, sources: Sequence[str]) -> list[Listed]:
    """Every object behind these keys and prefixes. What is hidden (`_SUCCESS`, `.crc`) is left out.

    Raises:
        BadDataset: one of them names nothing.
    """
    found: dict[str, Listed] = {}
    for source in sources:
        matched = {
            entry.key: Listed(entry.key, entry.size, entry.etag)
            for page in listing(bucket.store(), source)
            for entry in page.objects
            if entry.size
            and not entry.key.rpartition("/")[2].startswith(("_", "."))
            # `datasets/a` is that object, or what lies below it, not `datasets/ab`.
            and (source.endswith("/") or entry.key == source or entry.key.startswith(f"{source}/"))
        }
        if not matched:
            raise BadDataset(f"there is nothing at {source!r}")
        found |= matched
    return sorted(found.values())


def open_listed(bucket: Bucket, key: str, etag: str) -> Object:
    """Raises Conflict, which names the object, if it was replaced or deleted since it was listed."""
    try:
        if found := bucket.store().open(key, if_match=etag or None):
            return found
    except Conflict:
        raise Conflict(f"{key} was replaced since it was listed; start again when nobody writes to it") from None
    raise Conflict(f"{key} was deleted since it was listed")


def read(
    spark: SparkSession,
    bucket: Bucket,
    objects: Sequence[Listed],
    format: SourceFormat,
    *,
    numbered: bool = False,
) -> DataFrame:
    """These objects as one DataFrame; `numbered`: with the columns SOURCE and ROW at its end.

    Raises:
        BadDataset: they do not agree on a schema, or one of them cannot be read.
    """
    schema = infer(spark, bucket, objects, format)
    from pyspark.sql.pandas.types import from_arrow_schema

    described = from_arrow_schema(schema)
    if numbered:
        described = described.add(SOURCE, "string").add(ROW, "long")
    # Largest first, so that no executor is left with a giant at the end.
    most = SPLIT_BYTES if format == "ndjson" and not numbered else None
    etags = {each.key: each.etag for each in objects}
    keys = [(*part, etags[part[0]]) for part in parts_of([(each.key, each.size) for each in objects], most)]
    described_keys = "key string, start long, end long, size long, etag string"
    asked = spread(spark, spark.createDataFrame(keys, described_keys), len(keys))
    return asked.mapInArrow(_reader(bucket, format, schema.serialize().to_pybytes(), numbered=numbered), described)


def parts_of(objects: Sequence[tuple[str, int]], most: int | None) -> list[tuple[str, int, int, int]]:
    """(key, start, end, size) of parts that are about equal and have at most so many bytes, the largest first."""
    parts = []
    for key, size in objects:
        count = max(1, -(-size // most)) if most else 1
        edges = [size * number // count for number in range(count + 1)]
        parts += [(key, start, end, size) for start, end in pairwise(edges)]
    return sorted(parts, key=lambda part: part[1] - part[2])


def infer(spark: SparkSession, bucket: Bucket, objects: Sequence[Listed], format: SourceFormat) -> pa.Schema:
    """The schema that all of them have together, in types that Spark knows."""
    import pyarrow as pa

    looked = fetch(
        spark,
        [tuple(each) for each in objects],
        "key string, size long, etag string",
        "key string, schema binary, error string",
        partial(_look_at, bucket, format),
    ).collect()
    broken = [row for row in looked if row.error]
    if broken:
        raise BadDataset(f"{broken[0].key} cannot be read as {format}: {broken[0].error}")
    schemas = [pa.ipc.read_schema(pa.py_buffer(row.schema)) for row in sorted(looked, key=lambda row: row.key)]
    try:
        return for_spark(pa.unify_schemas(schemas, promote_options="permissive"))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadDataset(f"the objects do not have one schema: {error}") from None


def for_spark(schema: pa.Schema) -> pa.Schema:
    """The same columns in types that Spark has."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, _known(pa, field.type)) for field in schema])


def _known(pa: Any, kind: Any) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _known(pa, kind.value_type)
    if types.is_null(kind) or types.is_large_string(kind) or types.is_time(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_unsigned_integer(kind):
        return pa.int64()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_date64(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _known(pa, field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_known(pa, kind.value_type))
    return kind


def _look_at(bucket: Bucket, format: SourceFormat, asked: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Runs in an executor: one object's own schema."""
    import pyarrow as pa

    key, size, etag = asked
    try:
        if format == "parquet":
            from pyarrow import parquet

            schema = parquet.read_schema(RangedFile(bucket, key, size, etag))
            yield key, schema.serialize().to_pybytes(), None
            return
        with _opened(bucket, key, whole=False, size=size, etag=etag) as (stream, is_whole):
            first = next(iter(_tables(format, _whole_lines(stream) if not is_whole else stream, None)), None)
            schema = first if isinstance(first, pa.Schema) else pa.schema([])
        yield key, schema.serialize().to_pybytes(), None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        yield key, None, str(error)[:500]


def _reader(
    bucket: Bucket, format: SourceFormat, schema: bytes, *, numbered: bool = False
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow as pa

        wanted = pa.ipc.read_schema(pa.py_buffer(schema))
        for batch in batches:
            for key, start, end, size, etag in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number = 0
                try:
                    with _part(bucket, key, start, end, size, etag) as stream:
                        for table in _tables(format, stream, wanted) if stream else ():
                            for found in _cast(pa, table, wanted).to_batches(max_chunksize=BATCH_ROWS):
                                yield _numbered(pa, found, key, number) if numbered else found
                                number += found.num_rows
                except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
                    raise BadDataset(f"{key} cannot be read as the others are: {error}") from error

    return run


@contextmanager
def _part(bucket: Bucket, key: str, start: int, end: int, size: int, etag: str) -> Iterator[IO[bytes] | None]:
    """The lines of an object that begin in this part of it, as a file; None if there are none."""
    if end - start == size:
        with _opened(bucket, key, whole=True, etag=etag) as (stream, _):
            yield stream
        return
    with tempfile.SpooledTemporaryFile(max_size=SAMPLE_BYTES * 4) as file:
        for line in lines_from(RangedLines(bucket, key, size, etag), start, end):
            file.write(line)
        is_empty = not file.tell()
        file.seek(0)
        yield None if is_empty else cast(IO[bytes], file)


def _numbered(pa: Any, batch: pa.RecordBatch, key: str, before: int) -> pa.RecordBatch:
    numbers = pa.array(range(before + 1, before + batch.num_rows + 1), pa.int64())
    places = pa.array([key] * batch.num_rows, pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, places, numbers], [*batch.schema.names, SOURCE, ROW])


def _cast(pa: Any, table: pa.Table, wanted: pa.Schema) -> pa.Table:
    extra = set(table.column_names) - set(wanted.names)
    if extra:
        raise pa.ArrowInvalid(f"column {sorted(extra)[0]!r} does not appear in the first {SAMPLE_BYTES} bytes")
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


class _opened:  # noqa: N801 (used like a function)
    """An object as a file: the first megabytes in memory, or all of it beside it."""

    def __init__(self, bucket: Bucket, key: str, *, whole: bool, size: int = 0, etag: str = "") -> None:
        with open_listed(bucket, key, etag).stream as stream:
            if not whole:
                self._is_whole = size <= SAMPLE_BYTES
                self._file: IO[bytes] = io.BytesIO(stream.read(SAMPLE_BYTES))
                return
            self._is_whole = True
            self._file = tempfile.SpooledTemporaryFile(max_size=SAMPLE_BYTES * 4)  # noqa: SIM115 (__exit__ closes it)
            while chunk := stream.read(1024 * 1024):
                self._file.write(chunk)
            self._file.seek(0)

    def __enter__(self) -> tuple[IO[bytes], bool]:
        return self._file, self._is_whole

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _whole_lines(stream: IO[bytes]) -> IO[bytes]:
    body = stream.read()
    return io.BytesIO(body[: body.rfind(b"\n") + 1] or body)


def _tables(format: SourceFormat, stream: IO[bytes], wanted: pa.Schema | None) -> Iterator[Any]:
    """Tables of one object; without a schema, only its own."""
    import pyarrow as pa
    from pyarrow import csv, json, parquet

    if format == "parquet":
        file = parquet.ParquetFile(stream)
        if wanted is None:
            yield file.schema_arrow
            return
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            yield pa.Table.from_batches([batch])
    elif format == "csv":
        options = csv.ConvertOptions(strings_can_be_null=True, column_types=wanted)
        parsing = csv.ParseOptions(newlines_in_values=True)
        if wanted is None:
            yield csv.read_csv(stream, convert_options=options, parse_options=parsing).schema
            return
        blocks = csv.ReadOptions(block_size=SAMPLE_BYTES)
        for batch in csv.open_csv(stream, read_options=blocks, convert_options=options, parse_options=parsing):
            yield pa.Table.from_batches([batch])
    else:
        behaviour = "infer" if wanted is None else "error"
        options = json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior=behaviour)
        # A line longer than a block is an error: blocks of the sample's size.
        blocks = json.ReadOptions(block_size=SAMPLE_BYTES)
        if wanted is None:
            yield json.read_json(stream, read_options=blocks, parse_options=options).schema
            return
        for batch in json.open_json(stream, read_options=blocks, parse_options=options):
            yield pa.Table.from_batches([batch])
