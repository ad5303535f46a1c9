"""exports on a real session and a real S3 server: datasets in, files out, clear words for what cannot be done."""

from __future__ import annotations

import io
import json
from csv import reader as csv_reader
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from pyspark.errors import PySparkException

from queues.exports import Aggregation, Export
from s3queue import Context, Reject
from s3queue.protocol.claim import Claim
from s3queue.stores.memory import MemoryStore
from s3queue.stores.s3 import client
from spark.archive import archive
from spark.datasets import reading
from spark.datasets.expressions import parse
from spark.datasets.reading import BadDataset, find, for_spark, read
from spark.jobs import load
from spark.jobs.exports import per_message, remove_earlier, shape, tag_of
from spark.storage.bucket import Bucket
from support.archived_files import put_old_commit, put_part
from support.data_frames import assertDataFrameEqual
from support.finished_messages import NOON, put_records
from support.s3_servers import fresh_bucket
from support.workbench import Workbench

ORDERS = [{"id": n, "country": "DE" if n % 2 else "FR", "amount": n * 1.5, "day": "2026-11-16"} for n in range(40)]


def put(bucket, key: str, body: bytes) -> None:
    bucket.store().put(key, body)


@pytest.fixture(scope="module")
def bucket(seaweedfs_endpoint) -> Bucket:
    """One for all: nothing here changes what another test reads."""
    return Bucket(fresh_bucket(client(seaweedfs_endpoint)), seaweedfs_endpoint, "us-east-1")


@pytest.fixture(scope="module")
def orders(bucket) -> dict[str, str]:
    """The same rows in three formats, four objects each; format → prefix."""
    for number in range(4):
        rows = ORDERS[number * 10 : number * 10 + 10]
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        put(bucket, f"datasets/orders/ndjson/{number}.ndjson", lines)
        table = pa.Table.from_pylist(rows)
        body = io.BytesIO()
        parquet.write_table(table, body)
        put(bucket, f"datasets/orders/parquet/{number}.parquet", body.getvalue())
        body = io.BytesIO()
        csv.write_csv(table, body)
        put(bucket, f"datasets/orders/csv/{number}.csv", body.getvalue())
    put(bucket, "datasets/orders/parquet/_SUCCESS", b"not data")
    return {name: f"datasets/orders/{name}/" for name in ("ndjson", "csv", "parquet")}


def run(spark, bucket, path: str = "messages/x", minute: int = 0, **request: Any) -> dict[str, Any]:
    bucket.note(spark)
    export = Export.model_validate({"destination": "analytics/exports/t/", **request})
    said: list[str] = []
    context: Any = SimpleNamespace(
        path=path,
        line=0,
        claimed_at=NOON + timedelta(minutes=minute),
        fence=f"1-{minute:016x}",
        progress=lambda fraction, text: said.append(text),
    )
    return per_message(spark, export, context)


