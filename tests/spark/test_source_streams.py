"""Streams: records and dead letters are read once, what is written to a queue runs once, whatever is killed."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from datetime import UTC, datetime

import pytest
from pyspark.errors import StreamingQueryException

from s3queue import Queue, QueueSettings
from spark.datasource import register
from support.finished_messages import keys_under, put_record, put_records, record
from support.recording_bucket import recording_proxy, requests_in

pytestmark = pytest.mark.filterwarnings("ignore:.PYARROW_IGNORE_TIMEZONE.")
#: Longer than the two seconds after which a second is over.
SETTLED = 4
#: Spark gives a Python process ten seconds to start, which a busy machine may not keep; then a query is started again.
SLOW, TRIES = "failed to connect back", 6


@pytest.fixture
def source(spark, bucket):
    register(spark)
    return {"url": f"s3://{bucket.name}/emails", "endpoint_url": bucket.endpoint_url, "region": "us-east-1"}


def stream(spark, source, **options):
    return spark.readStream.format("s3queue").options(**source | {"settle_seconds": "2"} | options).load()


def copy(frame, source, checkpoint, **options) -> None:
    """Into the queue `copies`, until all that is there was copied."""
    target = source | {"url": source["url"].replace("/emails", "/copies")} | options
    writer = frame.writeStream.format("s3queue").options(**target).option("checkpointLocation", str(checkpoint))
    for left in reversed(range(TRIES)):
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240)
            return
        except StreamingQueryException as failed:
            if not left or SLOW not in str(failed):
                raise
        finally:
            query.stop()


def worked_off(bucket) -> Counter:
    """Everything that a worker of `copies` runs now."""
    queue = Queue(store=bucket.store(), name="copies", settings=QueueSettings.of(visibility_timeout=300))
    ran: Counter = Counter()
    for key in sorted(keys_under(queue.store, "copies/messages/")):
        claim = queue.claim(queue.keys.path(key))
        if claim is not None:
            ran.update(queue.store.open(key).read().splitlines())
            queue.complete(claim)
    return ran


def paths(numbers) -> Counter:
    return Counter(b'{"path":"messages/m%05d"}' % n for n in numbers)


BODY = "to_json(struct(path)) as body"


def test_records_go_through_a_stream_into_another_queue_each_once_over_restarts(spark, source, bucket, tmp_path):
    store, checkpoint = bucket.store(), tmp_path / "checkpoint"
    log = tmp_path / "requests"
    put_records(store, "emails", 30)
    store.put("emails/records/messages/x", b"garbage")
    time.sleep(SETTLED)
    copy(stream(spark, source, kind="records").selectExpr(BODY), source, checkpoint, per_object=10)
    assert worked_off(bucket) == paths(range(30))
    put_records(store, "emails", 5, start=30)
    # Replaced: a message of that name was finished once more.
    put_record(store, "emails", record("messages/m00003", finished_at=datetime(2026, 11, 17, tzinfo=UTC)))
    time.sleep(SETTLED)

    with recording_proxy(str(bucket.endpoint_url), log) as endpoint:
        slow = source | {"endpoint_url": endpoint}
        copy(stream(spark, slow, kind="records").selectExpr(BODY), slow, checkpoint)

    assert worked_off(bucket) == paths([3, *range(30, 35)])
    told = Counter(request.verb for request in requests_in(log))
    # One LIST for S3's date and the groups, one for what is there, and the same once more: with `availableNow` Spark
    # asks twice, before the microbatch and after it. A GET for what is new, a PUT for the batch.
    assert told == {"list": 4, "get": 6, "put": 1}
    copy(stream(spark, source, kind="records").selectExpr(BODY), source, checkpoint)
    assert worked_off(bucket) == Counter()


def test_a_stream_that_is_killed_in_the_middle_repeats_its_microbatch_and_nothing_runs_twice(
    spark, source, bucket, tmp_path
):
    store, checkpoint, flag = bucket.store(), tmp_path / "checkpoint", tmp_path / "died"
    # Two tasks: the second one dies, the first has written by then.
    put_records(store, "emails", 300)
    time.sleep(SETTLED)
    where = str(flag)

    def deadly(batches):
        import pyarrow.compute as pc

        for batch in batches:
            if pc.any(pc.match_substring(batch.column(0), "m00299")).as_py() and not os.path.exists(where):
                time.sleep(3)
                open(where, "w").close()
                os._exit(9)
            yield batch

    def frame():
        return stream(spark, source, kind="records").selectExpr(BODY).mapInArrow(deadly, "body string")

    with pytest.raises(Exception, match="worker exited"):
        copy(frame(), source, checkpoint, per_object=20)
    assert flag.exists()
    # Half of what was written is worked off before the restart, so its names are free again.
    left = sorted(keys_under(store, "copies/messages/"))
    assert left
    ran = worked_off(bucket)
    assert 0 < ran.total() < 300

    copy(frame(), source, checkpoint, per_object=20)

    assert ran + worked_off(bucket) == paths(range(300))
    assert worked_off(bucket) == Counter()


def test_a_running_stream_reads_what_comes_and_rests_while_nothing_does(spark, source, bucket, tmp_path):
    queue = Queue(store=bucket.store(), name="emails", settings=QueueSettings.of(max_attempts=1))
    seen: list[tuple[int, list[str]]] = []

    def keep(frame, number: int) -> None:
        seen.append((number, sorted(row.error for row in frame.collect())))

    def die(text: str) -> None:
        queue.fail(queue.claim(queue.enqueue({})), ValueError(text))

    die("first")
    frame = stream(spark, source, kind="dead", columns="error")
    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(processingTime="1 second").start()
    deadline = time.monotonic() + 200

    def wait_for(letters: int) -> None:
        nonlocal query
        while sum(len(errors) for _, errors in seen) < letters and time.monotonic() < deadline:
            time.sleep(0.2)
            if not query.isActive:
                assert SLOW in str(query.exception())
                query = writer.start()

    try:
        wait_for(1)
        die("second")
        wait_for(2)
        batches = len(seen)
        time.sleep(3)
    finally:
        query.stop()
    assert [error for _, errors in seen for error in errors] == ["first", "second"]
    assert len(seen) == batches, "no microbatch without anything in it"


def test_a_named_stream_and_what_it_refuses(spark, source, bucket, tmp_path):
    put_records(bucket.store(), "emails", 1)
    time.sleep(SETTLED)
    copy(
        stream(spark, source, kind="records").selectExpr(BODY), source, tmp_path / "a", run="copy", priority=7, shards=4
    )
    (key,) = keys_under(bucket.store(), "copies/messages/")
    assert key.startswith("copies/messages/p007/")
    assert "bulk-copy.000000000-" in key
    assert json.loads(bucket.store().open(key).read()) == {"path": "messages/m00000"}
    with pytest.raises(Exception, match="records or dead"):
        copy(stream(spark, source, kind="messages").select("path"), source, tmp_path / "b")
    with pytest.raises(Exception, match="one column of text or bytes"):
        copy(stream(spark, source, kind="records").select("path", "outcome"), source, tmp_path / "c")
    with pytest.raises(Exception, match="cannot be a message"):
        copy(stream(spark, source, kind="records").select("path"), source, tmp_path / "d")
