"""The archive's table on a real S3 server: every commit counts once, whoever else commits. No JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3queue.archive import table as table_module
from s3queue.archive.columns import FILE_COLUMNS, TABLE_COLUMNS, struct
from s3queue.archive.old_log import check_converted, convert, old_versions
from s3queue.archive.table import ArchiveTable
from s3queue.archive.upkeep import Compacted, compact, vacuum
from s3queue.errors import AccessDenied, Conflict, CorruptState, InvalidRequest, NewerFormat, QueueError, Unavailable
from s3queue.keys import Keys
from support.archived_files import put_old_commit, put_part
from support.fault_proxy import fault_proxy
from support.finished_messages import NOON, keys_under


@pytest.fixture
def store(bucket):
    return bucket.store()


@pytest.fixture
def archive(bucket) -> ArchiveTable:
    return bucket.archive()


def add(store, archive: ArchiveTable, queue: str, *names: str, day: str = "2026-11-16", **more) -> None:
    seen = archive.prepared()
    part = put_part(store, queue, names, version=seen.commits(queue) + 1, day=day, **more)
    archive.commit(seen, queue, [part], committed_at=NOON)


def names(archive: ArchiveTable) -> Counter:
    """What any reader of Delta Lake sees."""
    rows = archive.snapshot().table.to_pyarrow_table(columns=["queue", "path"]).to_pylist()
    return Counter((row["queue"], row["path"].removeprefix("messages/")) for row in rows)


def test_a_stranger_reads_every_row_with_its_queue_and_day_and_nothing_of_the_files_that_do_not_count(store, archive):
    add(store, archive, "emails", "a", "b")
    add(store, archive, "orders", "c", day="2026-11-17")
    put_part(store, "emails", ["orphan"], version=9)

    dataset = archive.snapshot().table.to_pyarrow_dataset()

    rows = dataset.to_table(columns=["queue", "day", "path", "messages", "dead_by_type"]).to_pylist()
    assert sorted((row["queue"], row["day"], row["path"]) for row in rows) == [
        ("emails", "2026-11-16", "messages/a"),
        ("emails", "2026-11-16", "messages/b"),
        ("orders", "2026-11-17", "messages/c"),
    ]
    assert {row["messages"] for row in rows} == {1}
    assert rows[0]["dead_by_type"] == [("Late", 1)]
    assert set(dataset.schema.names) == {field["name"] for field in TABLE_COLUMNS["fields"]}
    (orders,) = archive.snapshot().parts("orders")
    assert (orders.queue, orders.day, orders.rows) == ("orders", "2026-11-17", 1)
    assert [part.day for part in archive.snapshot().parts(since_day="2026-11-17")] == ["2026-11-17"]


def test_of_two_commits_that_saw_the_same_one_counts_and_other_queues_do_not_matter(store, archive):
    add(store, archive, "emails", "a")
    seen = archive.snapshot()
    mine, theirs = (put_part(store, "emails", [name], version=2) for name in ("mine", "theirs"))
    archive.commit(seen, "emails", [theirs], committed_at=NOON)
    add(store, archive, "orders", "other")

    with pytest.raises(Conflict):
        archive.commit(seen, "emails", [mine], committed_at=NOON)
    # Later, too, and by a run that was asleep for long: what it saw is what counts.
    add(store, archive, "emails", "third")
    with pytest.raises(Conflict):
        archive.commit(seen, "emails", [mine], committed_at=NOON)
    fresh = put_part(store, "invoices", ["first"])
    archive.commit(seen, "invoices", [fresh], committed_at=NOON)

    assert names(archive) == Counter(
        [("emails", "a"), ("emails", "theirs"), ("emails", "third"), ("orders", "other"), ("invoices", "first")]
    )
    assert archive.snapshot().commits("emails") == 3


def test_many_at_once_make_one_table_and_each_queue_counts_once(store, archive):
    parts = {(queue, n): put_part(store, queue, [f"n{n}"]) for queue in ("emails", "orders") for n in range(3)}
    together = threading.Barrier(len(parts))

    def race(asked) -> str:
        queue, _ = asked
        seen = archive.prepared()
        together.wait()
        # As a run does: it looks again, and is done if there is a commit by then, be it its own without an answer.
        while seen.commits(queue) == 0:
            try:
                archive.commit(seen, queue, [parts[asked]], committed_at=NOON)
                return queue
            except (Conflict, Unavailable):
                seen = archive.prepared()
        return ""

    with ThreadPoolExecutor(len(parts)) as pool:
        won = Counter(queue for queue in pool.map(race, parts) if queue)

    assert won <= Counter(["emails", "orders"])
    assert Counter(queue for queue, _ in names(archive)) == Counter(["emails", "orders"])


@pytest.mark.parametrize("fault", ["500 after the write", "409 after the write", "answer lost after the write"])
def test_a_commit_whose_answer_is_lost_counts_once(bucket, store, archive, fault):
    add(store, archive, "emails", "a")
    with fault_proxy(bucket.endpoint_url, seed=1) as proxy:
        behind = ArchiveTable(archive.bucket, proxy.endpoint, archive.region)
        seen = behind.snapshot()
        part = put_part(store, "emails", ["b"], version=2)
        proxy.expect(fault)
        try:
            behind.commit(seen, "emails", [part], committed_at=NOON)
        except (Conflict, Unavailable):
            # As a run does: it looks again, and finds what it wanted to add.
            assert [found.key for found in behind.snapshot().parts("emails")].count(part.key) == 1
        assert proxy.injected[fault] == 1
    assert names(archive) == Counter([("emails", "a"), ("emails", "b")])
    assert archive.snapshot().commits("emails") == 2


COMMITTER = """
import sys
from datetime import UTC, datetime
from s3queue.archive.parts import Part
from s3queue.archive.table import ArchiveTable
bucket, endpoint, key, rows, size = sys.argv[1:]
table = ArchiveTable(bucket, endpoint, "us-east-1")
seen = table.snapshot()
part = Part(key=key, queue="emails", day="2026-11-16", rows=int(rows), bytes=int(size))
print("ready", flush=True)
table.commit(seen, "emails", [part], committed_at=datetime.now(UTC))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_is_killed_in_its_commit_leaves_all_of_it_or_nothing(bucket, store, archive, moment):
    add(store, archive, "emails", "a")
    part = put_part(store, "emails", ["b", "c"], version=2)
    with fault_proxy(bucket.endpoint_url, seed=1) as proxy:
        command = [sys.executable, "-c", COMMITTER, bucket.name, proxy.endpoint, part.key, "2", str(part.bytes)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, env=environment) as process:

            def kill(*_: object) -> None:
                process.send_signal(signal.SIGKILL)

            if moment == "after":
                proxy.on_created = kill
            else:
                proxy.draw = lambda request: kill() or "closed before the request" if request.method == "PUT" else ""
            assert process.wait() == -signal.SIGKILL

    assert names(archive) == Counter([("emails", name) for name in ("a" if moment == "before" else "abc")])
    # What the next run sees decides what it adds.
    if moment == "before":
        archive.commit(archive.snapshot(), "emails", [part], committed_at=NOON)
    assert names(archive) == Counter([("emails", name) for name in "abc"])
    assert archive.snapshot().commits("emails") == 2


