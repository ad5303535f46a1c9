"""Memory of Spark jobs: what goes to Python and back is cut by bytes, and large datasets are streamed and split."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from spark.datasets import reading
from spark.rows.schemas import columns
from spark.storage.scan import BYTES_PER_BATCH, ROWS_PER_BATCH, batches_of, chunks_of

if TYPE_CHECKING:
    import pyarrow as pa

MIB = 1024 * 1024
#: A row more than the limit may be in a batch, and each row has a little beside its bytes.
LARGEST = BYTES_PER_BATCH + 4 * MIB


def test_rows_are_cut_by_bytes_and_by_number():
    long = [len(chunk) for chunk in chunks_of((bytes(6 * MIB),) for _ in range(8))]
    short = [len(chunk) for chunk in chunks_of((b"x",) for _ in range(2 * ROWS_PER_BATCH + 1))]

    assert long == [3, 3, 2]
    assert short == [ROWS_PER_BATCH, ROWS_PER_BATCH, 1]


def test_what_python_hands_back_fits_into_arrow_however_large_its_rows_are():
    """300 lines of 7.5 MiB in one batch were 2.2 GiB: "Cannot convert ChunkedArray to Array", at 6.5 GB."""
    line = bytes(15 * MIB // 2)
    sizes = [batch.nbytes for batch in batches_of(((line,) for _ in range(300)), columns(line="binary"))]

    assert len(sizes) == 100
    assert max(sizes) < 24 * MIB


def test_what_java_hands_to_python_is_cut_by_bytes(spark):
    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [batch.nbytes]})

    rows = spark.range(0, 60, 1, 1).selectExpr("cast(repeat('x', 2097152) as binary) as body")
    found = rows.mapInArrow(sizes, "rows long, bytes long").collect()

    assert sum(row.rows for row in found) == 60
    assert max(row.bytes for row in found) <= LARGEST


@pytest.mark.parametrize("format", ["csv", "ndjson"])
def test_a_text_dataset_is_never_whole_in_memory(format):
    import pyarrow as pa

    text = "x" * 1000
    line = json.dumps({"n": 1, "text": text}) if format == "ndjson" else f"1,{text}"
    body = ("" if format == "ndjson" else "n,text\n") + f"{line}\n" * 30_000
    wanted = pa.schema([("n", pa.int64()), ("text", pa.string())])

    rows, sizes = 0, []
    for table in reading._tables(format, io.BytesIO(body.encode()), wanted):
        rows += table.num_rows
        sizes.append(table.nbytes)

    assert rows == 30_000
    assert len(sizes) >= 3
    assert max(sizes) < 2 * reading.SAMPLE_BYTES


def test_a_large_ndjson_object_is_read_in_parts_and_no_line_is_lost(spark, bucket, monkeypatch):
    monkeypatch.setattr(reading, "SPLIT_BYTES", 700)
    # Lines of very different lengths: some parts have none.
    body = b"".join(json.dumps({"n": n, "text": "x" * (2000 if n == 30 else n)}).encode() + b"\n" for n in range(60))
    bucket.store().put("datasets/large/1.ndjson", body)

    frame = reading.read(spark, bucket, reading.find(bucket, ["datasets/large/"]), "ndjson")

    assert sorted((row.n, len(row.text)) for row in frame.collect()) == [(n, 2000 if n == 30 else n) for n in range(60)]
    assert frame.rdd.getNumPartitions() > 1
