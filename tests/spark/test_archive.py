"""The archive holds every record exactly once, whatever happens to the runs that write it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from s3queue.archive.table import ArchiveTable
from s3queue.archive.upkeep import compact, vacuum
from s3queue.documents.partition import journal_bytes
from s3queue.documents.record import Failure
from s3queue.errors import Conflict, CorruptState, NewerFormat, Unavailable
from s3queue.keys import Keys
from spark import archive as job
from spark.archive import Waiting, archive, main, measured, not_in
from spark.history.archived import read_parts
from spark.history.part_files import in_tasks, packed_records, write_parts
from spark.rows.record_rows import record_row
from spark.storage.scan import list_range, survey
from support.archived_files import put_old_commit, put_part
from support.data_frames import assertDataFrameEqual
from support.finished_messages import NOON, keys_under, put_record, put_records, record
from support.killing_bucket import killing_bucket


def archived(spark, bucket, queue="emails") -> list:
    seen = bucket.archive().snapshot()
    parts = seen.parts(queue) if seen else []
    return read_parts(spark, bucket, parts).collect() if parts else []


def files(store, queue="emails") -> set[str]:
    return set(keys_under(store, f"archive/queue={queue}/day="))


def plain(bucket):
    """The table as anybody reads it, without s3queue."""
    return bucket.archive().snapshot().table.to_pyarrow_dataset()


def pairs(rows) -> Counter:
    return Counter((row.record_key, row.record_etag) for row in rows)


def once(store, queue="emails") -> Counter:
    return Counter(keys_under(store, f"{queue}/records/").items())


def test_records_become_parquet_by_queue_and_day_and_a_rerun_adds_nothing(spark, bucket):
    store = bucket.store()
    put_records(store, "emails", 30)
    put_records(store, "emails", 5, start=100, finished_at=NOON + timedelta(days=1))
    put_records(store, "orders", 3)

    done = archive(spark, bucket, "emails", now=NOON, rows_per_part=10)

    assert (done.records, done.problems, done.version) == (35, 0, 1)
    assert {part.day for part in done.parts} == {"2026-11-16", "2026-11-17"}
    assert all(part.key.startswith(f"archive/queue=emails/day={part.day}/part-") for part in done.parts)
    assert all(part.rows <= 10 for part in done.parts)
    assert pairs(archived(spark, bucket)) == once(store)

    before = keys_under(store, "archive/")
    again = archive(spark, bucket, "emails", now=NOON + timedelta(hours=1), rows_per_part=10)
    assert (again.records, again.parts, again.version) == (0, (), None)
    assert keys_under(store, "archive/") == before
    assert archived(spark, bucket, "orders") == []


def test_a_row_names_the_payload_that_was_kept(spark, bucket):
    put_record(bucket.store(), "emails", record("messages/kept", keeps_payload=True))
    put_record(bucket.store(), "emails", record("messages/gone"))

    archive(spark, bucket, "emails", now=NOON)

    named = {row.path: row.payload_key for row in archived(spark, bucket)}
    assert named == {"messages/kept": "emails/done/messages/kept", "messages/gone": None}


def test_only_what_is_new_is_added_and_a_new_outcome_of_an_old_name_is_new(spark, bucket):
    store = bucket.store()
    put_records(store, "emails", 4)
    archive(spark, bucket, "emails", now=NOON)
    first = once(store)
    put_records(store, "emails", 2, start=50, finished_at=NOON - timedelta(days=3))
    put_record(store, "emails", record("messages/m00000", finished_at=NOON + timedelta(hours=1)))

    done = archive(spark, bucket, "emails", now=NOON)

    assert (done.records, done.version) == (3, 2)
    assert pairs(archived(spark, bucket)) == first | once(store)


def test_records_that_expired_stay_in_the_archive(spark, bucket):
    store = bucket.store()
    kept = put_records(store, "emails", 3)
    archive(spark, bucket, "emails", now=NOON)
    for key in kept:
        store.delete(key)

    assert archive(spark, bucket, "emails", now=NOON).records == 0
    assert len(archived(spark, bucket)) == 3


def test_a_run_that_died_before_its_commit_is_completed_by_the_next(spark, bucket, monkeypatch):
    store = bucket.store()
    put_records(store, "emails", 12)

    def dies(table, seen, queue, parts, *, committed_at):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, bucket, "emails", now=NOON, rows_per_part=5)
    left = files(store)
    assert left
    assert archived(spark, bucket) == []
    assert plain(bucket).count_rows() == 0

    done = archive(spark, bucket, "emails", now=NOON, rows_per_part=5)

    # The same records make the same files: nothing is left behind.
    assert {part.key for part in done.parts} == left
    assert pairs(archived(spark, bucket)) == once(store)


def test_a_run_whose_executor_was_killed_is_completed_by_the_next(spark, bucket, tmp_path):
    put_records(bucket.store(), "emails", 12)

    with pytest.raises(Exception, match="worker exited"):
        archive(spark, killing_bucket(bucket, tmp_path / "died", ".parquet"), "emails", now=NOON, rows_per_part=5)
    assert keys_under(bucket.store(), "archive/")
    assert archived(spark, bucket) == []

    assert archive(spark, bucket, "emails", now=NOON, rows_per_part=5).records == 12
    assert pairs(archived(spark, bucket)) == once(bucket.store())


def test_files_of_a_run_that_died_count_for_nobody_and_vacuum_removes_them_alone(spark, bucket, monkeypatch):
    store = bucket.store()
    put_records(store, "emails", 4)
    archive(spark, bucket, "emails", now=NOON)
    put_records(store, "emails", 3, start=50)

    def dies(table, seen, queue, parts, *, committed_at):
        raise KeyboardInterrupt

    kept = files(store)
    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, bucket, "emails", now=NOON)
    left = files(store) - kept
    assert left
    put_records(store, "emails", 1, start=90)

    done = archive(spark, bucket, "emails", now=NOON)

    assert (done.version, done.records) == (2, 4)
    assert pairs(archived(spark, bucket)) == once(store)
    assert plain(bucket).count_rows() == 8
    # Nobody knows whose these are.
    others = {"archive/queue=emails/day=2026-11-16/notes.txt", "archive/queue=emails/_log/notes"}
    for key in others:
        store.put(key, b"x")
    assert vacuum(store, bucket.archive()) == []
    assert vacuum(store, bucket.archive(), days=0, dry_run=True) == sorted(left)
    assert vacuum(store, bucket.archive(), days=0) == sorted(left)
    assert set(keys_under(store, "archive/queue=")) == kept | {part.key for part in done.parts} | others
    assert pairs(archived(spark, bucket)) == once(store)


def test_of_two_runs_at_once_each_record_is_kept_once(spark, bucket, monkeypatch):
    store = bucket.store()
    put_records(store, "emails", 6)
    commit, raced = ArchiveTable.commit, []

    def late(table, *given, **options):
        if not raced:
            raced.append(True)
            archive(spark, bucket, "emails", now=NOON)
            put_records(store, "emails", 2, start=90)
        commit(table, *given, **options)

    monkeypatch.setattr(ArchiveTable, "commit", late)
    done = archive(spark, bucket, "emails", now=NOON)

    assert (done.records, done.version) == (2, 2)
    assert pairs(archived(spark, bucket)) == once(store)


def test_a_run_that_always_loses_says_so(spark, bucket, monkeypatch):
    put_records(bucket.store(), "emails", 1)

    def lost(table, seen, queue, parts, *, committed_at):
        raise Conflict("someone was faster")

    monkeypatch.setattr(ArchiveTable, "commit", lost)
    with pytest.raises(Conflict, match="one archive job at a time"):
        archive(spark, bucket, "emails", now=NOON)


def test_a_commit_whose_answer_is_lost_counts_once(spark, bucket, monkeypatch):
    store = bucket.store()
    put_records(store, "emails", 6)
    commit, lost = ArchiveTable.commit, []

    def unheard(table, *given, **options):
        commit(table, *given, **options)
        if not lost:
            lost.append(True)
            raise Unavailable("no answer")

    monkeypatch.setattr(ArchiveTable, "commit", unheard)
    done = archive(spark, bucket, "emails", now=NOON)

    assert (done.records, done.version) == (0, None)
    assert pairs(archived(spark, bucket)) == once(store)


def test_a_few_new_records_of_several_days_make_a_file_a_day_however_many_are_archived(spark, bucket):
    store = bucket.store()
    put_records(store, "emails", 60)
    archive(spark, bucket, "emails", now=NOON, rows_per_part=10)
    for day in range(4):
        put_records(store, "emails", 8, start=100 + 10 * day, finished_at=NOON + timedelta(days=day))

    done = archive(spark, bucket, "emails", now=NOON, rows_per_part=40)

    assert sorted((part.day, part.rows) for part in done.parts) == [(f"2026-11-{16 + day}", 8) for day in range(4)]
    assert pairs(archived(spark, bucket)) == once(store)


def test_a_day_is_split_by_what_waits_of_it():
    rows = {"2026-11-16": 25, "2026-11-17": 10, "2026-11-18": 1}
    sizes = {"2026-11-16": 100, "2026-11-17": 100, "2026-11-18": 700 * 1024 * 1024}
    assert Waiting(rows, sizes).pieces(10) == {"2026-11-16": 3, "2026-11-17": 1, "2026-11-18": 3}
    few = Waiting({"2026-11-16": 5, "2026-11-17": 5}, {"2026-11-16": 100, "2026-11-17": 100})
    assert few.pieces(10) == {"2026-11-16": 1, "2026-11-17": 1}


def test_a_journal_counts_what_its_name_says_unless_it_is_too_small_for_that(spark):
    found = [
        ("emails/records/messages/a-7.json", 200),
        ("emails/records/@=0/x-40.json", 9_000),
        ("emails/records/@=0/forged-999999.json", 150),
        ("emails/records/@=0/none.json", 150),
    ]
    rows = [(key, "e", size, NOON) for key, size in found]
    waiting = measured(spark.createDataFrame(rows, "key string, etag string, size bigint, modified_at timestamp"))
    assert (waiting.objects, waiting.rows, waiting.oldest_at) == (4, {"2026-11-16": 1 + 40 + 2 + 1}, NOON)


def test_the_gets_are_spread_by_their_number_whatever_the_planner_thinks_of_their_bytes(spark):
    listed = spark.range(3000).selectExpr("cast(id as string) key", "'e' etag").persist()
    read = in_tasks(listed, 3000).mapInArrow(lambda batches: batches, listed.schema)
    assert read.rdd.getNumPartitions() == 12
    listed.unpersist()


def test_an_old_archive_is_taken_over_and_what_it_holds_is_not_archived_again(spark, bucket):
    store = bucket.store()
    keys = put_records(store, "emails", 3)
    etags = keys_under(store, "emails/records/")
    # As a version before payload_key wrote it.
    part = put_part(store, "emails", ["m00000"], record_etag=etags[keys[0]])
    put_old_commit(store, "emails", 1, [part])

    done = archive(spark, bucket, "emails", now=NOON)

    assert (done.converted, done.records, done.version) == (1, 2, 2)
    assert pairs(archived(spark, bucket)) == once(store)
    assert {row.payload_key for row in archived(spark, bucket)} == {None}
    assert plain(bucket).count_rows() == 3


def test_after_a_compaction_a_run_knows_what_is_archived(spark, bucket):
    store = bucket.store()
    for start in (0, 10):
        put_records(store, "emails", 5, start=start)
        archive(spark, bucket, "emails", now=NOON)
    before = archived(spark, bucket)
    compact(bucket.archive())
    assert len(bucket.archive().snapshot().parts("emails")) == 1
    assert sorted(archived(spark, bucket), key=lambda row: row.path) == sorted(before, key=lambda row: row.path)
    put_records(store, "emails", 1, start=20)

    assert archive(spark, bucket, "emails", now=NOON).records == 1
    assert pairs(archived(spark, bucket)) == once(store)


def test_a_task_that_runs_twice_writes_the_same_files(spark, bucket):
    store = bucket.store()
    put_records(store, "emails", 8)
    found = job.listed(spark, bucket, survey(store, "emails/records/").ranges)
    packed = packed_records(found, bucket, "emails", {"2026-11-16": 2})
    written = write_parts(packed, bucket, "emails", 1, 3, 2)

    first = sorted(row.key for row in written.collect())
    before = keys_under(store, "archive/")
    assert sorted(row.key for row in written.collect()) == first
    assert keys_under(store, "archive/") == before


GARBAGE = {
    "messages/text": b"not json",
    "messages/empty": b"",
    "messages/list": b"[1]",
    "messages/bare": b'{"v": 1}',
    "messages/moved": record("messages/elsewhere").to_bytes(),
    "messages/huge": replace(record("messages/huge"), size=10**30).to_bytes(),
    "messages/newer": json.dumps(json.loads(record("messages/newer").to_bytes()) | {"v": 99}).encode(),
    "nowhere": record("messages/x").to_bytes(),
}


def test_garbage_among_records_is_counted_and_left(spark, bucket):
    store = bucket.store()
    put_records(store, "emails", 2)
    for path, body in GARBAGE.items():
        store.put(f"emails/records/{path}", body)

    done = archive(spark, bucket, "emails", now=NOON)

    assert (done.records, done.problems) == (2, len(GARBAGE))
    assert done.examples
    again = archive(spark, bucket, "emails", now=NOON)
    assert (again.records, again.problems) == (0, len(GARBAGE))


@pytest.mark.parametrize("body", [b"x", b"{}", *GARBAGE.values()])
def test_whatever_lies_there_is_a_row_or_a_problem(body):
    with pytest.raises((CorruptState, ValueError)):
        record_row("emails", "emails/records/messages/other", "e", body)


def test_text_that_utf8_cannot_hold_is_archived_as_far_as_it_can():
    broken = record("messages/x", failure=Failure("Bad\ud800", "half \udc00 a pair"))
    row = record_row("emails", "emails/records/messages/x", "e", broken.to_bytes())
    assert "Bad?" in row


def test_a_batch_counts_its_lines_and_what_they_died_of():
    lines = {"total": 10, "completed": 7, "dead": 3, "dead_lines": [[1, "Late", "…"], [2, "Late", "…"]]}
    found = record("messages/b.ndjson", lines=lines)
    row = record_row("emails", "emails/records/messages/b.ndjson", "e", found.to_bytes())
    assert row[6:9] == (10, 7, 3)
    assert [("Late", 2), ("unlisted", 1)] in row


def test_a_table_of_a_newer_schema_stops_the_run(spark, bucket):
    put_records(bucket.store(), "emails", 1)
    archive(spark, bucket, "emails", now=NOON)
    bucket.archive().snapshot().table.alter.set_table_properties({"s3queue.schema": "2"}, raise_if_not_exists=False)

    with pytest.raises(NewerFormat, match="upgrade"):
        archive(spark, bucket, "emails", now=NOON)


@pytest.mark.filterwarnings("ignore:.PYARROW_IGNORE_TIMEZONE.")
def test_not_in_wants_key_and_etag_to_be_the_same(spark):
    listed = spark.createDataFrame([("a", "1"), ("b", "2"), ("c", "3")], "key string, etag string")
    known = spark.createDataFrame([("a", "1"), ("b", "old")], "record_key string, record_etag string")
    assertDataFrameEqual(not_in(listed, known), spark.createDataFrame([("b", "2"), ("c", "3")], listed.schema))


def test_ranges_cover_every_object_once_whatever_the_layout(bucket):
    store = bucket.store()
    paths = [f"{group}{n:04d}" for group in ("p200/", "p200/7f/", "0a/", "") for n in range(3)]
    for path in paths:
        store.put(f"emails/messages/{path}", b"1")
    store.put("emails/delayed/20261116T101500Z/x", b"1")

    extent = survey(store, "emails/")

    found = [entry.key for keys in extent.ranges for entry in list_range(store, keys)]
    assert Counter(found) == Counter(list(keys_under(store, "emails/")))
    assert extent.objects == 13


def test_the_command_archives_every_queue_of_the_bucket(spark, bucket, capsys):
    for queue in ("emails", "orders"):
        put_records(bucket.store(), queue, 2)

    assert main(["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url]) == 0
    assert "'records': 4" in capsys.readouterr().out
    assert len(archived(spark, bucket, "orders")) == 2


def test_a_queue_that_cannot_be_archived_costs_the_others_nothing(spark, bucket, capsys, caplog):
    for queue in ("broken", "orders"):
        put_records(bucket.store(), queue, 2)
    # In the old layout, and broken.
    bucket.store().put(Keys("broken").archive_commit(1), b"no commit")

    assert main(["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url]) == 1
    assert "'failed': 1" in capsys.readouterr().out
    assert "archive/queue=broken/_log/0000000001.json" in caplog.text
    assert len(archived(spark, bucket, "orders")) == 2


def test_a_journal_of_a_partition_is_a_row_for_each_of_its_messages_once(spark, bucket):
    store = bucket.store()
    put_records(store, "emails", 3)
    days = [NOON, NOON + timedelta(days=1)]
    records = tuple(record(f"messages/@a/m{n:03d}", finished_at=days[n % 2]) for n in range(30))
    store.put("emails/records/@a/0001.json", journal_bytes(records))
    store.put("emails/records/@a/0002.json", journal_bytes((record("messages/@b/x"),)))

    # Fewer rows in a file than a journal has.
    done = archive(spark, bucket, "emails", now=NOON, rows_per_part=4)

    assert (done.records, done.problems) == (33, 1)
    assert "not a journal of the partition @a" in done.examples[0]
    rows = archived(spark, bucket)
    assert Counter(row.path for row in rows) == Counter(
        [one.path for one in records] + [f"messages/m{n:05d}" for n in range(3)]
    )
    assert {row.record_key for row in rows if "@a" in row.path} == {"emails/records/@a/0001.json"}
    assert all(row.messages == row.completed == 1 for row in rows)
    again = archive(spark, bucket, "emails", now=NOON + timedelta(hours=1), rows_per_part=4)
    assert (again.records, again.parts) == (0, ())