def test_an_older_table_gains_the_columns_that_this_version_writes(store, archive, monkeypatch):
    older = struct()
    older["fields"] = [field for field in TABLE_COLUMNS["fields"] if field["name"] not in ("payload_key", "lines")]
    with monkeypatch.context() as patched:
        patched.setattr(table_module, "TABLE_COLUMNS", older)
        add(store, archive, "emails", "old")
        assert archive.snapshot().columns() == {field["name"] for field in older["fields"]}

    add(store, archive, "emails", "new", payload_key="emails/done/messages/new")

    rows = archive.snapshot().table.to_pyarrow_table(columns=["path", "payload_key", "lines"]).to_pylist()
    assert sorted(rows, key=lambda row: row["path"]) == [
        {"path": "messages/new", "payload_key": "emails/done/messages/new", "lines": None},
        {"path": "messages/old", "payload_key": None, "lines": None},
    ]
    # An older side goes on adding files without them.
    with monkeypatch.context() as patched:
        patched.setattr(table_module, "TABLE_COLUMNS", older)
        add(store, archive, "emails", "late")
    assert len(names(archive)) == 3
    assert compact(archive) == Compacted(3, 1)
    assert archive.snapshot().table.to_pyarrow_table().num_rows == 3


def test_a_commit_that_saw_fewer_columns_looks_again(store, archive, monkeypatch):
    older = struct()
    older["fields"] = TABLE_COLUMNS["fields"][:-1]
    monkeypatch.setattr(table_module, "TABLE_COLUMNS", older)
    add(store, archive, "emails", "a")
    seen = archive.snapshot()
    monkeypatch.undo()
    archive.prepared()

    with pytest.raises(Conflict):
        archive.commit(seen, "emails", [put_part(store, "emails", ["b"], version=2)], committed_at=NOON)