def rows_of(bucket, files: list[str], format: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for key in files:
        body = bucket.store().open(key).read()
        if format == "json":
            found += [json.loads(line) for line in body.splitlines()]
        else:
            reader = parquet.read_table if format == "parquet" else csv.read_csv
            found += reader(io.BytesIO(body)).to_pylist()
    return found


@pytest.mark.parametrize(("source", "format"), [("ndjson", "parquet"), ("csv", "json"), ("parquet", "csv")])
def test_rows_are_filtered_and_columns_chosen_whatever_the_formats(spark, bucket, orders, source, format):
    result = run(
        spark,
        bucket,
        source=orders[source],
        source_format=source,
        filter="country = 'DE' and amount >= 30",
        columns=["id", "amount"],
        format=format,
    )

    expected = [{"id": n, "amount": n * 1.5} for n in range(40) if n % 2 and n * 1.5 >= 30]
    assert sorted(rows_of(bucket, result["files"], format), key=lambda row: row["id"]) == expected
    assert result["rows"] == len(expected)
    assert result["objects_read"] == 4
    assert all(key.startswith("analytics/exports/t/part-") for key in result["files"])


def test_an_aggregation_has_a_row_per_group(spark, bucket, orders):
    result = run(
        spark,
        bucket,
        source=[f"{orders['ndjson']}0.ndjson", f"{orders['ndjson']}1.ndjson"],
        source_format="ndjson",
        aggregate={
            "by": ["country"],
            "measures": {"orders": {"function": "count"}, "revenue": {"function": "sum", "column": "amount"}},
        },
        format="json",
    )

    found = sorted(rows_of(bucket, result["files"], "json"), key=lambda row: row["country"])
    assert found == [
        {"country": "DE", "orders": 10, "revenue": 150.0},
        {"country": "FR", "orders": 10, "revenue": 135.0},
    ]


def test_a_second_attempt_leaves_no_file_of_the_first(spark, bucket, orders):
    request = {"source": f"{orders['csv']}0.csv", "source_format": "csv", "columns": ["id"]}
    request["destination"] = "analytics/exports/twice/"
    first = run(spark, bucket, **request)
    other = run(spark, bucket, path="messages/other", **request)
    second = run(spark, bucket, minute=1, **request)

    keys = {entry.key for entry in bucket.store().list("analytics/exports/twice/").objects}
    assert keys == set(second["files"]) | set(other["files"])
    assert not keys & set(first["files"])


class Written:
    """A destination in memory, and the files that attempts leave there."""

    folder = "analytics/exports/daily/"

    def __init__(self) -> None:
        self.store = MemoryStore("written")

    def write(self, tag: str, parts: int) -> set[str]:
        keys = {f"{self.folder}part-{number:05d}-{tag}.parquet" for number in range(parts)}
        for key in keys:
            self.store.put(key, b"rows")
        return keys

    def remove_earlier(self, tag: str) -> set[str]:
        """What is left."""
        bucket: Any = SimpleNamespace(store=lambda: self.store)
        remove_earlier(bucket, self.folder, tag)
        return {entry.key for entry in self.store.list(self.folder).objects}


def context_of(claim: Claim, **more: Any) -> Context:
    return Context(claim=claim, max_attempts=3, renew=lambda claim, timeout: None, **more)


def test_a_replay_and_a_name_that_is_put_again_leave_no_file_of_before():
    bench, written = Workbench(), Written()
    queue = bench.queue("exports", max_attempts=2, retry_base=30)
    path = queue.enqueue({"n": 1}, name="daily")
    for _ in range(2):
        claim = queue.claim(path, read_first=True)
        assert written.remove_earlier(tag_of(context_of(claim))) == set()
        written.write(tag_of(context_of(claim)), 3)
        assert written.remove_earlier(tag_of(context_of(claim))), "its own files stay"
        queue.fail(claim, RuntimeError("killed"))
        bench.clock.advance(60)
    assert queue.replay(path) == path
    replayed = queue.claim(path, read_first=True)
    assert replayed.attempt == 1

    assert written.remove_earlier(tag_of(context_of(replayed))) == set()

    written.write(tag_of(context_of(replayed)), 5)
    queue.complete(replayed)
    bench.clock.advance(60)
    queue.enqueue({"n": 2}, name="daily")
    again = tag_of(context_of(queue.claim(path, read_first=True)))
    # Parts that the second one does not have are not left of the first.
    mine = written.write(again, 2)
    assert written.remove_earlier(again) == mine


def test_a_worker_that_is_late_removes_no_file_of_the_attempt_after_it():
    bench, written = Workbench(), Written()
    queue = bench.queue("exports", visibility_timeout=30)
    path = queue.enqueue({"n": 1})
    late = context_of(queue.claim(path, read_first=True))
    bench.clock.advance(40)
    bench.sweeper(queue, []).sweep()
    bench.clock.advance(40)
    second = context_of(queue.claim(path, read_first=True))
    assert (late.attempt, second.attempt) == (1, 2)
    kept = written.write(tag_of(second), 2)

    assert written.remove_earlier(tag_of(late)) == kept


def test_only_what_an_export_of_the_same_message_or_line_wrote_is_removed():
    bench, written = Workbench(), Written()
    queue = bench.queue("exports")
    (path,) = queue.enqueue_many([{"n": 1}, {"n": 2}])
    claim = queue.claim(path, read_first=True)
    first, second = (tag_of(context_of(claim, line=line)) for line in (1, 2))
    other = tag_of(context_of(queue.claim(queue.enqueue({"n": 1}))))
    kept = written.write(first, 1) | written.write(other, 1) | written.write("of someone else", 1)
    # As older versions called them: the digest, and the attempt.
    written.write(f"{second[:8]}-1", 3)
    written.write(f"{second[:8]}-12", 1)

    assert written.remove_earlier(second) == kept
    mine = written.write(second, 2)
    assert len(kept | mine) == 5
    assert written.remove_earlier(second) == kept | mine


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"filter": "price > 3"}, "unknown column 'price'; the columns are id, country, amount, day"),
        ({"columns": ["id", "nope"]}, "unknown column 'nope'"),
        ({"aggregate": {"by": ["where"], "measures": {"n": {"function": "count"}}}}, "unknown column 'where'"),
        ({"filter": "reflect('java.lang.Runtime', 'getRuntime') is null"}, "no function 'reflect'"),
        ({"filter": "id = 1; select 1"}, "unexpected ';'"),
        ({"filter": "country > 3"}, "cannot be evaluated on this data.*CAST_INVALID_INPUT"),
        ({"filter": "id / 0 > 1"}, "DIVIDE_BY_ZERO"),
        ({"filter": "lower(id.x) = 'a'"}, "cannot be evaluated on this data"),
        ({"filter": " or ".join(["id=1"] * 490)}, "at most 1000"),
        ({"filter": "+".join(["id"] * 1000) + "> 1"}, "at most 1000"),
        ({"filter": "+".join(["id"] * 300) + "> 1"}, "operators in a row"),
        ({"filter": f"id > {'9' * 3900}"}, "is too large"),
        ({"filter": "day < timestamp '0001-01-01T00:00:00+14:00'"}, "a value that Spark cannot represent"),
        ({"source": "datasets/nothing/"}, "there is nothing at 'datasets/nothing/'"),
        ({"source_format": "parquet"}, "cannot be read as parquet"),
    ],
)
def test_a_request_that_cannot_be_met_is_rejected_with_its_reason(spark, bucket, orders, request_, reason):
    with pytest.raises(Reject, match=reason):
        run(spark, bucket, **{"source": f"{orders['ndjson']}0.ndjson", "source_format": "ndjson"} | request_)


