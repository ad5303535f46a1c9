"""Files: a DataFrame as Parquet, CSV or JSON lines in the bucket, each written by Python where its partition is."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from spark.storage.bucket import Bucket

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FileFormat = Literal["parquet", "csv", "json"]
#: What spreadsheets take for a formula: = + - @, their wide forms, after blanks; a control character hides one.
_FORMULA = "\\A(?:\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\\x00-\\x1f])"
_CONTENT_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv", "json": "application/x-ndjson"}


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written."""

    key: str
    rows: int
    bytes: int


def write(
    frame: DataFrame,
    bucket: Bucket,
    destination: str,
    format: FileFormat,
    *,
    tag: str,
    escape_formulas: bool = True,
) -> list[Written]:
    """One file per partition that has rows, below `destination`: `part-00000-{tag}.{format}`.

    A task that runs twice writes the same file twice; another attempt has another `tag`, and cannot mix with this one.
    `escape_formulas`: in a CSV, names and texts that a spreadsheet would run begin with `'`.
    """
    writer = _writer(bucket, destination, format, tag, escape_formulas=escape_formulas)
    done = frame.mapInArrow(writer, "key string, rows long, bytes long")
    return sorted((Written(row.key, row.rows, row.bytes) for row in done.collect()), key=lambda file: file.key)


def _writer(
    bucket: Bucket, destination: str, format: FileFormat, tag: str, *, escape_formulas: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context else 0
        with tempfile.TemporaryFile() as file:
            plain = map(without_formulas, batches) if format == "csv" and escape_formulas else batches
            rows = _encode(format, file, plain)
            if rows:
                key = f"{destination}part-{number:05d}-{tag}.{format}"
                size = file.seek(0, io.SEEK_END)
                file.seek(0)
                # In parts if it is large.
                kind = {"ContentType": _CONTENT_TYPES[format]}
                bucket.client().upload_fileobj(_Unclosed(file), bucket.name, key, ExtraArgs=kind)
                yield pa.RecordBatch.from_pydict({"key": [key], "rows": [rows], "bytes": [size]})

    return run


class _Unclosed:
    """boto3 closes what it has sent; the temporary file is still needed to be removed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        return


def without_formulas(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with `'` before each name and text that a spreadsheet would take for a formula.

    Whoever wrote the data is not who opens the file: `=HYPERLINK(…)` would send what the other cells hold elsewhere.
    """
    import pyarrow as pa
    from pyarrow import compute

    columns = []
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            quote = pa.scalar("'", column.type)
            is_formula = compute.match_substring_regex(column, _FORMULA)
            quoted = compute.binary_join_element_wise(quote, column, pa.scalar("", column.type))
            column = compute.if_else(is_formula, quoted, column)
        columns.append(column)
    names = [f"'{name}" if re.search(_FORMULA, name) else name for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _encode(format: FileFormat, file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    from pyarrow import csv, parquet

    rows = 0
    writer: Any = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows += batch.num_rows
        if format == "json":
            for row in batch.to_pylist():
                file.write(json.dumps(row, default=_plain, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
            continue
        if writer is None:
            writer = (parquet.ParquetWriter if format == "parquet" else csv.CSVWriter)(file, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return rows


def _plain(value: Any) -> Any:
    """What JSON has no word for."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
