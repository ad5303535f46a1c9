"""`format("s3queue")` shows what lies in a queue, and enqueues; a committed run is not repeated."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as sf

from s3queue import Queue, QueueSettings
from s3queue.errors import InvalidRequest
from spark.archive import archive
from spark.datasource import Target, register
from support.archived_files import put_old_commit, put_part
from support.data_frames import assertDataFrameEqual
from support.finished_messages import NOON, keys_under, put_records
from support.recording_bucket import recording_proxy, requests_in

pytestmark = pytest.mark.filterwarnings("ignore:.PYARROW_IGNORE_TIMEZONE.")


@pytest.fixture
def source(spark, bucket):
    """Options that name the bucket."""
    register(spark)
    return {"url": f"s3://{bucket.name}/emails", "endpoint_url": bucket.endpoint_url, "region": "us-east-1"}


@pytest.fixture
def queue(bucket) -> Queue:
    return Queue(store=bucket.store(), name="emails", settings=QueueSettings.of(max_attempts=1))


def read(spark, source, **options):
    return spark.read.format("s3queue").options(**source | options).load()


def write(frame, source, **options) -> None:
    frame.write.format("s3queue").options(**source | options).mode("append").save()


def bodies(store) -> Counter:
    keys = keys_under(store, "emails/messages/")
    return Counter(line for key in keys for line in store.open(key).read().splitlines())


def test_messages_are_rows_and_so_are_the_lines_of_a_batch(spark, source, queue):
    single = queue.enqueue({"n": 0}, priority=7, metadata={"from": "ä"})
    due = queue.enqueue({"n": 9}, due_at=datetime(2100, 1, 1, tzinfo=UTC))
    (batch,) = queue.enqueue_many([{"n": 1}, {"n": 2}])
    queue.store.put("emails/messages/folder/", b"")

    found = read(spark, source).select("path", "line", sf.col("body").cast("string"), "priority", "due_at")

    expected = [
        (single, 0, '{"n":0}', 7, None),
        (due, 0, '{"n":9}', 0, datetime(2100, 1, 1, tzinfo=UTC)),
        (batch, 1, '{"n":1}', 0, None),
        (batch, 2, '{"n":2}', 0, None),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))
    assert read(spark, source).filter(sf.col("path") == single).first().metadata == {"from": "ä"}


def test_records_are_the_rows_of_the_archive_and_garbage_is_left_out(spark, source, bucket):
    put_records(bucket.store(), "emails", 3)
    bucket.store().put("emails/records/messages/x", b"garbage")

    found = read(spark, source, kind="records")

    assert found.groupBy("outcome").count().collect()[0].asDict() == {"outcome": "completed", "count": 3}
    assert {row.wait for row in found.select((sf.size("attempts")).alias("wait")).collect()} == {1}


def test_dead_letters_tell_what_they_died_of(spark, source, queue):
    path = queue.enqueue({"n": 1}, metadata={"from": "me"})
    queue.fail(queue.claim(path), ValueError("no such address"))

    (row,) = read(spark, source, kind="dead").collect()

    assert (row.path, row.error_type, row.error, row.attempts) == (path, "ValueError", "no such address", 1)
    assert (bytes(row.body), row.metadata) == (b'{"n":1}', {"from": "me"})


def test_the_archive_is_its_table_with_queue_and_day_and_without_the_files_that_do_not_count(spark, source, bucket):
    store = bucket.store()
    put_records(store, "emails", 3)
    put_records(store, "orders", 2)
    for queue in ("emails", "orders"):
        archive(spark, bucket, queue, now=NOON)
    put_part(store, "emails", ["orphan"], version=9)

    found = read(spark, source, kind="archive")

    assert found.columns[:2] == ["queue", "day"]
    assert {(row.queue, row.day, row["count"]) for row in found.groupBy("queue", "day").count().collect()} == {
        ("emails", "2026-11-16", 3)
    }
    assertDataFrameEqual(found, read(spark, source, kind="records"))
    put_old_commit(store, "invoices", 1, [put_part(store, "invoices", ["a"])])
    with pytest.raises(Exception, match="s3queue archive convert invoices"):
        read(spark, source | {"url": f"s3://{bucket.name}/invoices"}, kind="archive").count()


@pytest.fixture
def counted(source, bucket, tmp_path):
    """Options that name the bucket, and what it was asked since the last call, by verb."""
    log = tmp_path / "requests"
    with recording_proxy(str(bucket.endpoint_url), log) as endpoint:

        def requests() -> dict[str, int]:
            found = Counter(request.verb for request in requests_in(log))
            log.unlink(missing_ok=True)
            return dict(found)

        yield source | {"endpoint_url": endpoint}, requests


def test_a_filter_of_one_key_reads_one_object(spark, counted, bucket):
    options, requests = counted
    put_records(bucket.store(), "emails", 60)

    def records():
        return read(spark, options, kind="records", pushdown="true")

    assert records().filter("path = 'messages/m00007' and outcome = 'completed'").count() == 1
    assert requests() == {"get": 1}
    assert records().filter(sf.col("record_key") == "emails/records/messages/m00008").count() == 1
    assert requests() == {"get": 1}
    assert records().filter(sf.col("path").isin("messages/m00001", "messages/m00002", "messages/none")).count() == 2
    assert requests() == {"get": 3}
    assert records().filter("path > 'messages/m00057' and outcome != 'dead'").count() == 2
    # The bound itself is read, and left out by Spark.
    assert requests() == {"list": 1, "get": 3}
    assert records().filter(sf.col("path").startswith("messages/m0001")).count() == 10
    assert requests() == {"list": 1, "get": 10}
    # What no key tells is still right.
    assert records().filter("outcome = 'dead' or path = 'messages/m00001'").count() == 1
    assert requests()["get"] == 60


def test_a_frame_of_named_paths_reads_only_these_and_serves_any_query(spark, counted, bucket):
    options, requests = counted
    put_records(bucket.store(), "emails", 60)

    one = read(spark, options, kind="records", path="messages/m00007")
    assert one.count() == 1
    assert requests() == {"get": 1}
    few = read(spark, options, kind="records", path_from="messages/m00055", path_to="messages/m00057")
    assert (few.filter("path = 'messages/m00055'").count(), few.count()) == (1, 3)
    assert requests() == {"list": 1, "get": 6}
    assert few.filter("path = 'messages/m00056'").union(few.filter("path = 'messages/m00057'")).count() == 2
    told = read(spark, options, path_prefix="messages/none", columns="path")
    assert told.count() == 0
    with pytest.raises(Exception, match="option day is not for records"):
        read(spark, options, kind="records", day="2026-11-16").count()


def test_without_pushdown_a_frame_that_was_filtered_still_has_all_its_rows(spark, source, bucket):
    """Spark 4.1.1 would use what it planned for the filter: that is why it has to be asked for."""
    put_records(bucket.store(), "emails", 5)
    records = read(spark, source, kind="records")
    assert records.filter("path = 'messages/m00001'").count() == 1
    assert records.count() == 5


def test_a_queue_is_listed_once(spark, counted, bucket):
    options, requests = counted
    put_records(bucket.store(), "emails", 120)

    assert read(spark, options, kind="records").count() == 120

    # Down to messages/: two; nobody lists what was listed.
    assert requests() == {"list": 2, "get": 120}


def test_columns_that_a_list_tells_need_no_body(spark, counted, bucket):
    options, requests = counted
    queue = Queue(store=bucket.store(), name="emails")
    paths = [queue.enqueue({"n": n}, priority=n % 2) for n in range(20)]
    whole = read(spark, options)
    named = read(spark, options, columns="path, size, enqueued_at, priority")
    typed = spark.read.schema("size bigint, path string").format("s3queue").options(**options).load()
    expected = whole.select("path", "size", "enqueued_at", "priority").collect()
    requests()

    found = named.collect()

    assert requests().keys() == {"list"}
    assert sorted(found) == sorted(expected)
    assert {row.path for row in found} == set(paths)
    assert sorted(typed.collect()) == sorted((row.size, row.path) for row in expected)
    assert requests().keys() == {"list"}
    # The lines of a batch are in its body.
    queue.enqueue_many([1, 2, 3])
    assert named.count() == 20, "what was planned once stays so: load it again"
    assert read(spark, options, columns="path, size, enqueued_at, priority").count() == 23
    assert requests()["get"] == 1
    with pytest.raises(Exception, match="the columns follow from the kind"):
        spark.read.schema("size string").format("s3queue").options(**options).load().collect()


def test_of_the_archive_the_days_and_columns_that_are_wanted_are_read(spark, counted, bucket):
    options, requests = counted
    store = bucket.store()
    put_records(store, "emails", 3)
    put_records(store, "emails", 2, start=3, finished_at=NOON - timedelta(days=1))
    archive(spark, bucket, "emails", now=NOON)
    wanted = {"kind": "archive", "columns": "path,outcome,day"}
    everything = read(spark, options, **wanted).count()
    before = requests()["get"]

    found = read(spark, options, **wanted, pushdown="true").filter("day = '2026-11-15'").collect()

    assert everything == 5
    assert {(row.path, row.outcome, row.day) for row in found} == {
        (f"messages/m0000{n}", "completed", "2026-11-15") for n in (3, 4)
    }
    assert requests()["get"] == before - 1, "not the file of the other day"
    assert read(spark, options, **wanted, day_to="2026-11-15").count() == 2
    assert requests()["get"] == before - 1


@pytest.mark.parametrize("kind", ["messages", "records", "archive", "dead"])
def test_a_queue_with_nothing_in_it_is_an_empty_frame(spark, source, kind):
    assert read(spark, source, kind=kind).count() == 0


def test_a_frame_is_enqueued_and_a_committed_run_is_not_repeated(spark, source, bucket):
    store = bucket.store()
    frame = spark.range(25).select(sf.to_json(sf.struct("id")).alias("body"))

    write(frame, source, run="november", per_object=10, priority=200)

    assert bodies(store) == Counter(b'{"id":%d}' % n for n in range(25))
    assert all(key.startswith("emails/messages/p200/bulk-november-") for key in keys_under(store, "emails/messages/"))
    assert json.loads(store.open("emails/bulk/november/done.json").read())["messages"] == 25
    for key in keys_under(store, "emails/messages/"):
        store.delete(key)
    write(frame, source, run="november")
    assert bodies(store) == Counter()


def test_a_task_that_is_run_again_adds_nothing_twice(spark, source, bucket):
    """As Spark does it after a failure: same run, same partitions, same rows."""
    store = bucket.store()
    frame = spark.range(25).repartition(2).select(sf.to_json(sf.struct("id")).alias("body"))
    write(frame, source, run="retried", per_object=5)
    before = keys_under(store, "emails/messages/")
    store.delete("emails/bulk/retried/done.json")
    store.delete("emails/bulk/retried/00001.done")

    write(frame, source, run="retried", per_object=5)

    assert keys_under(store, "emails/messages/") == before


def test_what_cannot_be_a_message_fails_the_job(spark, source):
    with pytest.raises(Exception, match="more than one line"):
        write(spark.createDataFrame([("a\nb",)], "body string"), source)
    with pytest.raises(Exception, match="one column of text or bytes"):
        write(spark.range(2), source)
    frame = spark.createDataFrame([("1",)], "body string")
    with pytest.raises(Exception, match="append"):
        frame.write.format("s3queue").options(**source).mode("overwrite").save()
    with pytest.raises(Exception, match="option kind"):
        read(spark, source, kind="leases").count()


@pytest.mark.parametrize("options", [{}, {"url": "s3://b"}, {"url": "http://b/q"}, {"url": "s3://b/a/b"}])
def test_options_that_name_no_queue_are_refused(options):
    with pytest.raises(InvalidRequest):
        Target.of(options)
    assert Target.of({"url": "s3://b", "queue": "emails"}).queue == "emails"
