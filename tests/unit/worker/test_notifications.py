"""Which messages an event names, whatever its shape."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from s3queue.keys import Keys
from s3queue.worker.notifications import Notification, read
from support.recorded_events import EVENTS, NAMED

BUCKET = "jobs"
KEYS = Keys("emails")


def recorded(name: str) -> Any:
    return json.loads((EVENTS / f"{name}.json").read_text().replace("BUCKET", BUCKET))


def test_every_recorded_event_is_tested() -> None:
    assert {path.stem for path in EVENTS.glob("*.json")} == NAMED.keys()


@pytest.mark.parametrize("name", NAMED)
def test_an_event_rings_for_the_messages_that_it_names(name: str) -> None:
    assert [notification.path for notification in read(recorded(name), KEYS, BUCKET)] == NAMED[name]


def test_s3_says_size_and_time_and_the_sweeper_neither() -> None:
    (put,) = read(recorded("put"), KEYS, BUCKET)
    assert put == Notification(
        path="messages/welcome.json",
        size=52,
        etag="9b2cf535f27731c974343645a3985328",
        notified_at=datetime(2026, 11, 16, 10, 14, 59, 512000, tzinfo=UTC),
    )
    assert {(sent.size, sent.notified_at) for sent in read(recorded("dispatch"), KEYS, BUCKET)} == {(None, None)}


def test_an_event_is_late_after_a_while_and_a_dispatch_always() -> None:
    notified_at, late_after = datetime(2026, 11, 16, 10, 15, tzinfo=UTC), timedelta(seconds=2)
    notification = Notification(path="messages/a", notified_at=notified_at)
    assert not notification.is_late(notified_at + timedelta(seconds=2), late_after)
    assert notification.is_late(notified_at + timedelta(seconds=2.1), late_after)
    # The clocks of S3 and of this machine differ: an event from the future is not late.
    assert not notification.is_late(notified_at - timedelta(minutes=5), late_after)
    assert Notification(path="messages/a").is_late(notified_at, late_after)


@pytest.mark.parametrize("time", [None, "", "yesterday", 17])
def test_an_event_without_a_readable_time_counts_as_late(time: Any) -> None:
    event = recorded("put")
    event["Records"][0]["eventTime"] = time
    (notification,) = read(event, KEYS, BUCKET)
    assert notification.notified_at is None


@pytest.mark.parametrize(
    "event",
    [
        None,
        "text",
        17,
        [],
        {},
        {"Records": "none"},
        {"paths": "messages/a"},
        {"hello": "world"},
        {"Records": [None, 17, {}, {"eventName": "ObjectCreated:Put"}, {"eventName": "ObjectCreated:Put", "s3": {}}]},
        {"paths": [None, 17, "", "leases/messages/a", "../webhooks/messages/a", "messages"]},
        {"source": "aws.s3", "detail-type": "Object Created", "detail": {"bucket": {}}},
    ],
)
def test_what_is_no_event_is_logged_and_rings_for_nothing(event: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert read(event, KEYS, BUCKET) == []
    assert [record.levelname for record in caplog.records] == ["ERROR"] * len(caplog.records) != []
