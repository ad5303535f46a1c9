"""Facts are made of Arrow batches: no JVM."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from s3queue.documents.record import Failure
from s3queue.stores.memory import MemoryStore
from spark.history.facts import FACTS, facts_of
from spark.rows.record_rows import READ_SCHEMA, read_record, record_row
from spark.rows.schemas import columns, joined
from spark.storage.scan import batch_of
from support.finished_messages import NOON, record

RECORDS = (
    record("messages/a", wait=3, run=7),
    record("messages/b", wait=3, run=7, tries=2),
    record("delayed/20261116T115957Z/c", wait=100, run=1),
    record("messages/skewed", wait=-5, run=0),
    record("messages/vanished", attempts=(), failure=Failure("SMTPError", "no route")),
)
DURATIONS = [(3.0, 7.0), (3.0, 7.0), (2.0, 1.0), (0.0, 0.0), (None, None)]


def batch(*records):
    rows = [(*record_row("emails", f"emails/records/{each.path}", "e", each.to_bytes()), None) for each in records]
    return batch_of(rows, to_arrow_schema(READ_SCHEMA))


def durations(facts):
    return list(zip(facts["wait_seconds"].to_pylist(), facts["run_seconds"].to_pylist(), strict=True))


def test_facts_are_right_in_any_slice_of_a_batch():
    whole = batch(*RECORDS)

    assert durations(facts_of(whole)) == DURATIONS
    assert facts_of(whole)["failed_types"].to_pylist() == [[], ["Flaky", "Flaky"], [], [], []]
    for start in range(len(RECORDS)):
        assert durations(facts_of(whole.slice(start, 2))) == DURATIONS[start : start + 2]
    assert facts_of(whole.slice(1, 1))["failed_types"].to_pylist() == [["Flaky", "Flaky"]]
    assert facts_of(whole).schema.names == FACTS.names


def test_an_hour_begins_on_the_hour():
    late = record("messages/a", finished_at=NOON + timedelta(minutes=59, seconds=59, microseconds=999_999))
    assert facts_of(batch(late))["hour"].to_pylist() == [NOON]


def test_a_row_without_attempts_or_a_time_is_no_error():
    whole = batch(*RECORDS[:3])
    missing = whole.set_column(
        whole.schema.get_field_index("attempts"), "attempts", pa.nulls(3, whole.schema.field("attempts").type)
    )
    assert durations(facts_of(missing)) == [(None, None)] * 3
    timeless = whole.set_column(
        whole.schema.get_field_index("finished_at"), "finished_at", pa.nulls(3, whole.schema.field("finished_at").type)
    )
    assert facts_of(timeless).num_rows == 0


def test_a_problem_keeps_its_key_and_a_record_how_far_its_clock_was_off():
    store = MemoryStore()
    store.put("emails/records/messages/x", b"garbage")
    stored_at = datetime(2026, 11, 16, 12, 0, 5, tzinfo=UTC)
    good = (*record_row("emails", "emails/records/messages/a", "e", record("messages/a").to_bytes()), None, stored_at)
    bad = (*read_record(store, "emails", "emails/records/messages/x", "")[0], stored_at)
    schema = to_arrow_schema(joined(READ_SCHEMA, columns(modified_at="timestamp")))

    facts = facts_of(batch_of([good, bad], schema), keep=["record_etag"])

    assert facts["skew_seconds"].to_pylist() == [-5.0, None]
    assert facts["problem_key"].to_pylist() == [None, "emails/records/messages/x"]
    assert facts.schema.names == [*FACTS.names, "record_etag"]