def test_a_csv_holds_no_formula_unless_it_was_asked_for(spark, bucket):
    nasty = [
        "=1+1",
        "+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        " =1",
        "\uff1d1",
        "\n=1",
        "plain",
        "a=b",
        "",
        None,
        "ü",
        "1-2",
    ]
    rows = [{"n": n, "=name": text} for n, text in enumerate(nasty)]
    put(bucket, "datasets/formulas.ndjson", "".join(json.dumps(row) + "\n" for row in rows).encode())
    asked = {"source": "datasets/formulas.ndjson", "source_format": "ndjson", "format": "csv"}

    def written(**more: Any) -> tuple[list[str], list[str]]:
        (file,) = run(spark, bucket, **asked, **more)["files"]
        body = io.StringIO(bucket.store().open(file).read().decode(), newline="")
        header, *lines = csv_reader(body)
        return header, [line[1] for line in sorted(lines, key=lambda line: int(line[0]))]

    header, texts = written()
    assert header == ["n", "'=name"]
    assert texts == [f"'{text}" for text in nasty[:9]] + ["plain", "a=b", "", "", "ü", "1-2"]
    header, texts = written(escape_formulas=False)
    assert (header, texts[:9]) == (["n", "=name"], nasty[:9])


def test_shaping_is_a_pure_transformation(spark):
    frame = spark.createDataFrame([(1, "a", 2.0), (2, "b", 3.0), (3, "a", 4.0)], "id int, kind string, v double")
    assertDataFrameEqual(
        shape(frame, parse("id > 1"), ["kind", "id"], None),
        spark.createDataFrame([("b", 2), ("a", 3)], "kind string, id int"),
    )
    by_kind = Aggregation.model_validate({"by": ["kind"], "measures": {"top": {"function": "max", "column": "v"}}})
    assertDataFrameEqual(
        shape(frame, None, None, by_kind), spark.createDataFrame([("a", 4.0), ("b", 3.0)], "kind string, top double")
    )


def test_objects_that_differ_have_the_columns_of_all(spark, bucket):
    put(bucket, "datasets/mixed/1.ndjson", b'{"a": 1, "b": {"x": 1}}\n{"a": 2}\n')
    put(bucket, "datasets/mixed/2.ndjson", b'{"a": 2.5, "c": "text", "b": null}\n')

    frame = read(spark, bucket, find(bucket, ["datasets/mixed/"]), "ndjson")

    assert sorted((row.a, row.c) for row in frame.collect()) == [(1.0, None), (2.0, None), (2.5, "text")]
    assert frame.where("b.x = 1").count() == 1


