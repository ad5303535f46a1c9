"""The archive warns before records expire that it has not taken."""

from __future__ import annotations

from datetime import timedelta

import boto3
import pytest

from s3queue.archive.expiry import METRICS_OF, UNARCHIVED, is_late, left_until_expiry, put_age
from s3queue.stores.memory import MemoryStore
from spark.history.lateness import left_behind, warn_if_late
from support.finished_messages import NOON, put_records

DAYS = timedelta(days=1)


class Unreadable:
    """A bucket whose archive nobody can open."""

    def __init__(self, store):
        self.store = lambda: store

    def archive(self):
        from s3queue.errors import CorruptState

        raise CorruptState("its log was deleted")


def test_half_of_its_time_is_when_a_record_is_late():
    assert not is_late(None, 5 * DAYS, NOON)
    assert not is_late(NOON - 2.5 * DAYS, 5 * DAYS, NOON)
    assert is_late(NOON - 2.6 * DAYS, 5 * DAYS, NOON)
    assert left_until_expiry(NOON - 2 * DAYS, 5 * DAYS, NOON) == 3 * DAYS
    assert left_until_expiry(NOON - 9 * DAYS, 5 * DAYS, NOON) == timedelta()


def test_records_that_waited_for_days_are_told_of(caplog):
    assert not warn_if_late("emails", NOON - DAYS, NOON, 2.5 * DAYS)
    assert not warn_if_late("emails", None, NOON, 2.5 * DAYS)
    assert caplog.text == ""
    assert warn_if_late("emails", NOON - 3 * DAYS, NOON, 2.5 * DAYS)
    assert "records waited for 72 hours, and would have expired soon: emails" in caplog.text


def test_what_was_left_behind_is_as_old_as_its_oldest_record_even_if_the_archive_cannot_be_read():
    store = MemoryStore("late")
    put_records(store, "emails", 3)
    now = store.list("", limit=1).at + 2 * DAYS
    bucket = Unreadable(store)
    assert left_behind(bucket, [], now) == timedelta()
    assert left_behind(bucket, ["emails"], now) == pytest.approx(2 * DAYS, abs=timedelta(seconds=5))
    assert left_behind(bucket, ["idle"], now) == timedelta()


def test_the_age_reaches_cloudwatch_and_a_refusal_fails_nothing(moto_endpoint, caplog):
    client = boto3.client(
        "cloudwatch",
        endpoint_url=moto_endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    assert put_age(client, "late-bucket", timedelta(hours=3))
    (metric,) = [
        one
        for one in client.list_metrics(Namespace=METRICS_OF, MetricName=UNARCHIVED)["Metrics"]
        if one["Dimensions"] == [{"Name": "bucket", "Value": "late-bucket"}]
    ]
    assert metric["MetricName"] == UNARCHIVED

    class Refusing:
        def put_metric_data(self, **_):
            raise PermissionError("no")

    assert not put_age(Refusing(), "late-bucket", timedelta(hours=3))
    assert "metric UnarchivedAge not published: no" in caplog.text
