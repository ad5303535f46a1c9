"""A part: one Parquet file of the archive, read through the store."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from s3queue.encoding import NONSENSE, cut
from s3queue.errors import CorruptState
from s3queue.store import ObjectStore

from .columns import PARTITIONED_BY

if TYPE_CHECKING:
    import pyarrow as pa

#: Larger files are not read: a run cuts its own at 256 MiB, before they are packed, and so does compaction.
PART_BYTES = 512 * 1024 * 1024
#: Rows of one Arrow batch.
BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One Parquet file of the archive."""

    key: str
    queue: str
    day: str
    #: None: whoever wrote it did not count.
    rows: int | None
    bytes: int


def part_batches(
    store: ObjectStore, key: str, rows: int | None, constants: Mapping[str, str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of one part as batches of `schema`; `constants` are the columns that its key says.

    Columns that an older file lacks are null.

    Raises:
        CorruptState: it is missing, is not Parquet, or has not as many rows as the table says.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = store.open(key)
    if found is None:
        raise CorruptState(f"{key} is missing, but the archive's table names it")
    body = found.read(PART_BYTES)
    try:
        file = pq.ParquetFile(io.BytesIO(body))
        if rows is not None and file.metadata.num_rows != rows:
            raise CorruptState(f"{key} has {file.metadata.num_rows} rows; the archive's table says {rows}")
        present = set(file.schema_arrow.names) - set(PARTITIONED_BY)
        stored = [name for name in schema.names if name in present]
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=stored):
            arrays = [
                batch.column(field.name).cast(field.type)
                if field.name in present
                else pa.array([constants.get(field.name)] * batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, OSError, *NONSENSE) as error:
        raise CorruptState(f"{key} is not a part of the archive: {cut(error)}") from None