def test_objects_that_contradict_each_other_are_refused_by_name(spark, bucket):
    put(bucket, "datasets/clash/1.ndjson", b'{"a": 1}\n')
    put(bucket, "datasets/clash/2.ndjson", b'{"a": {"b": 1}}\n')
    with pytest.raises(BadDataset, match="do not have one schema"):
        read(spark, bucket, find(bucket, ["datasets/clash/"]), "ndjson")
    put(bucket, "datasets/broken.ndjson", b'{"a": 1}\n{"a": \n')
    with pytest.raises(BadDataset, match=r"datasets/broken.ndjson cannot be read as ndjson"):
        read(spark, bucket, find(bucket, ["datasets/broken.ndjson"]), "ndjson")


def test_a_large_object_that_is_replaced_while_its_parts_are_read_fails_the_attempt(spark, bucket, monkeypatch):
    put(bucket, "datasets/large.ndjson", b'{"version": 1}\n' * 100)
    monkeypatch.setattr(reading, "SPLIT_BYTES", 300)
    frame = read(spark, bucket, find(bucket, ["datasets/large.ndjson"]), "ndjson")
    assert (frame.count(), frame.where("version = 1").count()) == (100, 100)

    # Of the same size: only its ETag differs.
    put(bucket, "datasets/large.ndjson", b'{"version": 2}\n' * 100)

    with pytest.raises(PySparkException, match=r"datasets/large.ndjson was replaced") as raised:
        frame.collect()
    # What is not the data's fault is worth another attempt.
    assert "BadDataset" not in str(raised.value)


def test_arrow_types_that_spark_lacks_become_ones_that_it_has():
    found = for_spark(
        pa.schema(
            {
                "a": pa.null(),
                "b": pa.uint32(),
                "c": pa.dictionary(pa.int8(), pa.string()),
                "d": pa.timestamp("ns"),
                "e": pa.list_(pa.struct([pa.field("x", pa.time32("s"))])),
            }
        )
    )
    assert found.types == [
        pa.string(),
        pa.int64(),
        pa.string(),
        pa.timestamp("us"),
        pa.list_(pa.struct([pa.field("x", pa.string())])),
    ]


def test_every_spark_queue_has_a_job():
    import queues

    for name, definition in queues.load().items():
        if definition.settings.engine == "spark":
            assert load(name)


def test_the_archive_is_exported_as_a_table(spark, bucket, monkeypatch, caplog):
    from queues import exports

    store = bucket.store()
    for queue, count in (("emails", 3), ("orders", 2)):
        put_records(store, queue, count)
        archive(spark, bucket, queue, now=NOON)
    put_part(store, "emails", ["orphan"], version=9)
    monkeypatch.setattr(exports, "SOURCES", ("datasets/", "archive/"))
    asked = {"source": "archive/", "source_format": "parquet", "format": "json", "destination": "analytics/exports/a/"}
    counted = {"by": ["queue", "day"], "measures": {"rows": {"function": "count"}}}

    done = run(spark, bucket, **asked, aggregate=counted)

    assert sorted(row["rows"] for row in rows_of(bucket, done["files"], "json")) == [2, 3]
    assert done["objects_read"] == 2
    one = run(spark, bucket, **asked | {"source": "archive/queue=orders/"}, filter="day = '2026-11-16'")
    assert {row["queue"] for row in rows_of(bucket, one["files"], "json")} == {"orders"}
    assert "not_converted" not in one
    put_old_commit(store, "emails", 7, [put_part(store, "emails", ["old"], version=7)])
    left = run(spark, bucket, **asked, aggregate=counted)
    assert (left["objects_read"], left["not_converted"]) == (2, ["emails"])
    assert "part of the archive of emails is in the old layout" in caplog.text
    assert "not_converted" not in run(spark, bucket, **asked | {"source": "archive/queue=orders/"})
    with pytest.raises(Reject, match="archive has nothing at 'archive/queue=idle/'"):
        run(spark, bucket, **asked | {"source": ["archive/queue=orders/", "archive/queue=idle/"]})
    with pytest.raises(Reject, match="no other source"):
        run(spark, bucket, **asked | {"source": ["archive/", "datasets/orders/"]})
