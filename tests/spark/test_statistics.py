"""Statistics tell of every record once, whether it is archived or not, and survive whatever lies among them."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from s3queue.documents.record import Failure
from s3queue.errors import Conflict
from s3queue.keys import LATEST_STATISTICS, STATISTICS_STATE
from s3queue.stores.memory import MemoryStore
from spark.archive import archive
from spark.history.facts import FACTS, facts_of
from spark.history.statistics_frames import errors_by, summary, workers_by
from spark.rows.record_rows import READ_SCHEMA, RECORD_SCHEMA, record_row
from spark.statistics import main, publish, statistics
from support.data_frames import assertDataFrameEqual
from support.finished_messages import NOON, keys_under, put_record, put_records, record

pytestmark = pytest.mark.filterwarnings("ignore:.PYARROW_IGNORE_TIMEZONE.")
SMTP = Failure("SMTPError", "no route")


def figures_in(store):
    """Without what was seen, and when: that is new each time."""
    return {key: etag for key, etag in keys_under(store, "analytics/").items() if key != STATISTICS_STATE}


def frame(spark, *records):
    rows = []
    for each in records:
        row = record_row("emails", f"emails/records/{each.path}", "e", each.to_bytes())
        named = dict(zip(RECORD_SCHEMA.names, row, strict=True))
        rows.append(named | {"dead_by_type": dict(named["dead_by_type"]), "problem": None})
    return spark.createDataFrame([tuple(row[name] for name in READ_SCHEMA.names) for row in rows], READ_SCHEMA)


def known(spark, *records):
    return frame(spark, *records).mapInArrow(lambda batches: map(facts_of, batches), FACTS)


def test_waiting_ends_at_the_first_attempt_and_running_is_the_last_one(spark):
    found = known(
        spark,
        record("messages/a", wait=3, run=7),
        record("messages/b", wait=3, run=7, tries=2),
        record("delayed/20261116T115957Z/c", wait=100, run=1),
        record("messages/skewed", wait=-5, run=0),
        record("messages/vanished", attempts=(), failure=SMTP),
    ).select("attempt", "wait_seconds", "run_seconds")

    expected = [(1, 3.0, 7.0), (3, 3.0, 7.0), (1, 2.0, 1.0), (1, 0.0, 0.0), (1, None, None)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))


def test_an_hour_counts_messages_not_objects_and_its_percentiles_are_of_objects(spark):
    lines = {"total": 100, "completed": 98, "dead": 2, "dead_lines": [[1, "Late", ""], [2, "Late", ""]]}
    found = summary(
        known(
            spark,
            *(record(f"messages/{n:03d}", wait=n, run=1, worker=f"w{n % 4}") for n in range(1, 99)),
            record("messages/b.ndjson", lines=lines, wait=99, run=50, worker="w1"),
            record("messages/dead", failure=SMTP, tries=2, wait=100, run=2, worker=""),
            record("messages/earlier", finished_at=NOON - timedelta(minutes=1)),
        ),
        "queue",
        "hour",
    ).orderBy("hour")

    earlier, hour = found.collect()
    assert (earlier.objects, hour.objects) == (1, 100)
    assert (hour.messages, hour.completed, hour.dead, hour.success_rate) == (199, 196, 3, 196 / 199)
    assert (hour.wait_p50_seconds, hour.wait_p95_seconds, hour.wait_p99_seconds) == (50, 95, 99)
    assert (hour.run_p50_seconds, hour.run_p99_seconds) == (1, 2)
    assert (hour.attempts, hour.retried, hour.workers, hour.messages_per_worker) == (102, 1, 4, 199 / 4)


def test_errors_are_counted_by_type_deaths_and_failed_attempts_apart(spark):
    lines = {"total": 5, "completed": 3, "dead": 2, "dead_lines": [[1, "Late", ""], [2, "SMTPError", ""]]}
    found = errors_by(
        known(
            spark,
            record("messages/a", failure=SMTP, tries=2),
            record("messages/b.ndjson", lines=lines),
            record("messages/c", tries=1),
        ),
        "queue",
    )
    expected = [("emails", "SMTPError", 2, 1), ("emails", "Late", 1, 0), ("emails", "Flaky", 0, 3)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))


def test_workers_are_ranked_by_what_they_finished(spark):
    lines = {"total": 5, "completed": 5, "dead": 0}
    found = workers_by(
        known(
            spark,
            record("messages/a", worker="one"),
            record("messages/b", worker="one"),
            record("messages/c.ndjson", worker="two", lines=lines),
            record("messages/d", worker=""),
        ),
        "queue",
    )
    assertDataFrameEqual(found, spark.createDataFrame([("emails", "two", 5, 1), ("emails", "one", 2, 2)], found.schema))


def test_what_is_archived_and_what_is_not_counts_once_and_a_rerun_changes_nothing(spark, bucket):
    store = bucket.store()
    put_records(store, "emails", 10, finished_at=NOON - timedelta(hours=1))
    put_records(store, "emails", 1, start=70, finished_at=NOON - timedelta(days=30))
    archive(spark, bucket, "emails", now=NOON)
    put_records(store, "emails", 5, start=20)
    put_record(store, "emails", record("messages/dead", failure=SMTP))
    store.put("emails/records/messages/garbage", b"?")

    latest = statistics(spark, bucket, ["emails", "idle"], now=NOON)

    emails = latest["queues"]["emails"]
    assert (emails["messages"], emails["completed"], emails["dead"], emails["unreadable_records"]) == (16, 15, 1, 1)
    assert [(row["hour"], row["messages"]) for row in emails["hours"]] == [
        ("2026-11-16T11:00:00Z", 10),
        ("2026-11-16T12:00:00Z", 6),
    ]
    assert emails["errors"] == [{"error_type": "SMTPError", "dead": 1, "failed_attempts": 1}]
    assert emails["busiest_workers"] == [{"worker": "worker-1", "messages": 16, "objects": 16}]
    assert latest["queues"]["idle"]["messages"] == 0
    assert json.loads(store.open(LATEST_STATISTICS).read()) == latest
    # The dashboard draws every column that is a number in every row.
    assert all(
        isinstance(value, (int, float)) for row in emails["hours"] for name, value in row.items() if name != "hour"
    )

    before = figures_in(store)
    assert "analytics/hours/queue=emails/day=2026-11-16/hours.ndjson" in before
    archive(spark, bucket, "emails", now=NOON)
    assert statistics(spark, bucket, ["emails", "idle"], now=NOON) == latest
    assert figures_in(store) == before


def test_a_bucket_without_history_has_empty_statistics(spark, bucket, capsys):
    bucket.store().put("emails/messages/x", b"{}")
    assert main(["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url]) == 0
    assert "emails: 0 messages" in capsys.readouterr().out


def test_an_older_computation_never_replaces_a_newer_one():
    store = MemoryStore("x")
    store.put(LATEST_STATISTICS, b"garbage")
    assert publish(store, {"computed_at": "2026-11-16T12:00:00Z"})
    assert not publish(store, {"computed_at": "2026-11-16T11:00:00Z"})
    assert publish(store, {"computed_at": "2026-11-16T13:00:00Z"})
    assert json.loads(store.open(LATEST_STATISTICS).read()) == {"computed_at": "2026-11-16T13:00:00Z"}


def test_two_computations_at_once_leave_the_later(monkeypatch):
    store = MemoryStore("y")
    put, raced = store.put, []

    def late(key, body, **options):
        if not raced:
            raced.append(True)
            put(key, b'{"computed_at": "2026-11-16T13:00:00Z"}')
            raise Conflict("someone was faster")
        return put(key, body, **options)

    monkeypatch.setattr(store, "put", late)
    assert not publish(store, {"computed_at": "2026-11-16T12:00:00Z"})