def test_compaction_changes_no_row_and_disturbs_no_commit(store, archive):
    for name in "abcd":
        add(store, archive, "emails", name)
    add(store, archive, "emails", "other-day", day="2026-11-17")
    add(store, archive, "orders", "x")
    before, seen = names(archive), archive.snapshot()

    assert compact(archive, "emails") == Compacted(4, 1)

    assert names(archive) == before
    assert [part.rows for part in archive.snapshot().parts("emails")] == [4, 1]
    # A run that read the table before it, and a reader of that version.
    part = put_part(store, "emails", ["e"], version=seen.commits("emails") + 1)
    archive.commit(seen, "emails", [part], committed_at=NOON)
    assert seen.table.to_pyarrow_table().num_rows == before.total()
    assert names(archive) == before + Counter([("emails", "e")])
    assert compact(archive, "orders") == Compacted(0, 0)
    replaced = vacuum(store, archive, days=0)
    assert len(replaced) == 4
    assert names(archive) == before + Counter([("emails", "e")])
    assert vacuum(store, archive, days=0) == []


def test_after_many_commits_the_table_is_read_from_a_checkpoint(store, archive):
    for number in range(22):
        add(store, archive, "emails", f"n{number}")

    log = keys_under(store, "archive/_delta_log/")
    assert "archive/_delta_log/_last_checkpoint" in log
    assert [key for key in log if key.endswith(".checkpoint.parquet")]
    assert len([key for key in log if key.endswith(".json")]) == 23, "no commit is ever deleted"
    assert names(archive).total() == 22
    assert archive.snapshot().commits("emails") == 22
    add(store, archive, "emails", "one more")
    assert names(archive).total() == 23


def test_an_old_archive_becomes_commits_of_the_table_once(store, archive):
    first = put_part(store, "emails", ["a", "b"])
    second = put_part(store, "emails", ["c"], version=2)
    put_part(store, "emails", ["orphan"], version=2)
    for version, part in ((1, first), (2, second)):
        put_old_commit(store, "emails", version, [part])
    before = keys_under(store, "archive/queue=")

    with pytest.raises(InvalidRequest, match="s3queue archive convert emails"):
        check_converted(store, None, "emails")
    assert convert(store, archive, "emails") == 2
    assert convert(store, archive, "emails") == 0

    assert names(archive) == Counter([("emails", name) for name in "abc"])
    assert keys_under(store, "archive/queue=") == before, "nothing is copied, nothing is deleted"
    assert archive.snapshot().commits("emails") == 2
    check_converted(store, archive.snapshot(), "emails")
    # The next run goes on counting.
    add(store, archive, "emails", "d")
    assert archive.snapshot().commits("emails") == 3
    assert convert(store, archive, "emails") == 0
    assert convert(store, archive, "idle") == 0


