"""How far a stream has read, without a JVM: offsets never go back, and a look is as few LISTs as it can be."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from s3queue.documents.partition import journal_bytes
from s3queue.errors import InvalidRequest
from s3queue.keys import Keys
from s3queue.queue import Queue
from s3queue.stores.memory import MemoryStore
from spark.rows.record_rows import RECORD_SCHEMA
from spark.source.streaming import QueueStreamReader
from support.counting_store import CountingStore
from support.finished_messages import put_record, put_records, record
from support.manual_clock import ManualClock


class Stream:
    """A bucket, its clock, and the readers of one stream."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = CountingStore(MemoryStore(clock=self.clock))
        self.target = SimpleNamespace(
            bucket=SimpleNamespace(store=lambda: self.store),
            keys=Keys("emails"),
            connect=lambda: Queue(store=self.store, name="emails", clock=self.clock),
        )

    def reader(self, **options: str) -> QueueStreamReader:
        return QueueStreamReader(self.target, "records", RECORD_SCHEMA, {"settle_seconds": "2"} | options)

    def read(self, reader: QueueStreamReader, start: dict, end: dict) -> list[str]:
        return [entry.key for part in reader.partitions(start, end) for entry in part.entries]


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_a_raised_settle_time_is_refused_while_it_would_read_twice(stream):
    put_records(stream.store, "emails", 2)
    stream.clock.advance(5)
    first = stream.reader()
    start, end = first.initialOffset(), first.latestOffset()
    assert len(stream.read(first, start, end)) == 2

    after = stream.reader(settle_seconds="600")
    back = after.latestOffset()
    with pytest.raises(InvalidRequest, match=r"would be read twice.*offsets/"):
        after.partitions(end, back)

    # Stopped for as long as it was raised by.
    stream.clock.advance(600)
    later = stream.reader(settle_seconds="600")
    assert stream.read(later, end, later.latestOffset()) == []


def test_what_comes_after_a_restart_is_read_once(stream):
    put_records(stream.store, "emails", 1)
    stream.clock.advance(5)
    first = stream.reader()
    end = first.latestOffset() if first.initialOffset() else {}
    put_records(stream.store, "emails", 1, start=7)
    stream.clock.advance(5)
    again = stream.reader()
    now = again.latestOffset()
    assert stream.read(again, end, now) == ["emails/records/messages/m00007"]
    assert again.latestOffset() == now


def test_a_stream_that_begins_later_stays_there_over_a_restart(stream):
    put_records(stream.store, "emails", 1)
    begins = (stream.store.list("x").at + timedelta(days=1)).isoformat()
    stream.clock.advance(5)
    start = stream.reader(starting_at=begins).initialOffset()
    again = stream.reader(starting_at=begins)
    assert stream.read(again, start, again.latestOffset()) == []


@pytest.mark.parametrize("path", ["messages/a", "elsewhere"])
def test_a_look_is_two_lists(stream, path):
    """The first one for S3's date, and where groups are; then each group, once."""
    put_record(stream.store, "emails", record(path))
    stream.clock.advance(5)
    reader = stream.reader()
    reader.initialOffset()
    stream.store.take()
    assert reader.latestOffset()["key"] == f"emails/records/{path}"
    assert stream.store.take() == {"list": 2}


def _paths(reader: QueueStreamReader, start: dict[str, str], end: dict[str, str]) -> list[str]:
    parts = reader.partitions(start, end)
    return [row["path"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"path_prefix": "messages/b/"}, ["messages/b/1", "messages/b/2"]),
        ({"path_from": "messages/b/2"}, ["messages/b/2", "messages/c"]),
        ({"path": "messages/@ada/2"}, ["messages/@ada/2"]),
        ({"path": "messages/a"}, ["messages/a"]),
        ({}, ["messages/@ada/1", "messages/@ada/2", "messages/a", "messages/b/1", "messages/b/2", "messages/c"]),
    ],
)
def test_a_stream_has_the_paths_that_its_options_name(stream, options, paths):
    ada = tuple(record(f"messages/@ada/{number}") for number in (1, 2))
    stream.store.put("emails/records/@ada/0199-2.json", journal_bytes(ada))
    for path in ("a", "b/1", "b/2", "c"):
        put_record(stream.store, "emails", record(f"messages/{path}"))
    stream.clock.advance(5)
    reader = stream.reader(**options)
    start = reader.initialOffset()
    assert sorted(_paths(reader, start, reader.latestOffset())) == paths
    # A microbatch that is repeated after a restart.
    end, again = reader.latestOffset(), stream.reader(**options)
    assert sorted(_paths(again, start, end)) == paths


@pytest.mark.parametrize(
    "option", [{"day": "2026-11-16"}, {"day_from": "2026"}, {"pushdown": "true"}, {"pushdown": "?"}]
)
def test_options_that_are_not_for_streams_are_refused(stream, option):
    with pytest.raises(InvalidRequest, match=f"option {next(iter(option))}"):
        stream.reader(**option)
