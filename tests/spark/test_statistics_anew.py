"""Statistics are computed for hours that have changed, and for all queues at once; nothing else is read or written."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from s3queue.archive.upkeep import compact
from s3queue.keys import STATISTICS_STATE, Keys
from spark.archive import archive
from spark.history.hour_lines import merge_lines, read_lines
from spark.statistics import statistics
from support.finished_messages import NOON, keys_under, put_record, put_records, record

pytestmark = pytest.mark.filterwarnings("ignore:.PYARROW_IGNORE_TIMEZONE.")


def messages(latest, queue="emails"):
    return {row["hour"][11:13]: row["messages"] for row in latest["queues"][queue]["hours"]}


def test_hours_that_have_not_changed_are_not_computed_again(spark, bucket):
    store = bucket.store()
    now = store.list("x", limit=1).at
    hour = now.replace(minute=0, second=0, microsecond=0)
    old = put_records(store, "emails", 3, finished_at=now)
    first = statistics(spark, bucket, ["emails"], now=now)
    # As if they had finished hours ago, and expired since: only whoever computes that hour again misses them.
    lines = read_lines(store.open(Keys("emails").hours(hour.strftime("%Y-%m-%d"))))
    (line,) = lines.values()
    ago = (hour - timedelta(hours=5)).strftime("%Y-%m-%dT%H:00:00Z")
    merge_lines(store, "emails", ago[:10], [line | {"hour": ago, "messages": 7}])
    put_record(store, "emails", record("messages/new", finished_at=now))

    second = statistics(spark, bucket, ["emails"], now=now + timedelta(minutes=1))

    assert first["queues"]["emails"]["messages"] == 3
    assert messages(second) == {ago[11:13]: 7, f"{hour:%H}": 4}, "one is as it was, one was computed with what is new"
    assert second["queues"]["emails"]["messages"] == 11
    assert old


def test_what_the_archive_gained_is_computed_and_a_compaction_alone_is_not(spark, bucket):
    store = bucket.store()
    put_records(store, "emails", 4, finished_at=NOON - timedelta(hours=3))
    archive(spark, bucket, "emails", now=NOON)
    for key in keys_under(store, "emails/records/"):
        store.delete(key)
    assert messages(statistics(spark, bucket, ["emails"], now=NOON)) == {"09": 4}

    # Nobody looked between its end and its archival: it is only in the archive.
    put_records(store, "emails", 2, start=10, finished_at=NOON - timedelta(hours=2))
    archive(spark, bucket, "emails", now=NOON)
    for key in keys_under(store, "emails/records/"):
        store.delete(key)
    assert messages(statistics(spark, bucket, ["emails"], now=NOON)) == {"09": 4, "10": 2}

    before = keys_under(store, "analytics/hours/")
    assert compact(bucket.archive()).removed == 2
    assert messages(statistics(spark, bucket, ["emails"], now=NOON)) == {"09": 4, "10": 2}
    assert keys_under(store, "analytics/hours/") == before


def test_a_clock_that_is_further_off_than_any_before_is_found_out(spark, bucket):
    store = bucket.store()
    now = store.list("x", limit=1).at
    put_records(store, "emails", 1, finished_at=now)
    statistics(spark, bucket, ["emails"], now=now)
    put_records(store, "emails", 2, start=5, finished_at=now - timedelta(hours=30))
    latest = statistics(spark, bucket, ["emails"], now=now)
    assert latest["queues"]["emails"]["messages"] == 3
    assert json.loads(store.open(STATISTICS_STATE).read())["queues"]["emails"]["skew_seconds"] > 29 * 3600


def test_a_computation_that_died_before_its_end_is_repeated_with_the_same_figures(spark, bucket, monkeypatch):
    store = bucket.store()
    put_records(store, "emails", 3)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("spark.statistics.write_state", die)
        with pytest.raises(KeyboardInterrupt):
            statistics(spark, bucket, ["emails"], now=NOON)
    before = keys_under(store, "analytics/hours/")
    latest = statistics(spark, bucket, ["emails"], now=NOON)
    assert latest["queues"]["emails"]["messages"] == 3
    assert keys_under(store, "analytics/hours/") == before
    assert statistics(spark, bucket, ["emails"], now=NOON, everything=True) == latest


def test_a_hundred_queues_in_one_run(spark, bucket):
    store = bucket.store()
    queues = [f"q{number:03d}" for number in range(100)]
    for number, queue in enumerate(queues):
        put_records(store, queue, 1 + number % 3, wait=number, run=2)
    archive(spark, bucket, queues[0], now=NOON)
    latest = statistics(spark, bucket, queues, now=NOON)
    assert [latest["queues"][queue]["messages"] for queue in queues] == [1 + number % 3 for number in range(100)]
    for number, queue in ((7, "q007"), (99, "q099")):
        told = latest["queues"][queue]
        assert told["hours"][0]["wait_p50_seconds"] == number
        assert told["wait_p50_seconds"] == pytest.approx(number, rel=told["percentile_error"] + 0.001)


def test_a_later_line_wins_whoever_writes_last_and_an_equal_one_changes_nothing(bucket):
    store = bucket.store()
    line = {
        **dict.fromkeys(("objects", "messages", "completed", "dead", "attempts", "retried", "bytes", "workers"), 1),
        **{"hour": "2026-11-16T09:00:00Z", "errors": [], "workers_busiest": [], "histograms": {}},
    }
    newer = line | {"messages": 5, "computed_at": "2026-11-16T13:00:00Z"}
    merge_lines(store, "emails", "2026-11-16", [newer])
    before = keys_under(store, "analytics/")
    older = line | {"messages": 4, "computed_at": "2026-11-16T12:00:00Z"}
    assert merge_lines(store, "emails", "2026-11-16", [older]) == [newer]
    assert merge_lines(store, "emails", "2026-11-16", [newer | {"computed_at": "2026-11-16T14:00:00Z"}]) == [newer]
    assert keys_under(store, "analytics/") == before
    store.put(Keys("emails").hours("2026-11-17"), b'garbage\n{"hour": 3}\n')
    assert merge_lines(store, "emails", "2026-11-17", []) == []