def test_two_conversions_at_once_and_one_that_was_killed_register_each_file_once(store, archive):
    for version in range(1, 6):
        put_old_commit(store, "emails", version, [put_part(store, "emails", [f"n{version}"], version=version)])
    archive.commit(archive.prepared(), "emails", [put_part(store, "emails", ["n1"])], committed_at=NOON)

    def again(_: int) -> int:
        try:
            return convert(store, archive, "emails")
        except (Conflict, Unavailable):
            return 0

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(again, range(2)))
    convert(store, archive, "emails")

    assert names(archive) == Counter([("emails", f"n{version}") for version in range(1, 6)])
    assert old_versions(store, "emails") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (lambda store: store.put(Keys("emails").archive_commit(2), b"no commit"), CorruptState),
        (lambda store: store.delete(Keys("emails").archive_commit(2)), CorruptState),
        (lambda store: put_old_commit(store, "emails", 2, [put_part(store, "orders", ["x"])]), CorruptState),
        (lambda store: store.put(Keys("emails").archive_commit(2), b'{"v": 1, "schema": 9}'), NewerFormat),
    ],
)
def test_a_broken_commit_of_the_old_log_stops_the_conversion_there(store, archive, broken, error):
    for version in (1, 2, 3):
        put_old_commit(store, "emails", version, [put_part(store, "emails", [f"n{version}"], version=version)])
    broken(store)

    with pytest.raises(error, match=r"archive/queue=emails/_log/0000000002\.json"):
        convert(store, archive, "emails")

    assert names(archive) == Counter([("emails", "n1")])
    with pytest.raises(InvalidRequest, match="archive convert emails"):
        vacuum(store, archive, days=0)
    assert len(keys_under(store, "archive/queue=emails/day=")) == 3


def test_a_log_that_is_none_is_an_error_in_our_words(store, archive):
    add(store, archive, "emails", "a")
    for body in (b"garbage", b"{}", b'{"add": {"path": 7}}\n', b""):
        store.put("archive/_delta_log/00000000000000000001.json", body)
        try:
            found = archive.snapshot()
            if found:
                found.parts()
        except QueueError:
            continue


def test_a_file_elsewhere_is_not_a_file_of_the_archive(store, archive):
    add(store, archive, "emails", "a")
    added = {
        "path": "s3://elsewhere/x.parquet",
        "partitionValues": {"queue": "emails", "day": "2026-11-16"},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
    }
    store.put("archive/_delta_log/00000000000000000002.json", json.dumps({"add": added}).encode() + b"\n")

    with pytest.raises(CorruptState, match="not a file of it"):
        archive.snapshot().parts()


def test_a_table_that_others_made_is_refused(bucket, store, archive):
    from deltalake import DeltaTable, Schema

    DeltaTable.create(archive.url, Schema.from_json(json.dumps(FILE_COLUMNS)), storage_options=archive._options())
    with pytest.raises(CorruptState, match="not partitioned by queue, day"):
        archive.prepared()


def test_a_server_that_is_not_there_and_a_wrong_key_are_told_apart(archive, monkeypatch):
    monkeypatch.setattr(ArchiveTable, "_options", _hurried(ArchiveTable._options))
    with pytest.raises(Unavailable, match="no clear answer"):
        ArchiveTable(archive.bucket, "http://127.0.0.1:9", "us-east-1").snapshot()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(AccessDenied):
        archive.snapshot()


def _hurried(options):
    return lambda self: options(self) | {"max_retries": "0", "connect_timeout": "1s"}


def test_without_the_extra_the_error_names_it(archive, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InvalidRequest, match=r"pip install 's3queue\[archive\]'"):
        archive.snapshot()
