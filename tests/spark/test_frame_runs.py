"""A DataFrame that is written again under the same run, without a session: no row is left out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from s3queue.errors import InvalidRequest
from s3queue.stores.memory import MemoryStore
from spark.bulk.digest import LinesDigest
from spark.bulk.plan import check_buckets
from spark.source import writing
from spark.source.kinds import Target
from spark.source.writing import QueueWriter, former_of, plan_of
from support.finished_messages import keys_under, put_record, record

ROWS = [json.dumps({"id": n}) for n in range(24)]
FOUR = [ROWS[n::4] for n in range(4)]
TWO = [ROWS[n::2] for n in range(2)]


@dataclass
class InMemory:
    """A bucket whose server is a store in memory."""

    held: Any

    def store(self) -> Any:
        return self.held


@dataclass
class Task:
    number: int

    def partitionId(self) -> int:  # noqa: N802 (Spark's name)
        return self.number


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("frames")


@pytest.fixture
def start(store, monkeypatch):
    """A job: its tasks, of which only some may get as far as to write, then its commit."""

    def run(partitions: list[list[str]], *, only: tuple[int, ...] | None = None, **options: str) -> None:
        target = Target(InMemory(store), "emails")
        plan = plan_of({"per_object": "4"} | options, target, "november")
        writer = QueueWriter(target, plan, former_of(store, plan))
        told = []
        for number, rows in enumerate(partitions):
            if only is None or number in only:
                monkeypatch.setattr(writing, "_task", lambda number=number: Task(number))
                told.append(writer.write(iter([pa.RecordBatch.from_arrays([pa.array(rows)], ["body"])])))
        if only is None:
            writer.commit(told)

    return run


def enqueued(store) -> Counter[str]:
    keys = keys_under(store, "emails/messages/")
    return Counter(line for key in keys for line in store.open(key).read().decode().splitlines())


def is_done(store) -> bool:
    return store.head("emails/bulk/november/done.json") is not None


def test_a_job_that_is_started_again_with_the_same_partitions_is_completed(store, start):
    start(FOUR, only=(0, 2))
    # The task of this one died before its end, and a batch of it was worked off.
    store.delete("emails/bulk/november/00002.done")
    (first, *_) = sorted(key for key in keys_under(store, "emails/messages/") if "-00002-" in key)
    worked = Counter(store.open(first).read().decode().splitlines())
    put_record(store, "emails", record(first.removeprefix("emails/")))
    store.delete(first)

    start([rows[::-1] for rows in FOUR])

    assert worked + enqueued(store) == Counter(ROWS)
    assert json.loads(store.open("emails/bulk/november/done.json").read())["messages"] == 24
    before = keys_under(store, "emails/")
    start(TWO)
    assert keys_under(store, "emails/") == before, "a run that was committed is not repeated"


@pytest.mark.parametrize("state", ["done", "started"])
def test_a_bucket_with_other_rows_than_in_the_first_try_is_refused(store, start, state):
    start(FOUR, only=(0, 1))
    if state == "started":
        for number in range(2):
            store.delete(f"emails/bulk/november/0000{number}.done")
    before = enqueued(store)

    with pytest.raises(
        InvalidRequest, match=r"'november' of emails: bucket 0 has other rows.*6 then, 12 now.*another run"
    ):
        start(TWO)

    assert not is_done(store)
    assert enqueued(store) == before
    start(FOUR)
    assert enqueued(store) == Counter(ROWS)


def test_as_many_other_rows_are_refused_too(store, start):
    start(FOUR, only=(0,))
    with pytest.raises(InvalidRequest, match="other rows"):
        start(FOUR[::-1])


def test_the_same_rows_in_batches_of_other_sizes_are_refused(store, start):
    start(FOUR, only=(0,))
    store.delete("emails/bulk/november/00000.done")
    for options in ({"per_object": "5"}, {"priority": "7"}, {"shards": "2"}):
        with pytest.raises(InvalidRequest, match="another per_object"):
            start(FOUR, **options)


def test_a_run_that_had_more_partitions_does_not_become_done(store, start):
    start(FOUR, only=(3,))
    with pytest.raises(InvalidRequest, match=r"'november' of emails was begun with more than 2 partitions.*00003"):
        start(TWO)
    assert not is_done(store)


def test_a_run_that_an_older_version_began_goes_on(store, start):
    start(FOUR, only=(0, 1))
    for number in range(2):
        store.put(f"emails/bulk/november/0000{number}.started", b'{"v":1,"nonce":"x"}')
    store.delete("emails/bulk/november/00001.done")
    start(FOUR)
    assert enqueued(store) == Counter(ROWS)
    assert is_done(store)


def test_a_bad_row_is_refused_before_anything_of_its_task_is_written(store, start):
    with pytest.raises(InvalidRequest, match="not JSON"):
        start([["1", "{"]])
    assert keys_under(store, "emails/") == {}


def test_a_new_run_is_looked_for_with_one_request():
    asked: list[str] = []
    store = MemoryStore("asked", around=lambda operation, key, perform: (asked.append(operation), perform())[1])
    plan = plan_of({}, Target(InMemory(store), "emails"), "november")
    assert former_of(store, plan) == "none"
    assert asked == ["list"]


def test_buckets_are_counted_as_numbers_however_long():
    store = MemoryStore("long")
    plan = plan_of({}, Target(InMemory(store), "emails"), "november")
    for number in (0, 99_999, 100_000):
        store.put(plan.marker(number, "started"), b"{}")
    store.put(plan.keys.bulk("november", "rejected/00000-00000.ndjson"), b"")
    check_buckets(store, plan, 100_001)
    for buckets in (1, 100_000):
        with pytest.raises(InvalidRequest, match="more than"):
            check_buckets(store, plan, buckets)


def test_a_digest_knows_the_lines_and_how_often_but_not_their_order():
    plan = plan_of({}, Target(InMemory(None), "emails"), "november")

    def digest(*lines: bytes) -> str:
        found = LinesDigest()
        in_order = found.sorted(lines)
        known = found.of(plan)
        assert list(in_order) == sorted(lines)
        assert known == found.of(plan), "known before the first line is used"
        return known

    assert digest(b"a", b"b", b"a") == digest(b"b", b"a", b"a")
    assert len({digest(), digest(b""), digest(b"a"), digest(b"a", b"a"), digest(b"a", b"b"), digest(b"ab")}) == 6
